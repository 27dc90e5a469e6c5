"""Lines of progress that are shown where no progress is: before something that takes long."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.system.folders import KERNELS, own_cache


class Notice(str):
    """A line of progress that a pipe gets as well."""

    __slots__ = ()


COMPILING = Notice(
    "compiling kernels (once per installation, about a minute); `placewright prepare` compiles all of them in advance"
)


def tell_of_compiling(say: Callable[[str], None]) -> None:
    """Tell that other processes are going to compile kernels, if none have been compiled here yet."""
    folder = own_cache(KERNELS)
    if not folder.is_dir() or not any(folder.iterdir()):
        say(COMPILING)
