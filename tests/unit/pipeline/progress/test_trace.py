"""Timelines as events of a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import UsageError
from pipeline.core.simulation import Timeline
from pipeline.progress.perfetto import assign_tracks, check_writable, trace_of, write_trace

TIMELINE = Timeline(
    names=("a", "b", "c"),
    devices=("A", "B"),
    device=np.array([0, 0, 1]),
    start_s=np.array([0.0, 1.0, 2.5]),
    end_s=np.array([1.0, 3.0, 4.0]),
    sent=np.array([0, 0]),
    source=np.array([0, 0]),
    target=np.array([1, 1]),
    sent_start_s=np.array([1.0, 1.5]),
    sent_end_s=np.array([2.0, 2.5]),
    sent_bytes=np.array([10, 20]),
    value_s=4.0,
)


def events(kind: str) -> list[dict[str, Any]]:
    return [e for e in trace_of(TIMELINE)["traceEvents"] if e["ph"] == kind]


def test_every_operation_is_an_event_on_the_compute_thread_of_its_device() -> None:
    found = {e["name"]: e for e in events("X") if e["tid"] == 0}
    assert set(found) == {"a", "b", "c"}
    assert (found["b"]["pid"], found["b"]["ts"], found["b"]["dur"]) == (0, 1e6, 2e6)
    assert (found["c"]["pid"], found["c"]["ts"], found["c"]["dur"]) == (1, 2.5e6, 1.5e6)


def test_every_transfer_is_an_event_of_its_sender() -> None:
    sends = [e for e in events("X") if e["tid"] > 0]
    assert [(e["name"], e["pid"], e["ts"], e["dur"]) for e in sends] == [
        ("a -> B", 0, 1e6, 1e6),
        ("a -> B", 0, 1.5e6, 1e6),
    ]
    assert [e["args"] for e in sends] == [{"bytes": 10, "to": "B"}, {"bytes": 20, "to": "B"}]


def test_sends_that_overlap_stand_on_threads_of_their_own() -> None:
    assert [e["tid"] for e in events("X") if e["tid"] > 0] == [1, 2]
    names = {(e["pid"], e["tid"], e["args"]["name"]) for e in events("M") if e["name"] == "thread_name"}
    assert names == {(0, 0, "compute"), (0, 1, "sends"), (0, 2, "sends 2"), (1, 0, "compute")}


def test_every_device_is_a_process() -> None:
    assert {(e["pid"], e["args"]["name"]) for e in events("M") if e["name"] == "process_name"} == {(0, "A"), (1, "B")}


def test_lanes_never_overlap_and_are_as_few_as_the_most_at_once() -> None:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 30, 60) / 1.0
    end = start + rng.integers(1, 6, 60)
    lane = np.array(assign_tracks(start, end))
    for number in range(lane.max() + 1):
        mine = np.flatnonzero(lane == number)
        mine = mine[np.argsort(start[mine])]
        assert np.all(end[mine[:-1]] <= start[mine[1:]])
    assert lane.max() + 1 == max(int(((start <= t) & (t < end)).sum()) for t in range(36))


def test_a_trace_is_written_plain_or_compressed_and_equal_content_makes_equal_files(tmp_path: Path) -> None:
    plain, packed, again = (tmp_path / name for name in ("t.json", "t.json.gz", "again.json.gz"))
    for path in (plain, packed, again):
        write_trace(path, TIMELINE)
    assert json.loads(plain.read_bytes()) == json.loads(gzip.decompress(packed.read_bytes())) == trace_of(TIMELINE)
    assert packed.read_bytes() == again.read_bytes()


def test_a_path_that_cannot_be_written_is_a_wrong_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    for path in (tmp_path, tmp_path / "file" / "trace.json"):
        with pytest.raises(UsageError, match="cannot be written"):
            check_writable(path)
        with pytest.raises(UsageError, match="cannot be written"):
            write_trace(path, TIMELINE)


def test_checking_makes_the_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "trace.json")
    assert list((tmp_path / "new").iterdir()) == []
