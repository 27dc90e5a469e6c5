"""What reads files and messages, called in this process, hundreds of times as fast as by the command line.

Every end is an error with a cause and a remedy, or what the file says: settings, jobs and manifests that are the same
when they are written and read again; graphs and machines that can be simulated, with a bound that is not above; of
damaged journals, snapshots and entries what was written, or nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.errors import PlacewrightError
from pipeline.core.graph import Grouping
from pipeline.core.learning import Snapshot
from pipeline.core.stages import Subject
from pipeline.gate.gate_file import GateOptions, read_gate
from pipeline.offline.scenario import Scenario, load, read_placement
from pipeline.progress.curve import read_rows
from pipeline.report.run import RunRecords
from pipeline.result.deployment import Deployment
from pipeline.scenario.scenario_file import read_scenario
from pipeline.settings.registry import build_implementation
from pipeline.store.checkpoint import FolderCheckpointer, read_policy
from pipeline.system.json_lines import append_line, load_lines
from pipeline.system.workers import Worker
from runtime.calibration.machine_lines import SCHEMA, read_machine_lines
from runtime.executor.placed.errors import ManifestError
from runtime.executor.placed.manifest import read_manifest
from runtime.measuring.process.child import Child, ChildError
from tests.campaigns import files
from tests.campaigns.mutation import mutate_bytes, mutate_document
from tests.campaigns.runner import Campaign, Case, Judge, require

CLOSE = 1e-9
SCENARIO: dict[str, Any] = {
    "objective": "load",
    "memory": "4GiB",
    "load_time": "5s",
    "processor": 1.5,
    "models": [
        {"name": "a", "model": "a.xml", "rate": 15, "deadline": "60ms", "percentile": 95, "devices": ["CPU"]},
        {
            "name": "b",
            "model": "zoo:resnet50",
            "after": "a",
            "calls": 2.0,
            "late": "drop",
            "weight": 2.0,
            "deadline": "1s",
        },
        {"name": "c", "model": "c.xml", "concurrency": 2, "phases": [{"name": "p", "shape": ["1,3"], "share": 0.5}]},
    ],
}
GATE: dict[str, Any] = {
    "before": ["a.xml", "NUM_STREAMS=1"],
    "after": "b.xml",
    "budget": "2m",
    "device": "CPU",
    "accuracy": "usual",
    "limits": {"latency": "3%", "memory of running": "10%"},
    "model": [{"path": "m.xml", "shapes": ["x=1,3"]}],
    "accept": [{"model": "m.xml", "what": "latency", "until": date(2027, 1, 1), "reason": "known"}],
}
SPLIT: dict[str, Any] = {
    "schema": "placewright.split/1",
    "source": "0" * 64,
    "runner": "serial",
    "requests": 1,
    "devices": {"D": {"openvino_name": "CPU", "plugin": "CPU", "properties": {"A": "1"}}},
    "tensors": {"t": {"shape": [1, 3], "type": "f32"}, "u": {"shape": None, "type": "f32"}},
    "inputs": [{"tensor": "t", "names": ["x"]}],
    "outputs": [{"tensor": "u", "names": []}],
    "segments": [
        {"id": "s", "file": "s.xml", "sha256": "0" * 64, "device": "D", "priority": 0.5}
        | {"inputs": ["t"], "outputs": ["u"], "operations": ["a", "b"]}
    ],
}
MACHINE: dict[str, Any] = {
    "schema": SCHEMA,
    "fingerprint": "f" * 64,
    "machine": "m",
    "runtime": "r",
    "device": "CPU",
    "model": "x",
    "sha256": "0" * 64,
    "latency_s": 1e-3,
    "rows": [["Add", 1.0, 2.0, 3.0, 1e-6]],
}
RECORDS = [
    {"context": "c", "key": f"final {i}", "start": {"ours": [1e-3 * i, 2e-3], "name": f"\u00fc{i}"}} for i in range(4)
]
ANSWERS: tuple[Any, ...] = (
    {"samples_s": [1e-3, 2e-3], "window": [0.0, 1.0]},
    {"error": {"kind": "refused", "message": "no"}},
    {"done": [{"key": "k", "ran": True}]},
    {"begun": "read"},
)
RULES = (
    ("listsched", {"level": "T2"}),
    ("listsched", {"level": "T0"}),
    ("sequential", {}),
    ("pipelined", {}),
    ("latency", {}),
)


OFFLINE = ("graph", "msr", "topology", "costs", "pins", "placement")


def refused(read: Callable[[], Any], codes: tuple[int, ...] = (2, 3, 4)) -> tuple[Any, bool]:
    """Return what is read, and whether it is refused instead, in one line of cause and one of remedy."""
    try:
        return read(), False
    except PlacewrightError as error:
        require(error.exit_code in codes, f"exit code {error.exit_code}: {error}")
        require(error.cause.strip() and error.remedy.strip(), f"without cause or remedy: {error!r}")
        return None, True


def try_offline(case: Case, which: str) -> str:
    """Read a graph, machine, costs, pins and placement of which one is mutated, and simulate some placements."""
    documents: dict[str, tuple[str, Any, bool]] = {
        "graph": ("g.json", files.GRAPH, False),
        "msr": ("g.json", files.MSR, False),
        "topology": ("t.toml", files.TOPOLOGY, True),
        "costs": ("c.json", files.COSTS, False),
        "pins": ("pins.json", dict(list(files.PLACEMENT.items())[:2]), False),
        "placement": (
            "p.json",
            {"placement": files.PLACEMENT, "priority": {n: i for i, n in enumerate(files.NAMES)}},
            False,
        ),
    }
    wanted = {"graph", "topology", which} - ({"topology", "graph"} if which == "msr" else set())
    paths = {}
    for part in wanted:
        name, document, toml = documents[part]
        write = files.write_mutated if part == which else files.write_plain
        paths[part] = write(case, name, document, toml=toml)
    rules, options = RULES[case.rng.integers(len(RULES))]
    scenario = Scenario(
        str(paths.get("msr", paths.get("graph", ""))),
        str(paths.get("topology", "")),
        costs=paths.get("costs"),
        pins=paths.get("pins"),
        evaluator=rules,
        level=options.get("level", ""),
    )
    loaded, no = refused(lambda: load(scenario), (2, 3, 4))
    if no:
        return f"{which} refused"
    if which == "placement":
        placement, no = refused(lambda: read_placement(paths["placement"], loaded))
        if no:
            return f"{which} refused"
        again = placement.to_document(loaded.graph.names)
        require(set(again["placement"]) == set(loaded.graph.names), "a placement that lacks operations")
    problem = loaded.problem
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, loaded.costs, 0)
    simulator, no = refused(lambda: build_implementation("measure", rules, options).bind(subject))
    if no:  # it has a backward pass, and this is of inferences
        return f"{which} refused"
    device = case.rng.integers(problem.topology.p, size=(6, problem.graph.n)).astype(np.int32)
    device[0] = 0
    found = simulator.simulate(device)
    one_by_one = [float(simulator.fork().simulate(row[None]).value_s[0]) for row in device]
    require(not np.isnan(found.value_s).any(), f"{rules}: takes {found.value_s}")
    require((found.value_s >= 0).all(), f"{rules}: takes {found.value_s}")
    require(found.value_s.tolist() == one_by_one, f"{rules}: {found.value_s} together, {one_by_one} one by one")
    for i, row in enumerate(device):
        allowed = problem.allowed[np.arange(problem.graph.n), row].all()
        work_s = loaded.costs.op_s[np.arange(problem.graph.n), row]
        if allowed and rules == "sequential":
            least = math.fsum(work_s.tolist())
            require(found.value_s[i] >= least * (1 - CLOSE), f"takes {found.value_s[i]}, its operations {least}")
    return f"{which} simulated"


def try_scenario(case: Case) -> str:
    """Read a mutated scenario."""
    for name in ("a", "c"):
        (case.folder / f"{name}.xml").write_text("<net/>", encoding="utf-8")
    path = files.write_mutated(case, "s.toml", SCENARIO, toml=True)
    scenario, no = refused(lambda: read_scenario(path), (2,))
    if no:
        return "scenario refused"
    names = [load.name for load in scenario.scenario.models]
    require(len(set(names)) == len(names), f"two models are called {names}")
    require(all(Path(name).name == name for name in names), f"a model is called {names}")
    return "scenario read"


def try_gate(case: Case) -> str:
    """Read a mutated gate file beside models that are there."""
    for name in ("a", "b", "m"):
        (case.folder / f"{name}.xml").write_text("<net/>", encoding="utf-8")
    path = files.write_mutated(case, "gate.toml", GATE, toml=True)
    gate, no = refused(lambda: read_gate(GateOptions(file=path)), (2,))
    if no:
        return "gate refused"
    require(gate.budget_s > 0 and math.isfinite(gate.budget_s), f"a budget of {gate.budget_s} s")
    require(all(0 <= limit < math.inf for m in gate.models for limit in m.limits.values()), "limits")
    return "gate read"


def try_manifest(case: Case) -> str:
    """Read a mutated manifest of a model in segments."""
    files.write_mutated(case, "manifest.json", SPLIT)
    try:
        manifest = read_manifest(case.folder)
    except ManifestError as error:
        require(str(error).strip(), "an error without words")
        return "manifest refused"
    (case.folder / "manifest.json").write_text(json.dumps(asdict(manifest)), encoding="utf-8")
    require(read_manifest(case.folder) == manifest, "a manifest changes when it is written")
    return "manifest read"


def try_journal(case: Case) -> str:
    """Damage a journal: what is read is what was written, and what is added is there."""
    path = case.folder / "starts.jsonl"
    for record in RECORDS:
        append_line(path, record)
    content = path.read_bytes()
    if case.rng.random() < 0.5:
        content = mutate_bytes(case.rng, content, int(case.rng.integers(1, 4)))
    else:
        lines = [json.loads(line) for line in content.splitlines()]
        content = "".join(json.dumps(d) + "\n" for d in mutate_document(case.rng, lines, 2)).encode(errors="replace")
    path.write_bytes(content)
    found = list(load_lines(path))
    known = [json.dumps(record) for record in RECORDS]
    require(all(json.dumps(record) in known for record in found), f"a damaged journal says {found}")
    append_line(path, {"context": "c", "key": "new"})
    require(list(load_lines(path)) == [*found, {"context": "c", "key": "new"}], "what is added is not there")
    return f"journal of {len(found)}"


def try_machines(case: Case) -> str:
    """Read a mutated file of calibrations."""
    path = case.folder / "m.jsonl"
    document = mutate_document(case.rng, MACHINE, int(case.rng.integers(0, 3)))
    content = (json.dumps(document) + "\n").encode(errors="replace")
    path.write_bytes(content if case.rng.random() < 0.7 else mutate_bytes(case.rng, content, 2))
    lines, no = refused(lambda: read_machine_lines(path), (2,))
    return "machine refused" if no else f"machine of {len(lines)}"


def try_curve(case: Case) -> str:
    """Read a mutated curve."""
    rows = [{"evaluations": i, "best_s": 1.0 / (i + 1), "elapsed_s": 0.1 * i} for i in range(3)]
    path = case.folder / "curve.jsonl"
    path.write_bytes(mutate_bytes(case.rng, "".join(json.dumps(r) + "\n" for r in rows).encode(), 2))
    rows, no = refused(lambda: read_rows(path))
    require(no or all(isinstance(row, Mapping) for row in rows), f"rows {rows}")
    return "curve refused" if no else "curve read"


def try_snapshot(case: Case) -> str:
    """Damage what a placer left: it is not gone on from, or as it was."""
    arrays = {"w": case.rng.standard_normal((2, 3)).astype(np.float32), "n": np.arange(3)}
    state = Snapshot(arrays, {"step": 3, "name": "\u00fc"})
    keeper = FolderCheckpointer(case.folder, "c")
    keeper.save(state)
    keeper.publish(state)
    name = str(case.rng.choice(["state", "policy"]))
    path = case.folder / f"{name}.safetensors"
    before = path.read_bytes()
    path.write_bytes(mutate_bytes(case.rng, before, 1))
    if path.read_bytes() == before:
        return "snapshot as it was"
    if name == "state":
        require(keeper.load() is None, "goes on from a damaged snapshot")
        return "state refused"
    _, no = refused(lambda: read_policy(path), (2,))
    require(no, "a damaged policy is read")
    return "policy refused"


def try_run(case: Case, run: Path) -> str:
    """Read a run of which one file was mutated."""
    folder = case.folder / "run"
    folder.mkdir()
    for each in run.iterdir():
        (folder / each.name).symlink_to(each)
    name = str(case.rng.choice([p.name for p in run.iterdir() if p.suffix in (".json", ".jsonl", ".npz")]))
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if name.endswith(".json") and case.rng.random() < 0.8:
        content = json.dumps(mutate_document(case.rng, json.loads(content), int(case.rng.integers(1, 4)))).encode(
            errors="replace"
        )
    else:
        content = mutate_bytes(case.rng, content, int(case.rng.integers(1, 4)))
    (folder / name).write_bytes(content)
    records, no = refused(lambda: RunRecords.load(folder), (2, 3, 4))
    deployment, broken = refused(lambda: Deployment.load(folder), (2, 3, 4))
    if not broken:
        require(deployment.model.parent == folder, f"a run deploys {deployment.model}")
    if not no:
        refused(records.timeline, (2, 3, 4, 5))
    return f"run {'refused' if no else 'read'}"


class _Pipe:
    """What a process says, without one. It stands for `Piped`."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.process = self

    def send(self, line: bytes, **_: Any) -> None:
        """Take a command."""

    def receive(self, **_: Any) -> bytes:
        """Return what was said."""
        return self.line

    def poll(self) -> int:
        """Return an exit status."""
        return 0

    def kill(self) -> None:
        """Do nothing: there is no process."""

    def wait(self) -> int:
        """Return an exit status."""
        return 0

    def last_words(self, _: int = 0) -> str:
        """Return what it said at last."""
        return ""


