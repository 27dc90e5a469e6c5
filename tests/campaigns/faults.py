"""File systems that fail in the middle of a command, clocks that jump, and stores that are deleted under a run.

An audit hook of Python is the fault layer: it hears of every open, rename, mkdir, remove and chmod before it happens,
and lets one of them, or all from one on, fail as a full, broken, read-only or forbidden disk does. A limit on the size
of files tears writes in the middle, those of native code, too. Each case runs a command in a fork with one fault, then
again without: the first may fail, with an error of one line, and the second must give what was given before.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.store.store import Store
from tests.campaigns.commands import Ended, environment, run_command
from tests.campaigns.files import GRAPH, TOPOLOGY, toml_text
from tests.campaigns.imports import import_again
from tests.campaigns.kills import Command, search_answer, search_arguments, tune_answer, tune_arguments
from tests.campaigns.runner import Campaign, Case, Judge, WrongError, require

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EMFILE)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.chmod", "os.truncate", "os.link", "os.symlink")
KINDS = ("once", "from then on", "once, reading", "torn", "store deleted", "clock jumps")
MOST_EVENTS = 250
LIMIT_S = 300.0


@dataclass
class Fault:
    """What fails: events below `folder`, from the one numbered `at`, once or always."""

    kind: str = ""
    at: int = 0
    number: int = errno.EIO
    folder: str = ""
    store: str = ""
    seen: int = 0
    struck: list[str] = field(default_factory=list)
    inside: bool = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Let an event fail if it is its turn."""
        if self.inside or not arguments or (event != "open" and event not in CHANGES):
            return
        path = os.fspath(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
        if not isinstance(path, str) or not path.startswith(self.folder):
            return
        writes = event != "open" or bool((arguments[2] or 0) & WRITING)
        if writes is (self.kind == "once, reading"):
            return
        self.seen += 1
        if self.seen < self.at or (self.seen > self.at and self.kind != "from then on"):
            return
        self.struck.append(f"{event} {path.removeprefix(self.folder)}")
        if self.kind == "store deleted":
            self.inside = True
            shutil.rmtree(self.store, ignore_errors=True)
            self.inside = False
        else:
            raise OSError(self.number, os.strerror(self.number), path)


FAULT = Fault()  # of this process; a hook cannot be taken away again


def run_with_fault(arguments: list[str], fault: Fault | None, out: Path, rng: np.random.Generator) -> tuple[Ended, str]:
    """Return how a command ends in a fork in which something fails, and what failed."""
    told = out.with_suffix(".json")
    child = os.fork()
    if not child:
        _run_in_fork(arguments, fault, told, rng)
    end = time.monotonic() + LIMIT_S
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise WrongError(f"does not end: {arguments[:2]}, {fault}")
        time.sleep(0.01)
    require(told.exists(), f"ends with {os.waitstatus_to_exitcode(found[1])} and says nothing: {fault}")
    document = json.loads(told.read_text(encoding="utf-8"))
    if document["wrong"]:
        raise WrongError(f"{document['wrong']} after {document['struck']} ({fault.kind if fault else ''})")
    out.write_text(document["ended"]["out"], encoding="utf-8")
    import_again(document["modules"])
    return Ended(**document["ended"]), "; ".join(document["struck"][:3])


def _run_in_fork(arguments: list[str], fault: Fault | None, told: Path, rng: np.random.Generator) -> None:
    """Run a command, write down how it ended, and end this process."""
    document: dict[str, Any] = {"wrong": "", "ended": None, "struck": [], "modules": []}
    hurt = fault or Fault()
    try:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        if hurt.kind == "torn":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(10 ** rng.uniform(1, 5)), limits[1]))
        elif hurt.kind == "clock jumps":
            time.time = lambda: float(rng.choice([0.0, 1e9, 1.8e9, 4e9, -1e5]))  # type: ignore[method-assign]
        elif fault is not None:
            global FAULT
            FAULT = fault
            sys.addaudithook(fault.hear)
        ended = run_command(*arguments)
        hurt.inside = True
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        document["ended"] = asdict(ended)
    except WrongError as error:
        document["wrong"] = str(error)
    except BaseException:  # noqa: BLE001  told to the judge
        document["wrong"] = traceback.format_exc()[-1500:]
    finally:
        hurt.inside = True
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        document["struck"] = hurt.struck[:5]
        document["modules"] = [] if fault else list(sys.modules)
        told.write_text(json.dumps(document), encoding="utf-8")
        os._exit(0)


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what hurts commands that have run once undisturbed."""
    from coarsen.reading.model.read import save_model
    from tests.models import two_towers
    from tests.reports import finished

    model, graph, run = folder / "towers.xml", folder / "g.json", finished(folder / "finished")
    save_model(two_towers(2, width=16), model)
    graph.write_text(json.dumps(GRAPH), encoding="utf-8")
    graph.with_suffix(".toml").write_text(toml_text(TOPOLOGY), encoding="utf-8")

    def page(at: Path) -> list[str]:
        return ["report", str(run), "--out", str(at / "page.html")]

    def first_line(at: Path) -> Any:
        return (at / "page.html").read_text(encoding="utf-8").count("<svg") if (at / "page.html").exists() else None

    commands: list[tuple[Command, Callable[[Path], None]]] = [
        (Command("tune", lambda at: tune_arguments(model, at), tune_answer), _forget_all_but_profiles),
        (Command("search", lambda at: search_arguments(graph, at), search_answer), _forget_nothing),
        (Command("report", page, first_line), _forget_nothing),
    ]
    whole: dict[str, Any] = {}

    def judge(case: Case) -> str:
        command, forget = commands[(0, 0, 1, 2)[case.seed % 4]]
        template = folder / command.name
        if command.name not in whole:
            template.mkdir()
            ended, _ = run_with_fault(command.arguments(template), None, template / "out.txt", case.rng)
            require(ended.code == 0, f"{command.name} ends with {ended.code}: {ended.err}")
            whole[command.name] = command.answer(template)
            forget(template)
        shutil.copytree(template, case.folder, dirs_exist_ok=True)
        return hurt_and_repeat(command, case, whole[command.name])

    lock = {"PLACEWRIGHT_LOCK": str(folder / "lock"), "PLACEWRIGHT_STORE": str(folder / "default")}
    with environment(**lock, CI="true"):
        yield judge


def _forget_all_but_profiles(folder: Path) -> None:
    """Leave of a store what was measured, and nothing of the run."""
    shutil.rmtree(folder / "run")
    store = Store(folder / "store")
    for key in store.list_keys():
        entry = store.find(key)
        if entry is not None and entry.parts["stage"] not in ("read", "profile"):
            store.remove(key)


def _forget_nothing(_: Path) -> None:
    """Leave all as it is."""


def hurt_and_repeat(command: Command, case: Case, expected: Any) -> str:
    """Run a command with a fault, then without, and judge both."""
    folder, rng = case.folder, case.rng
    kind = KINDS[rng.integers(len(KINDS))]
    at = int(np.exp(rng.uniform(0, np.log(MOST_EVENTS))))
    number = int(rng.choice(ERRORS))
    fault = Fault(kind, at, number, str(folder), str(folder / "store"))
    ended, struck = run_with_fault(command.arguments(folder), fault, folder / "out.txt", rng)
    what = f"{command.name}, {kind}, {os.strerror(number)} at {struck}"
    require(ended.code in (0, 2, 3, 5), f"{what}: ends with {ended.code}: {ended.err}")
    if ended.code == 0 and kind != "store deleted":
        got = command.answer(folder)
        require(got == expected, f"{what}: answers {str(got)[:300]}, undisturbed {str(expected)[:300]}")
    store = Store(folder / "store")
    for key in store.list_keys():
        require(store.intact(key) is not None, f"{what}: the entry {key[:12]} is not whole")
    if kind == "store deleted" and command.name == "tune":
        return "store deleted"  # what was measured is gone: another profile gives another answer
    again, _ = run_with_fault(command.arguments(folder), None, folder / "out.txt", rng)
    require(again.code == 0, f"{what}: then ends with {again.code}: {again.err}")
    got = command.answer(folder)
    require(got == expected, f"{what}: then answers {str(got)[:300]}, undisturbed {str(expected)[:300]}")
    return f"{kind}: {'struck' if struck or kind in ('torn', 'clock jumps') else 'had ended'}, {ended.code}"


CAMPAIGN = Campaign("faults", 1.5, begin)
