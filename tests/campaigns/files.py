"""Files that users and other programs write, mutated: every end is an error of one line, or a right answer.

An answer of a search is right if `simulate` finds the same seconds for its placement, and its bound does not exceed
them; that of a bound, if a search does not fall below it.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.errors import PlacewrightError
from pipeline.fleet.jobs import read_jobs
from pipeline.settings.config import Settings, flatten_settings, read_toml
from pipeline.store.store import Store, write_json
from tests.campaigns.commands import Ended, environment, run_command
from tests.campaigns.mutation import mutate_bytes, mutate_document
from tests.campaigns.runner import Campaign, Case, Judge, require

CLOSE = 1e-9  # two sums of the same times, in another order
GRAPH: dict[str, Any] = {
    "format": "placewright.graph/1",
    "link_bytes_per_s": 12e9,
    "memory_bytes": 1000000,
    "operations": [
        {"name": "x", "type": "Parameter", "output_bytes": 602, "time_s": {"*": 0}},
        {"name": "a", "type": "Convolution", "flops": 2e6, "weight_bytes": 376, "time_s": {"D0": 1e-3, "*": 2e-4}},
        {"name": "b", "type": "Relu", "flops": 8, "output_bytes": 90, "time_s": {"*": 1e-4}, "shape": [1, -1, 3]},
        {"name": "c", "type": "MatMul", "colocate": "k", "time_s": {"D0": None, "*": 1e-4}, "layer": 1, "step": 0},
        {"name": "d", "type": "Add", "colocate": "k", "time_s": {"*": 1e-4}},
    ],
    "edges": [
        {"from": "x", "to": "a"},
        {"from": "x", "to": "b", "bytes": 300},
        {"from": "a", "to": "c", "output": 0, "bytes": 30},
        {"from": "b", "to": "d"},
        {"from": "c", "to": "d"},
    ],
}
MSR: dict[str, Any] = {
    "maxSizePerFPGA": 629145600.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": i, "name": f"n{i}", "supportedOnFpga": i != 2, "cpuLatency": 10.0 + i, "fpgaLatency": 1.0, "size": 10.0}
        | {"isBackwardNode": i > 3, "colorClass": i % 3}
        for i in range(6)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.5, "size": 10.0} for i in range(5)],
}
TOPOLOGY: dict[str, Any] = {
    "links": {"bytes_per_s": "12GB/s", "latency_s": 20e-6},
    "device": [
        {"name": "D0", "kind": "cpu", "memory_bytes": "64GiB"},
        {"name": "D1", "kind": "gpu", "chip": "p100", "launch_s": 4e-6, "efficiency": {"conv": 0.5, "gemm": 0.5}},
    ],
    "link": [{"from": "D0", "to": "D1", "bytes_per_s": 25e9, "latency_s": 1e-5, "both_ways": False}],
}
NAMES = [op["name"] for op in GRAPH["operations"]]
COSTS = {name: {"D0": 1e-3, "D1": 2e-3} for name in NAMES}
PLACEMENT = dict(zip(NAMES, ("D0", "D1", "D0", "D1", "D1"), strict=True))
SETTINGS: dict[str, Any] = {
    "devices": ["A=CPU{INFERENCE_NUM_THREADS=4}", "GPU"],
    "budget": "2m",
    "seed": 1,
    "coarsen": {"use": ["fuse", "metis"], "metis": {"parts": 64}},
    "place": {"use": ["portfolio", "hsdag"], "evaluations": 2000, "finalists": 2},
    "measure": {"use": "hetero", "level": 0.95, "percentile": 50, "settings": False},
}
JOBS = {
    "defaults": {"place.use": "greedy", "budget": "10s"},
    "jobs": [
        {"name": "j", "models": ["a.xml", "zoo:resnet50"], "devices": ["CPU", "A=CPU{INFERENCE_NUM_THREADS=1}"]},
        {"models": ["b.onnx"], "seeds": [0, 1], "settings": [{"place.evaluations": 10}, {}], "machines": "every"},
    ],
}
Trial = Callable[[Case], str]


def toml_text(document: Any) -> str:
    """Return a document as TOML: one line per key, whose value is inline."""
    rows = (f"{json.dumps(str(k))} = {_inline(v)}\n" for k, v in document.items() if v is not None)
    return "".join(rows)


def _inline(value: Any) -> str:
    match value:
        case dict():
            pairs = (f"{json.dumps(str(k))} = {_inline(v)}" for k, v in value.items() if v is not None)
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join(_inline(v) for v in value if v is not None) + "]"
        case date():
            return value.isoformat()
        case float():
            return "nan" if math.isnan(value) else repr(value)
        case _:
            return json.dumps(value)


def write_mutated(case: Case, name: str, document: Any, *, toml: bool = False) -> Path:
    """Write a mutated document into the folder of a case: changed in its structure, in its bytes, or in both."""
    rng, path = case.rng, case.folder / name
    changed = mutate_document(rng, document, int(rng.integers(0, 4)))
    holds_table = isinstance(changed, Mapping)
    text = toml_text(changed) if toml and holds_table else json.dumps(changed, default=str)
    content = text.encode(errors="replace")
    path.write_bytes(mutate_bytes(rng, content, int(rng.integers(1, 4))) if rng.random() < 0.3 else content)
    return path


def write_plain(case: Case, name: str, document: Any, *, toml: bool = False) -> Path:
    """Write a document as it is."""
    path = case.folder / name
    path.write_text(toml_text(document) if toml else json.dumps(document), encoding="utf-8")
    return path


def became(ended: Ended) -> str:
    """Return in a word how a command ended."""
    return "answered" if ended.code == 0 else f"refused ({ended.code})"


def check_search(case: Case, graph: Path, *options: str | Path) -> str:
    """Search, and hold the answer against what `simulate` says of it."""
    rules = str(case.rng.choice(["listsched", "listsched", "sequential", "pipelined", "latency"]))
    given = ["--evaluator", rules, *options, "--json"]
    placer = str(case.rng.choice(["greedy", "portfolio", "anneal", "heft", "single"]))
    ended = run_command("search", graph, *given, "--placer", placer, "--evaluations", "12", "--quiet")
    if ended.code:
        return became(ended)
    answer = ended.document
    if answer["value_s"] is None:
        return "no placement"
    require(answer["lower_bound_s"] <= answer["value_s"] * (1 + CLOSE), f"a bound above the answer: {ended.out[:600]}")
    (case.folder / "answer.json").write_text(ended.out, encoding="utf-8")
    plain = [o for o in given if o != "--pins" and o != case.folder / "pins.json"]
    again = run_command("simulate", graph, *plain, "--placement", case.folder / "answer.json")
    require(again.code == 0, f"an answer that cannot be simulated: {again.err}")
    said = again.document["value_s"]
    require(math.isclose(said, answer["value_s"], rel_tol=1e-6), f"search says {answer['value_s']}, simulate {said}")
    return "answered"


def try_graph(case: Case) -> str:
    """Search on a mutated graph of our own format."""
    graph = write_mutated(case, "g.json", GRAPH)
    return check_search(case, graph, "--topology", write_plain(case, "t.toml", TOPOLOGY, toml=True))


def try_msr(case: Case) -> str:
    """Search on a mutated graph of the format of Tarnawski et al."""
    return check_search(case, write_mutated(case, "g.json", MSR))


def try_topology(case: Case) -> str:
    """Search on a mutated machine."""
    graph = write_plain(case, "g.json", GRAPH)
    return check_search(case, graph, "--topology", write_mutated(case, "t.toml", TOPOLOGY, toml=True))


def try_costs(case: Case) -> str:
    """Search with mutated costs, as JSON or CSV."""
    topology = write_plain(case, "t.toml", TOPOLOGY, toml=True)
    graph = write_plain(case, "g.json", GRAPH)
    if case.rng.random() < 0.5:
        return check_search(case, graph, "--topology", topology, "--costs", write_mutated(case, "c.json", COSTS))
    rows = "operation,D0,D1\n" + "".join(f"{name},1e-3,{i}\n" for i, name in enumerate(NAMES))
    (case.folder / "c.csv").write_bytes(mutate_bytes(case.rng, rows.encode(), int(case.rng.integers(0, 3))))
    return check_search(case, graph, "--topology", topology, "--costs", case.folder / "c.csv")


def try_placement(case: Case) -> str:
    """Simulate a mutated placement, or search with it as pins."""
    topology = write_plain(case, "t.toml", TOPOLOGY, toml=True)
    graph = write_plain(case, "g.json", GRAPH)
    if case.rng.random() < 0.5:
        pins = write_mutated(case, "pins.json", dict(list(PLACEMENT.items())[:2]))
        return check_search(case, graph, "--topology", topology, "--pins", pins)
    answer = {"placement": PLACEMENT, "priority": {name: i for i, name in enumerate(NAMES)}}
    placement = write_mutated(case, "p.json", PLACEMENT if case.rng.random() < 0.5 else answer)
    return became(run_command("simulate", graph, "--topology", topology, "--placement", placement, "--json"))


def try_settings(case: Case) -> str:
    """Read mutated settings as --config does; what is taken is written and read back as it was."""
    path = write_mutated(case, "s.toml", SETTINGS, toml=True)
    try:
        settings = Settings().updated(flatten_settings(read_toml(path)), str(path))
    except PlacewrightError as error:
        require(error.exit_code in (2, 4), f"exit code {error.exit_code}: {error}")
        return "refused"
    again = Settings.from_json(json.loads(json.dumps(settings.to_json())))
    require(again == settings, f"settings change when they are written: {settings} != {again}")
    return "answered"


def try_jobs(case: Case) -> str:
    """Read a mutated file of jobs; every job's name is one folder name."""
    try:
        jobs = read_jobs(write_mutated(case, "jobs.toml", JOBS, toml=True))
    except PlacewrightError as error:
        require(error.exit_code == 2, f"exit code {error.exit_code}: {error}")
        return "refused"
    for job in jobs:
        require(Path(job.name).name == job.name and job.name not in ("", ".", ".."), f"a job is called {job.name!r}")
        (case.folder / job.name).mkdir()
    return "answered"


