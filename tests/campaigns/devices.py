"""Devices that refuse, lie, compute wrongly, throttle, disappear, and processes of theirs that die, hang or eat memory.

The measuring process is `fake_device`, which has the fault of a case. One case of 32 is `tune` as users run it, three
are contests alone with processes, and the rest contests whose devices are in this process, which takes a fraction of
the time. A split is truly 1.43 times as fast as the default, and nothing else is faster. Afterwards the same runs
without the fault.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from pipeline.core.deadline import Deadline
from pipeline.core.devices import DeviceSpec
from pipeline.core.measurement import FailureKind, MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.store.store import Store
from runtime.measuring.contest import contenders, pair_bench
from runtime.measuring.contest.contest import Contest, run_contest
from runtime.measuring.contest.pair_bench import PairBench
from runtime.measuring.contest.start_log import Written
from runtime.measuring.contest.variant import Variant, hetero_variant
from runtime.measuring.process import retry
from runtime.measuring.process.child import Child, ChildError
from tests.campaigns.cgroups import memory_group
from tests.campaigns.commands import environment
from tests.campaigns.fake_device import FAULT, SLOWEST, SPLIT, SPOILT, FakeDevices
from tests.campaigns.faults import run_with_fault
from tests.campaigns.runner import Campaign, Case, Judge, require

PROGRAM = "tests.campaigns.fake_device"
ROOT = Path(__file__).parent.parent.parent
QUICK = (
    *(*SPOILT, "refuses", "elsewhere", "throttles", "slow turns", "disappears"),
    *("out of memory", "killed", "crashes", "half an answer"),
)
SLOW = ("eats memory", "eats memory of a cgroup", "stopped", "late")
FAILURES: Mapping[str, FailureKind] = {
    **dict.fromkeys(("killed", "crashes", "half an answer"), "crashed"),
    **dict.fromkeys(("out of memory", "eats memory", "eats memory of a cgroup"), "out_of_memory"),
    **dict.fromkeys(("stopped", "late"), "timeout"),
    "disappears": "refused",
}
WHOM = ("split", "one", "B", "all")
SLOW_SHARE = 0.1
TIMEOUT_S = 8.0  # a process takes part of a second to start, and many times that on a busy machine
START_S = 0.01  # of turns in a start
GROUP_BYTES = 256 << 20
CERTAIN = 1.02  # what a claim may be off: the noise of the fakes is a tenth of that
PLENTY_S = 300.0
SETTINGS = MeasureSettings(timeout_s=TIMEOUT_S, least_starts=3, starts=4, finalists=2, realtime=False, start_s=START_S)


@dataclass(frozen=True, slots=True)
class Told:
    """How a run ended. split: whether the answer runs on several devices. low: of the gain that is claimed."""

    code: int
    words: str
    split: bool = False
    low: float = 1.0


Run = Callable[[Case, Mapping[str, Any]], Told]


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what measures devices that have a fault."""
    from coarsen.reading.model.read import save_model
    from tests.models import two_towers

    model, template = folder / "towers.xml", folder / "template"
    save_model(two_towers(2, width=16), model)
    paths = {"PLACEWRIGHT_LOCK": str(folder / "lock"), "PLACEWRIGHT_STORE": str(folder / "default")}
    with (
        environment(**paths, CI="true", PYTHONPATH=str(ROOT)),
        patch.dict(Child.__init__.__kwdefaults__ or {}, run=PROGRAM),
        patch.object(contenders.run_start, "__defaults__", (START_S,)),  # of the screening
        patch.object(retry, "await_retry", lambda: None),
        memory_group(GROUP_BYTES) as group,
    ):

        def tune(case: Case, fault: Mapping[str, Any]) -> Told:
            if not template.exists():
                template.mkdir()
                begun = run_tune(model, Case(case.seed, case.rng, template), without_fault(folder))
                require(begun.code == 0 and begun.split, f"undisturbed, the split is not found: {begun}")
                shutil.rmtree(template / "run")
                shutil.rmtree(template / "store" / "series")
                forget(template / "store", "measure")
            if not (case.folder / "store").exists():
                shutil.copytree(template, case.folder, dirs_exist_ok=True)
                if case.rng.random() < 0.3:
                    forget(case.folder / "store", "profile", "place")
            return run_tune(model, case, fault)

        ways: dict[int, tuple[str, Run]] = {0: ("contest", compare), 15: ("tune", tune)}

        def judge(case: Case) -> str:
            name, run = ways.get(case.seed % 32 if case.seed % 8 else 0, ("contest in one process", compare_here))
            return hurt_devices(case, name, run, group)

        yield judge


