"""Timelines as traces that Perfetto and chrome://tracing show."""

from __future__ import annotations

import gzip
import heapq
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.errors import UsageError
from pipeline.core.simulation import Timeline

US = 1e6
COMPUTE, SENDS = 0, 1  # threads of a device; sends that overlap take further ones


def trace_of(timeline: Timeline) -> dict[str, Any]:
    """Return the events of a timeline: a process per device, a thread for what it computes and one for what it sends.

    Times are microseconds. Sends that overlap, as where links are not contended, stand on further threads.

    Source: Chrome's Trace Event Format, complete events ("X") and metadata ("M").
    """
    events: list[dict[str, Any]] = []
    for pid, device in enumerate(timeline.devices):
        events.append(_name_event(pid, COMPUTE, "process_name", device))
        events.append(_name_event(pid, COMPUTE, "thread_name", "compute"))
    for i in np.argsort(timeline.start_s, kind="stable").tolist():
        start_s, end_s = float(timeline.start_s[i]), float(timeline.end_s[i])
        events.append(_interval_event(timeline.names[i], int(timeline.device[i]), COMPUTE, start_s, end_s))
    for pid in range(len(timeline.devices)):
        mine = np.flatnonzero(timeline.source == pid)
        lane = assign_tracks(timeline.sent_start_s[mine], timeline.sent_end_s[mine])
        for number in range(max(lane, default=0) + 1 if lane else 0):
            label = "sends" if number == 0 else f"sends {number + 1}"
            events.append(_name_event(pid, SENDS + number, "thread_name", label))
        for t, number in zip(mine.tolist(), lane, strict=True):
            target = timeline.devices[int(timeline.target[t])]
            name = f"{timeline.names[int(timeline.sent[t])]} -> {target}"
            start_s, end_s = float(timeline.sent_start_s[t]), float(timeline.sent_end_s[t])
            event = _interval_event(name, pid, SENDS + number, start_s, end_s)
            events.append(event | {"args": {"bytes": int(timeline.sent_bytes[t]), "to": target}})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"value_s": timeline.value_s}}


def assign_tracks(start_s: Float64, end_s: Float64) -> list[int]:
    """Return for each of t intervals, float64 [t] each, the least lane that is free when it starts.

    >>> assign_tracks(np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0, 4.0]))
    [0, 1, 0]
    """
    lane = [0] * start_s.size
    busy: list[tuple[float, int]] = []  # a heap of (end, lane)
    free: list[int] = []
    for i in np.lexsort((end_s, start_s)).tolist():
        while busy and busy[0][0] <= start_s[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[i] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (float(end_s[i]), lane[i]))
    return lane


def check_writable(path: Path) -> None:
    """Check, before a long search, that a file can be written.

    Raises:
        UsageError: it cannot.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", "Choose another path.") from error


def write_trace(path: Path, timeline: Timeline) -> None:
    """Write a timeline as a trace, compressed if the name ends in .gz.

    Raises:
        UsageError: the file cannot be written.
    """
    write_events(path, trace_of(timeline))


def write_events(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace, compressed if the name ends in .gz.

    Raises:
        UsageError: the file cannot be written.
    """
    content = json.dumps(trace).encode()
    try:
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", "Choose another path.") from error


def _name_event(pid: int, tid: int, kind: str, label: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": label}}


def _interval_event(name: str, pid: int, tid: int, start_s: float, end_s: float) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start_s * US, "dur": (end_s - start_s) * US}