def try_batch(case: Case) -> str:
    """Start a batch of mutated jobs whose models are not there."""
    path = write_mutated(case, "jobs.toml", JOBS, toml=True)
    with contextlib.suppress(PlacewrightError):
        if any(job.model.startswith("zoo:") for job in read_jobs(path)):
            return "left out"  # it would be measured
    return became(run_command("batch", path, "--out", case.folder / "out", "--store", case.folder / "s", "--quiet"))


def try_run(case: Case, run: Path) -> str:
    """Report on, emit and compare a run of which one file was mutated."""
    folder = case.folder / "run"
    shutil.copytree(run, folder)
    name = str(
        case.rng.choice(["result.json", "placement.json", "manifest.json", "curve.jsonl", "graph.npz", "profile.npz"])
    )
    if name.endswith(".json"):
        document = json.loads((run / name).read_text(encoding="utf-8"))
        write_mutated(Case(case.seed, case.rng, folder), name, document)
    else:
        (folder / name).write_bytes(mutate_bytes(case.rng, (run / name).read_bytes(), int(case.rng.integers(1, 4))))
    commands: list[list[str | Path]] = [
        ["report", folder, "--out", case.folder / "page.html"],
        [
            "emit",
            folder,
            "--to",
            str(case.rng.choice(["python", "cpp", "placement"])),
            "--out",
            case.folder / "emitted",
        ],
        ["compare", run, folder],
        ["cache", "why", "read", "--run", folder, "--store", case.folder / "s"],
        ["report", case.folder, "--out", case.folder / "index.html"],
    ]
    return became(run_command(*commands[case.rng.integers(len(commands))]))