def without_fault(marks: Path) -> dict[str, Any]:
    """Return no fault."""
    return {"kind": "", "whom": "all", "after": 0, "times": 0, "marks": str(marks)}


def run_tune(model: Path, case: Case, fault: Mapping[str, Any]) -> Told:
    """Return how `tune` ends in a fork; outputs are those of the source that it has read."""
    from tests.e2e.conftest import options

    folder = case.folder
    own = {
        f"measure__{n}": getattr(SETTINGS, n) for n in ("timeout_s", "least_starts", "starts", "finalists", "start_s")
    }
    own |= {"measure__use": "hetero", "measure__settings": "false", "profile__timeout_s": TIMEOUT_S}
    common = options(folder / "store", **own, place__reward="simulated")
    arguments = ["tune", str(model), "--run", str(folder / "run"), "--budget", f"{PLENTY_S:g}s", *common, "--json"]
    with environment(**{FAULT: json.dumps(fault)}):
        ended, _ = run_with_fault(arguments, None, folder / "out.txt", case.rng)
    if ended.code:
        return Told(ended.code, ended.err)
    document = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    best = next(c for c in document["candidates"] if c["name"] == document["best"])
    low = document["speedup_over_best_single"]["low"] or 1.0
    return Told(0, document["verdict"], len(best["devices_used"]) > 1, low)


def compare(case: Case, fault: Mapping[str, Any]) -> Told:
    """Return how a contest of the devices alone, and of both, ends."""
    folder, right = case.folder, np.linspace(-1.0, 2.0, 64, dtype=np.float32).reshape(1, 64)
    (folder / "store" / "series").mkdir(parents=True, exist_ok=True)
    np.savez(folder / "reference.npz", **{"noise/output_0": right})
    with environment(**{FAULT: json.dumps(fault)}), PairBench(folder / "model.xml", SETTINGS, case.seed) as bench:
        written = Written.of(bench, folder / "store" / "series" / "starts.jsonl", "")
        try:
            found = run_contest(
                measured_variants(), lambda _: (), written, SETTINGS, Deadline.after(PLENTY_S), say=lambda _: None
            )
        except ChildError as error:
            return Told(error.exit_code, str(error))
    return told_by(found)


class DeviceHere(FakeDevices):
    """Devices in this process: what would end their process is told as the parent of one tells it."""

    def __init__(self, fault: Mapping[str, Any]) -> None:
        super().__init__(fault)
        self.turn_s = 0.0

    def fail(self) -> None:
        """Raise what the parent of a process raises."""
        if self.strikes(*FAILURES):
            kind = FAILURES[self.fault["kind"]]
            raise ChildError(MeasurementFailed(kind, self.fault["kind"]))


class ChildHere:
    """Stands for a measuring process."""

    def __init__(self, **_: Any) -> None:
        self.devices, self.rests, self.pid = DeviceHere(json.loads(os.environ[FAULT])), False, os.getpid()

    def ask(self, do: str, *, timeout_s: float | None = None, **command: Any) -> Any:
        """Return the answer to a command, which goes through JSON as usual."""
        try:
            return json.loads(json.dumps(self.devices.answer(json.loads(json.dumps({"do": do, **command})))))
        except RuntimeError as error:
            if isinstance(error, ChildError):
                raise
            raise ChildError(MeasurementFailed("refused", str(error))) from error

    def close(self) -> None:
        """Do nothing."""


def compare_here(case: Case, fault: Mapping[str, Any]) -> Told:
    """Return how the same contest ends with devices in this process."""
    with patch.object(pair_bench, "Child", ChildHere):
        return compare(case, fault)


