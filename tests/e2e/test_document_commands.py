"""The commands of README and docs/, in order, page by page: with less of everything, on files that users have."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli.main import run_command_line
from runtime.machines.topology import preset_machine
from runtime.machines.topology_text import topology_text
from tests.e2e.conftest import DEVICES, QUICK, Warm
from tests.e2e.test_search_cli import GRAPH
from tests.onnx_models import convolution_onnx
from tests.unit.benchmarks.test_bench_exact import graph as official_graph
from tests.unit.pipeline.report.test_pages import PAGES, ROOT, commands

ELSEWHERE = ("tutorials", "plugins.md")  # by test_tutorials and test_plugin
NEEDS = {
    "farm:": "a cluster: tests/e2e/test_fleet.py",
    "--tables": "the paper's networks: tests/e2e/test_bench_cli.py",
    "p100x8": "a graph of minutes",
    "quality.py:top1": "a data set: tests/unit/runtime/measuring/outputs/test_quality.py",
    "AUTO": "a device that AUTO chooses: tests/e2e/test_deploy_cli.py",
    "throughput": "a minute of measuring: tests/e2e/test_verdict_cli.py",
    "--to ovms": "a run that plug-ins alone can express: tests/unit/pipeline/deploy/test_emit.py",
    "box.toml": "a scenario and its models: tests/e2e/test_scenario_cli.py",
    "--before": "environments with two versions: tests/unit/pipeline/gate/test_gate.py",
    "--machines": "calibrations of several models: tests/unit/pipeline/deploy/test_predict.py",
    "worth ": "an answer that ends with exit code 8: tests/e2e/test_worth_cli.py",
    "benchmarks/instances": "the repository: tests/unit/benchmarks/test_open_benchmark.py",
    "bench submit": "placements of somebody: tests/unit/benchmarks/test_open_benchmark.py",
    "compare ": "two runs of several starts: the laptop's tutorial, and tests/e2e/test_deploy_cli.py",
}
CHEAP = {("zoo", "list"), ("devices",), ("list", "place"), ("explain",)}  # what they begin with
LESS = {
    "--budget": "2s",
    "--evaluations": "40",
    "--seeds": "1",
    "--seconds": "1",
    "--measurements": "4",
    "--holdout": "1",
    "--generations": "1",
}
OTHERS = {
    "CPU,GPU": DEVICES,
    "zoo:resnet50": "zoo:two-towers",
    "zoo:inception-v3": "zoo:two-towers",
    "zoo:txl2": "zoo:ffnn",
    "zoo:txl4": "zoo:ffnn",
    "resnet50": "two-towers",
}
MORE = {
    "tune": [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")],
    "train": ["--limit", "1"],
    "bench hsdag": ["--models", "model.xml", "--evaluators", "sequential", "--methods", "single,random,min_cut"],
    "bench exact": ["--methods", "dp,latency_dp"],
    "bench league": ["--quick", "--methods", "heft", "--instances", "chainmm", "--parts", "search"],
}

Command = list[str]
TOLD = [
    page for page in PAGES if commands(page) and not any(part in page.parts or part == page.name for part in ELSEWHERE)
]


def shortened(words: Command) -> Command:
    """Return a command that takes less of everything; what it is given twice counts as given last."""
    found = [OTHERS.get(word, word) for word in words]
    for i, (option, _) in enumerate(itertools.pairwise(words)):
        if option in LESS:
            found[i + 1] = LESS[option]
    if found[0] == "tune" and "--budget" in found:
        del found[found.index("--budget") : found.index("--budget") + 2]
    more = next((more for name, more in MORE.items() if " ".join(found).startswith(name)), [])
    alike = {option for option in more if option.startswith("--") and option != "--set"}
    kept = [w for i, w in enumerate(found) if w not in alike and (i == 0 or found[i - 1] not in alike - {"--quick"})]
    sets = {word.partition("=")[0] for option, word in itertools.pairwise(found) if option == "--set"}
    pairs = zip(more[::2], more[1::2], strict=False) if found[0] == "tune" else ()
    own = [word for option, value in pairs for word in (option, value) if value.partition("=")[0] not in sets]
    return [*kept, *(own if found[0] == "tune" else more)]


@pytest.fixture
def folder(warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with what the pages take for granted."""
    for name in ("run", "before", "after", "runs/one"):
        shutil.copytree(warm.run, tmp_path / name)
    shutil.copytree(warm.store, tmp_path / "store")
    for suffix in (".xml", ".bin"):
        shutil.copy(warm.model.with_suffix(suffix), tmp_path / f"model{suffix}")
    convolution_onnx(tmp_path / "model.onnx")
    (tmp_path / "machine.toml").write_text(topology_text(preset_machine("equal:2").topology))
    for name in ("problem.json", "graph.json"):
        (tmp_path / name).write_text(json.dumps(GRAPH))
    (tmp_path / "DIR" / "latency-inputs").mkdir(parents=True)
    (tmp_path / "DIR" / "latency-inputs" / "chain.json").write_text(json.dumps(official_graph()))
    (tmp_path / "jobs.toml").write_text(
        f"[defaults]\n{''.join(f'{json.dumps(k)} = {json.dumps(v)}{chr(10)}' for k, v in QUICK.items())}"
        f'[[jobs]]\nmodels = ["model.xml"]\ndevices = ["{DEVICES}"]\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store"))
    return tmp_path


def ended(words: Command) -> str:
    """Return what a command prints; it must do what it says."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = run_command_line(words)
    assert code == 0, words
    return said.getvalue()


def prepare(words: Command, folder: Path) -> None:
    """Make the files that a command reads and that depend on its graph: costs, pins, a placement."""
    if "costs.csv" in words and "--write-costs" not in words:
        ended(["bound", words[1], "--topology", "machine.toml", "--write-costs", "costs.csv"])
    if words[0] == "simulate" and "--placement" in words:
        where = words[words.index("--topology") + 1]
        told = ended(["search", words[1], "--topology", where, "--placer", "greedy", "--evaluations", "5", "--json"])
        (folder / "placement.json").write_text(told)
    if "pins.json" in words:
        told = ended(["search", words[1], "--topology", "machine.toml", "--placer", "single", "--json"])
        (folder / "pins.json").write_text(json.dumps(dict(list(json.loads(told)["placement"].items())[:1])))


def runnable(page: Path) -> Iterator[Command]:
    """Give the commands of a page that can be run here."""
    for words in commands(page):
        if not any(need in " ".join(words) for need in NEEDS):
            yield words


def follow(words: Command, folder: Path) -> None:
    """Run a command, its output going where it says."""
    target = words[words.index(">") + 1] if ">" in words else ""
    plain = shortened(words[: words.index(">")] if target else words)
    prepare(plain, folder)
    told = ended(plain)
    if target:
        (folder / target).write_text(told)


@pytest.mark.slow
@pytest.mark.parametrize("page", TOLD, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page: Path, folder: Path) -> None:
    if page.name == "exact.md":
        (folder / "problem.json").write_text(json.dumps(official_graph()))
    for words in runnable(page):
        follow(words, folder)


def test_commands_that_only_look_run(folder: Path) -> None:
    cheap = {
        tuple(words)
        for page in TOLD
        for words in runnable(page)
        if any(tuple(words[: len(begin)]) == begin for begin in CHEAP)
    }
    assert len(cheap) > 3
    for words in sorted(cheap):
        ended(list(words))


def test_less_is_asked_for_than_the_page_says() -> None:
    assert shortened(["search", "zoo:txl2", "--budget", "10m", "--evaluations", "9000"]) == [
        *("search", "zoo:ffnn", "--budget", "2s", "--evaluations", "40")
    ]
    tuned = shortened(["tune", "m.xml", "--budget", "60s", "--set", "place.use=[portfolio,tabu]"])
    assert "--budget" not in tuned
    assert [word for word in tuned if word.startswith("place.use")] == ["place.use=[portfolio,tabu]"]
    league = shortened(["bench", "league", "--quick", "--methods", "a,b", "--out", "league/"])
    assert [league.count(option) for option in ("--quick", "--methods", "--parts")] == [1, 1, 1]
    assert "a,b" not in league


def test_every_reason_to_leave_a_command_out_is_one_of_some_page() -> None:
    told = [" ".join(words) for page in TOLD for words in commands(page)]
    assert all(any(re.search(re.escape(need), text) for text in told) for need in NEEDS)
