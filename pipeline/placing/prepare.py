"""Compiling everything at once, on two cores: what an installation does, so that no search has to wait for it.

Kernels are compiled as rehearsals call them. Shares that have few kernels in common go to processes of their own; what
is left then is compiled in a last one, which so has loaded everything once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from types import MappingProxyType

from pipeline.core.errors import PlacewrightError
from pipeline.system.process import die_with_parent, python_command

Say = Callable[[str], None]
Share = tuple[tuple[str, tuple[str, ...]], ...]  # simulators, each with the placers to search in it

# The kernels of list schedulers know no simulator, and those of `pipelined` are few.
SHARES: Mapping[str, Share] = MappingProxyType(
    {
        "dataflow": (("listsched", ("anneal", "multilevel")),),
        "lists": (("pipelined", ("heft", "etf", "cpop", "peft", "expert", "m_sct")), ("sequential", ("anneal",))),
    }
)
REST = "rest"


def prepare(*, say: Say) -> float:
    """Compile what is not compiled yet of all placers and simulators, and return the seconds that this took.

    say: told a line for people, now and then.

    Raises:
        PlacewrightError: a process that compiles ended early.
    """
    begun = time.monotonic()
    for shares in (tuple(SHARES), (REST,)):
        _compile_in_processes(shares, say)
    return time.monotonic() - begun


def _compile_in_processes(shares: tuple[str, ...], say: Say) -> None:
    """Rehearse shares in a process each; processes that are not awaited any more are ended."""
    done = dict.fromkeys(shares, 0)

    def follow(share: str, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            done[share] = int(line)
            say(f"compiling kernels: {sum(done.values())} functions so far")
        if process.wait():
            raise PlacewrightError(
                f"The process that compiles {share!r} ended with status {process.returncode}.",
                "See what it said above; free memory or disk space may be short.",
            )

    with ExitStack() as stack:
        running = {
            share: stack.enter_context(
                subprocess.Popen([*python_command(__name__), share], stdout=subprocess.PIPE, text=True)
            )
            for share in shares
        }
        pool = stack.enter_context(ThreadPoolExecutor(len(shares)))
        try:
            for finished in as_completed([pool.submit(follow, *item) for item in running.items()]):
                finished.result()
        finally:  # before the pool waits for its threads, and they for the processes
            for process in running.values():
                process.kill()


def _compile_share(share: str) -> None:
    """Rehearse one share, and print how many functions have been compiled whenever one more is."""
    from pipeline.placing.compile_kernels import SIMULATORS, compile_kernels_of_each, compile_request_kernels
    from pipeline.placing.setup import learns_policy
    from pipeline.settings import registry
    from pipeline.shared.compiled import announce_compiling

    # What learns has no kernels of its own, and takes longest.
    plain = [name for name in registry.implementation_table("place") if not learns_policy(name)]
    everything = tuple((simulator, tuple(plain)) for simulator in SIMULATORS)

    def tell(done: int) -> None:
        sys.stdout.write(f"{done + 1}\n")
        sys.stdout.flush()

    with announce_compiling(tell):
        for simulator, placers in SHARES.get(share, everything):
            compile_kernels_of_each(placers, simulator)
        if share == REST:
            compile_request_kernels()


if __name__ == "__main__":
    die_with_parent()
    _compile_share(sys.argv[1])
