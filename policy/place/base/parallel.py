"""Parts of a search that run at the same time, each on a fork of its own, and on a thread or a process."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable, Sequence

from pipeline.core.problem import Progress
from policy.place.base.forked import Part, can_fork, run_forked
from policy.place.base.search import BudgetEndedError, Search

# Seconds after which a thread that needs the interpreter gets it from another. A part that mostly runs compiled code
# needs it for moments, and with 5 ms, as usual, it makes half as many moves beside one that computes in Python.
TURN_S = 0.0005
LOOK_S = 0.1  # seconds between two looks at whether everything has ended, or somebody wants it to


def run_parallel(search: Search, parts: Sequence[Part], *, workers: int) -> None:
    """Let parts search, `workers` of them at a time, each with an equal share of the evaluations left.

    All begin with what the search knows now; in the end what they found is taken over in their order. Without a time
    limit they learn nothing of one another before, and so the outcome is the same for any number of workers. With one,
    they may `adopt` what others have found, and an incumbent that is proven, or good enough, ends them all.

    Where time is the only limit, parts that run at once have processes of their own if the system can fork them: on
    threads, one that computes in Python, or in a library that keeps the interpreter to itself, holds up the others.

    Progress is told on the caller's thread. Whatever that raises, and whatever a part raises, ends all parts at their
    next look at the evaluator, and is raised here; from another process, as a PlacewrightError or a RuntimeError.
    """
    timed = math.isfinite(search.left_s)
    if workers >= len(parts) > 1 and _may_fork(search):
        run_forked(search, parts)
        return
    ended = threading.Event()

    def hook(_: Progress) -> None:
        if ended.is_set():
            raise BudgetEndedError

    share, rest = divmod(search.left, len(parts))
    forks = [search.fork(search.author, evaluations=share + (i < rest), progress=hook) for i in range(len(parts))]
    for one in (search, *forks):
        one.share([fork.history for fork in forks if fork is not one] if timed else ())
    waited_for = search.stopped
    for fork in forks:
        fork.stopped = lambda: ended.is_set() or waited_for()
    jobs, faults = list(zip(parts, forks, strict=True)), list[BaseException]()
    lanes = [jobs[first::workers] for first in range(min(workers, len(jobs)))]
    threads = [threading.Thread(target=_carry_out, args=(lane, ended, faults), daemon=True) for lane in lanes]
    interval_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(min(TURN_S, interval_s))
        for thread in threads:
            thread.start()
        _wait(search, threads, ended)
    except BaseException:
        ended.set()
        raise
    finally:
        sys.setswitchinterval(interval_s)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for fork in forks:
            search.join(fork)
    search.share(())
    if faults:
        raise faults[0]
    search.tell()


def run_apart(search: Search, part: Part, *, above: int = 0) -> None:
    """Let a part search that calls what does not look at the clock, such as a solver's library.

    Where time is the only limit it has a process of its own if the system can fork it, which is ended when it is late;
    what it had found by then is kept. Otherwise it runs here, as with up to `above` operations, for which it is quick.
    """
    if search.problem.graph.n > above and _may_fork(search):
        run_forked(search, [part])
    else:
        part(search)


def _may_fork(search: Search) -> bool:
    return (
        search.simulator is not None
        and math.isfinite(search.left_s)
        and search.budget.evaluations is None
        and can_fork()
    )


def _wait(search: Search, threads: Sequence[threading.Thread], ended: threading.Event) -> None:
    """Wait for threads; tell the progress, and end them all where what they have found is settled."""
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(LOOK_S / len(threads))
        search.tell()
        search.adopt()
        if search.settled:
            ended.set()


def _carry_out(jobs: Iterable[tuple[Part, Search]], ended: threading.Event, faults: list[BaseException]) -> None:
    """Run parts one after another; note what they raise, and end all others then."""
    try:
        for part, fork in jobs:
            if not ended.is_set() and fork.left_s > 0:
                part(fork)
    except BudgetEndedError:
        return
    except BaseException as error:  # noqa: BLE001  handed on to the caller, whatever it is
        faults.append(error)
        ended.set()