def try_store(case: Case) -> str:
    """List and clean a store of which one entry was mutated; what it says is intact is what was put in."""
    store = Store(case.folder / "store")
    content = {}
    for i in range(3):
        key = f"{i:02x}" * 32
        with store.scratch() as scratch:
            (scratch / "payload").mkdir()
            write_json(scratch / "payload" / "answer.json", {"answer": i})
            content[key] = (scratch / "payload" / "answer.json").read_bytes()
            store.add(key, {"stage": "read", "name": "x", "params": {}}, {"made_at": 1.7e9 + i}, scratch / "payload")
    key = f"{int(case.rng.integers(3)):02x}" * 32
    path = store.folder(key) / str(case.rng.choice(["entry.json", "entry.json", "answer.json"]))
    path.chmod(0o600)
    before = path.read_bytes()
    document = mutate_document(case.rng, json.loads(before), 1)
    path.write_bytes(
        mutate_bytes(case.rng, before, 1) if case.rng.random() < 0.4 else json.dumps(document).encode(errors="replace")
    )
    listed = run_command("cache", "ls", "--store", store.root, "--json")
    require(listed.code == 0 and len(listed.document) == 3, f"of three entries are listed: {listed.out}{listed.err}")
    run_command("cache", "ls", "--store", store.root)
    kinds = []
    for each, whole in content.items():
        entry = store.intact(each)
        kinds.append("whole" if entry else "damaged")
        if entry is not None:
            require(entry.path("answer.json").read_bytes() == whole, f"entry {each[:6]} counts as intact, and is not")
    require(run_command("cache", "gc", "--older-than", "0", "--store", store.root).code == 0, "gc fails")
    require(not store.list_keys(), "gc leaves entries")
    return "damaged" if "damaged" in kinds else "whole"


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what tries a file of a sort drawn at random."""
    from tests.reports import finished

    run = finished(folder / "run")
    trials: list[Trial] = [
        *(try_graph, try_msr, try_topology, try_costs, try_placement) * 2,
        *(try_settings, try_jobs, try_batch, try_store),
        lambda case: try_run(case, run),
        lambda case: try_run(case, run),
    ]

    def judge(case: Case) -> str:
        with np.errstate(all="raise", under="ignore"):
            return trials[case.seed % len(trials)](case)

    own = {"PLACEWRIGHT_STORE": str(folder / "store"), "PLACEWRIGHT_LOCK": str(folder / "lock")}
    with environment(**own):
        yield judge


CAMPAIGN = Campaign("files", 1.0, begin)