def measured_variants() -> list[Variant]:
    """Return the default, both devices alone, and both together."""
    a, b = (DeviceSpec(name, "CPU", f"CPU_{name}", {}, kind="cpu") for name in "AB")
    cpu = DeviceSpec("CPU", "CPU", "CPU", {}, kind="cpu")
    alone = [Variant(d.name, "baseline", d.openvino_name, (d,), single=True) for d in (a, b)]
    default = Variant("CPU default", "baseline", "CPU", (cpu,), single=True, kind="default")
    return [default, *alone, hetero_variant("both", "greedy", (a, b), {"x": "CPU_A", "y": "CPU_B"})]


def told_by(found: Contest) -> Told:
    """Return what a contest says."""
    judgement = found.judgement
    if not found.control:
        return Told(5, "nothing runs")
    if judgement is None or "both" not in judgement.claimed:
        return Told(0, "no gain is claimed")
    return Told(0, str(judgement.ratios["both"]), True, judgement.ratios["both"].low or 1.0)


def check_turns(store: Path, marks: Path, what: str) -> list[str]:
    """Require that each time in a journal was measured, and is there once; return the journals' lines."""
    lines, turns = [], Counter[str]()
    for journal in sorted((store / "series").rglob("*.jsonl")):
        for line in journal.read_text(encoding="utf-8").split("\n")[:-1]:
            lines.append(line)
            start = json.loads(line).get("start", {})
            turns.update(repr(value) for name in ("variant_s", "control_s") for value in start.get(name, ()))
    measured = set((marks / "turns").read_text(encoding="utf-8").split()) if (marks / "turns").exists() else set()
    wrong = {value for value, times in turns.items() if times > 1 or value not in measured}
    require(not wrong, f"{what}: {len(wrong)} of {len(turns)} turns are counted that nobody measured, or twice")
    return lines


def hurt_devices(case: Case, name: str, run: Run, group: Path | None) -> str:
    """Run with a fault and without, and judge both."""
    rng, folder, marks = case.rng, case.folder, case.folder / "marks"
    marks.mkdir()
    kind = str(rng.choice(SLOW if rng.random() < SLOW_SHARE else QUICK))
    if kind == "eats memory of a cgroup" and group is None:
        return f"{kind}: skipped, no group can be made"
    whom, times = str(rng.choice(WHOM)), int(rng.choice([0, 0, 1, 2]))
    after = int(rng.choice([0, rng.integers(1, 20), rng.integers(1, 200)]))
    fault = {"kind": kind, "whom": whom, "after": after, "times": times, "marks": str(marks), "cgroup": str(group)}
    what = f"{kind}, {whom}, after {after}, {times or 'always'}"
    ended = run(case, fault)
    struck = (marks / "struck").exists()
    fatal = struck and kind not in ("throttles", "slow turns")
    require(ended.code == 0 or (fatal and ended.code in (4, 5, 6)), f"{what}: ends with {ended}")
    lines = check_turns(folder / "store", marks, what)
    most = CERTAIN * (SLOWEST if fatal else 1.0) / SPLIT  # over what is left of the baselines
    require(math.isfinite(ended.low) and ended.low <= most, f"{what}: claims too much: {ended}")
    if struck and after == times == 0 and whom == "split" and kind not in ("throttles", "slow turns"):
        require(not ended.split, f"{what}: a split is the answer: {ended}")
    require(struck or ended.split, f"{what}: not struck, and the split is not found: {ended}")
    again = run(case, without_fault(marks))
    require(again.code == 0 or (ended.code and kind in SPOILT), f"{what}: then ends with {again}")
    require(check_turns(folder / "store", marks, what)[: len(lines)] == lines, f"{what}: starts are lost")
    require(again.low <= most, f"{what}: then claims too much: {again}")
    return f"{name}, {kind}{'' if struck else ', not struck'}"


def forget(root: Path, *stages: str) -> None:
    """Remove what some stages made from a store."""
    store = Store(root)
    for key in store.list_keys():
        entry = store.find(key)
        if entry is not None and entry.parts["stage"] in stages:
            store.remove(key)


CAMPAIGN = Campaign("devices", 1.0, begin)
