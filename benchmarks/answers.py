"""What every placer answers, to the last bit: recorded before and after a change that must change no answer.

python -m benchmarks.answers OUT             record into a file of JSON
python -m benchmarks.answers OUT --like OLD  record, and say which answers differ from those of an older file
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipeline.core.errors import PlacewrightError
from pipeline.offline.scenario import Scenario
from pipeline.offline.search import Effort, search
from pipeline.placing.setup import learns_policy
from pipeline.settings import registry
from pipeline.store.store import write_json
from pipeline.system.process import cpu_count

GRAPHS = (
    *("zoo:chainmm", "zoo:ffnn", "zoo:llama-block", "zoo:nas-cnn", "zoo:nas-nmt?index=1", "zoo:nas-rnn?index=2"),
    *("zoo:layered", "zoo:series-parallel", "zoo:resnet50", "zoo:inception-v3", "zoo:rnnlm2?steps=6", "zoo:wavenet2"),
)
DEVICES = ("equal:4", "cpu+gpu")
RULES = (("listsched", False), ("listsched", True), ("sequential", False), ("pipelined", False))
EVALUATIONS, LEARNING = 300, 40  # of every search; of one that learns
TIMES = ("seconds",)  # keys of an answer that say how long it took


def answers(graph: str) -> Iterator[tuple[str, Any]]:
    """Yield, for all placers, devices and rules, what names a search and what it answers on a graph."""
    for placer in registry.implementation_table("place"):
        evaluations = LEARNING if learns_policy(placer) else EVALUATIONS
        for devices in DEVICES:
            for evaluator, ordered in RULES:
                scenario = Scenario(graph, devices, evaluator=evaluator, ordered=ordered)
                answer = _answer(scenario, Effort(placer, evaluations=evaluations))
                yield f"{placer} {graph} {devices} {evaluator} {ordered}", answer


def _answer(scenario: Scenario, effort: Effort) -> Any:
    try:
        document = search(scenario, effort)
    except PlacewrightError as error:
        return f"{type(error).__name__}: {error}"
    rest = {key: value for key, value in document.items() if key not in TIMES}
    told = ("value_s", "lower_bound_s", "found_by", "evaluations")
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    return {**{key: rest[key] for key in told}, "all": digest}


def record() -> dict[str, Any]:
    """Return the answers on all graphs, each graph in a process of its own."""

    def run(graph: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.answers", "--graph", graph]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return dict(json.loads(line) for line in done.stdout.splitlines())

    with ThreadPoolExecutor(cpu_count()) as pool:
        return {name: answer for found in pool.map(run, GRAPHS) for name, answer in found.items()}


def main() -> int:
    """Record, or answer for one graph, one line of JSON per search; 1 if answers differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--like", type=Path)
    parser.add_argument("--graph", help="print the answers on this graph alone")
    asked = parser.parse_args()
    if asked.graph is not None:
        for item in answers(asked.graph):
            print(json.dumps(item), flush=True)
        return 0
    if asked.out is None:
        parser.error("name the file to record into")
    found = record()
    write_json(asked.out, found)
    if asked.like is None:
        return 0
    before = json.loads(asked.like.read_text(encoding="utf-8"))
    differing = sorted(name for name in before.keys() | found.keys() if before.get(name) != found.get(name))
    for name in differing:
        print(f"{name}: {before.get(name)} -> {found.get(name)}")
    print(f"{len(differing)} of {len(found)} answers differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