def try_message(case: Case) -> str:
    """Hand a mutated answer of a measuring child and of a worker to who asked."""
    document = ANSWERS[case.rng.integers(len(ANSWERS))]
    changed = mutate_document(case.rng, document, int(case.rng.integers(0, 3)))
    line = json.dumps(changed).encode(errors="replace") + b"\n"
    line = mutate_bytes(case.rng, line, 1) if case.rng.random() < 0.5 else line
    child = Child.__new__(Child)
    child.timeout_s, child._oom_kills, child.rests, child._stopped = 1.0, 0, False, False
    child.piped = _Pipe(line)  # type: ignore[assignment]
    worker = Worker.__new__(Worker)
    worker.at, worker.doing, worker.asked, worker._quiet_until, worker._piped = "k", "", 1, 0, child.piped  # type: ignore[assignment]
    try:
        answer = child.ask("run")
        require(isinstance(answer, Mapping), f"an answer is {answer!r}")
    except ChildError as error:
        require(error.failed.kind in ("refused", "out_of_memory", "timeout", "crashed", "wrong_output"), str(error))
    told = worker.answer(line)
    require(told is None or isinstance(told, Mapping), f"a worker answers {told!r}")
    return "message"


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what tries a reader."""
    from tests.reports import finished

    run = finished(folder / "run")
    trials: list[Callable[[Case], str]] = [
        *(lambda case, which=which: try_offline(case, which) for which in OFFLINE),
        *(files.try_settings, files.try_jobs, try_scenario, try_gate, try_manifest, try_journal, try_machines),
        *(try_curve, try_snapshot, try_message, lambda case: try_run(case, run)),
    ]

    def judge(case: Case) -> str:
        with np.errstate(all="raise", under="ignore"):
            return trials[case.seed % len(trials)](case)

    own = {"PLACEWRIGHT_STORE": str(folder / "store"), "PLACEWRIGHT_LOCK": str(folder / "lock")}
    with files.environment(**own):
        yield judge


CAMPAIGN = Campaign("readers", 2.0, begin)
