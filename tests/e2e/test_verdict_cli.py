"""tune with the devices having the last word: objectives, limits, and samples that a larger budget adds to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import run_command_line
from pipeline.shared.payload import load_arrays
from tests.e2e.conftest import Warm, options

Ran = Callable[..., Any]
REAL = {
    "measure__use": "hetero",
    "measure__start_s": 0.1,
    "measure__turn_s": 0.01,
    "measure__alone_s": 0.1,
    "measure__finalists": 2,
}


def command(copy: Warm, *more: str, **settings: Any) -> list[str]:
    chosen = options(copy.store, **REAL | settings)
    return ["tune", str(copy.model), "--run", str(copy.run), *chosen, *more]


def starts(store: Path) -> list[str]:
    """Return the keys of the starts that were written down, in their order."""
    lines = [p.read_text(encoding="utf-8") for p in store.glob("series/*/starts.jsonl")]
    return [json.loads(line)["key"] for text in lines for line in text.splitlines()]


@pytest.mark.slow
def test_throughput_is_tuned_and_a_larger_budget_keeps_the_starts_of_a_smaller_one(copy: Warm, ran: Ran) -> None:
    throughput = ["--objective", "throughput"]
    document = ran(*command(copy, "--budget", "30s", *throughput, measure__starts=3, measure__least_starts=2))
    contest = document["contest"]
    assert contest["objective"] == "throughput"
    assert contest["control"] in {c["name"] for c in document["candidates"] if c["baseline"] and c["single"]}
    assert document["best"] in {contest["control"], *contest["claimed"]}
    settings = [c for c in document["candidates"] if c["kind"] == "settings" and c["latency_s"]]
    assert any(c["requests"] > 1 for c in settings)
    best = next(c for c in document["candidates"] if c["name"] == document["best"])
    assert best["rate"] == pytest.approx(1 / best["latency_s"]["median"], rel=0.5)
    assert best["alone"]["50"] > 0
    assert best["difference"] <= 0.05
    arrays = load_arrays(copy.run / "samples.npz")
    assert document["best"] in json.loads(arrays["names"].tobytes())
    placement = json.loads((copy.run / "placement.json").read_text(encoding="utf-8"))
    assert (placement["requests"], placement["objective"]) == (best["requests"], "throughput")
    before = starts(copy.store)
    again = ran(*command(copy, "--budget", "31s", *throughput, measure__starts=3, measure__least_starts=2))
    assert [s["stage"] for s in again["stages"] if s["ran"]][-1] == "measure"
    after = starts(copy.store)
    assert after[: len(before)] == before
    assert len(set(after)) == len(after)


@pytest.mark.slow
def test_a_limit_that_nothing_keeps_is_told_in_words(copy: Warm, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--budget", "20s", "--max-memory", "1MB"]
    assert run_command_line(command(copy, *limits, measure__starts=1, measure__settings="false")) == 5
    said = capsys.readouterr().out
    assert "No candidate is within the limits." in said
    assert "MB of memory, 1 MB allowed" in said


def test_a_simulator_that_has_the_last_word_predicts(copy: Warm, ran: Ran) -> None:
    document = ran("tune", str(copy.model), "--run", str(copy.run), *options(copy.store))
    assert document["contest"] is None
    assert "predicted" in document["verdict"]
    gain = document["speedup_over_best_single"]
    assert gain["low"] == gain["ratio"] == gain["high"]
