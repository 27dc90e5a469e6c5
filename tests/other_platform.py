"""Makes a process see what our packages see on Windows, as far as that can be done elsewhere.

Only what our own modules look at is changed: other packages have builds for each system. `install` is called by a
sitecustomize of its own, before anything of ours is imported, and so in every process that placewright starts.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.machinery
import os
import pathlib
import selectors
import signal
import sys
from collections.abc import Callable, Container, Mapping
from types import ModuleType
from typing import Any

OURS = ("pipeline", "coarsen", "embed", "policy", "runtime")
NO_MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "select")
NO_FOLDERS = ("/proc", "/sys")
LOOKS = ("open", "exists", "is_file", "is_dir", "iterdir", "glob")  # all that a Path is asked goes through these
UNIX_ALONE: Mapping[ModuleType, tuple[str, ...]] = {
    os: (
        *("fork", "forkpty", "killpg", "getpgid", "setsid", "getuid", "geteuid", "getloadavg", "nice", "set_blocking"),
        *("sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "sched_param", "SCHED_RR", "SCHED_OTHER"),
    ),
    signal: ("SIGKILL", "SIGSTOP", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "setitimer", "alarm", "pthread_sigmask"),
    selectors: ("DefaultSelector", "PollSelector", "EpollSelector"),
    ctypes: ("CDLL",),
    sys: (),
}


class Fewer(ModuleType):
    """A module without some of its names, and with another value of some."""

    def __init__(self, module: ModuleType, without: Container[str], other: Mapping[str, Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _without=without, _other=other)

    def __getattr__(self, name: str) -> Any:
        if name in self._without:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on this system")
        return self._other[name] if name in self._other else getattr(self._module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._module, name, value)


def install(platform: str, *, metis: bool) -> None:
    """Let our modules see a platform; metis: whether pymetis is there."""
    if not metis:
        sys.modules["pymetis"] = None  # type: ignore[assignment]  what Python takes for a module that is not there
    fakes = {m.__name__: Fewer(m, names, {"platform": platform} if m is sys else {}) for m, names in UNIX_ALONE.items()}
    load = importlib.machinery.SourceFileLoader.exec_module

    def exec_module(loader: importlib.machinery.SourceFileLoader, module: ModuleType) -> None:
        load(loader, module)
        if module.__name__.partition(".")[0] in OURS:
            vars(module).update({name: fake for name, fake in fakes.items() if vars(module).get(name) is fake._module})

    importlib.machinery.SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]
    _bar_modules()
    for name in LOOKS:
        setattr(pathlib.Path, name, _elsewhere(getattr(pathlib.Path, name)))


def _bar_modules() -> None:
    """Let our modules import nothing that Windows has not."""
    take = builtins.__import__

    def barred(name: str, globals: Any = None, *rest: Any, **more: Any) -> ModuleType:
        if name in NO_MODULES and str((globals or {}).get("__name__")).partition(".")[0] in OURS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return take(name, globals, *rest, **more)

    builtins.__import__ = barred


def _elsewhere(look: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of paths to which the folders of Linux are not there."""

    def looked(path: pathlib.Path, *rest: Any, **more: Any) -> Any:
        absent = str(path).startswith(NO_FOLDERS)
        return look(pathlib.Path(f"/absent{path}") if absent else path, *rest, **more)

    return looked
