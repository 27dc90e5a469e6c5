"""Timelines to look at: what each device and link does when, and which steps the whole waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from pipeline.core.arrays import Bool, Float64, Int64
from pipeline.core.errors import MeasurementError, StoreError, UsageError
from pipeline.core.figures import bytes_text
from pipeline.core.graph import Graph
from pipeline.core.simulation import Timeline
from pipeline.progress.perfetto import trace_of
from pipeline.report import svg
from pipeline.report.text import count_text, seconds_text, shorten
from pipeline.result.deployment import SPLIT, Deployment, runs_in_segments
from pipeline.result.directory import RunDirectory
from pipeline.settings.config import Settings
from pipeline.shared.payload import from_json, read_json
from pipeline.store.store import write_json
from pipeline.system.machine_lock import measuring_alone

SCHEMA: Literal["placewright.timeline/1"] = "placewright.timeline/1"
MEASURED = "timeline.json"  # in a run directory: what devices really did, where segments were measured
INFERENCES = 31  # of which the one of median latency is the timeline
LEFT, ROW, BAR = 150.0, 26.0, 14.0
MERGED = 800.0  # of the whole: what is nearer than that is one bar
NEAR = 1e-9  # share of the whole by which figures of one moment may differ


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one device did for a while."""

    name: str
    device: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """What was sent of a step's outputs, and to which device."""

    step: str
    target: str
    start_s: float
    end_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class TimelineRecord:
    """timeline.json: one inference as it was measured; seconds from its begin.

    steps: segments or operations; transfers: tensors sent between devices.
    """

    schema: Literal["placewright.timeline/1"]
    devices: list[str]
    steps: list[StepRecord]
    transfers: list[TransferRecord]
    value_s: float


def measure_timeline(folder: Path) -> None:
    """Write timeline.json into a run directory: of some inferences on this machine that of median latency.

    Segments share their tensors, so that nothing is told of transfers.

    Raises:
        StoreError: the folder holds no finished run, or cannot be written.
        UsageError: the answer does not run in segments.
        MeasurementError: the segments are damaged, or a device refuses one.
    """
    from runtime.executor.placed import PlacedError
    from runtime.executor.timing import timed_inferences

    deployment, manifest = Deployment.load(folder), RunDirectory(folder).manifest()
    if not runs_in_segments(deployment.record.target) or manifest is None:
        raise UsageError(
            f"{folder} runs as one compiled model, which tells no timeline.", "Leave --measure out, or use `where`."
        )
    settings = Settings.from_json(manifest["settings"])
    size, split = settings.measure.dynamic_size, folder / SPLIT
    try:
        with measuring_alone(lambda _: None):
            timed = timed_inferences(split, deployment.model, seed=settings.seed, dynamic_size=size, count=INFERENCES)
    except PlacedError as error:
        raise MeasurementError(
            f"The segments in {split} cannot be run: {error}.", f"Write them again: placewright measure --run {folder}"
        ) from error
    middle = sorted(timed, key=lambda inference: inference.latency_s)[len(timed) // 2]
    steps = [StepRecord(s.name, s.device, s.start_s, s.end_s) for s in middle.segments]
    devices = list(deployment.record.devices)
    write_json(folder / MEASURED, asdict(TimelineRecord(SCHEMA, devices, steps, [], middle.latency_s)))


def measured_timeline(folder: Path) -> Timeline | None:
    """Return the timeline that was measured in a run, None if there is none.

    Raises:
        StoreError: the file is damaged.
    """
    path = folder / MEASURED
    if not path.is_file():
        return None
    try:
        return read_timeline(from_json(TimelineRecord, read_json(path)))
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} is damaged.", "Measure the run again, or delete the file.") from error


def read_timeline(record: TimelineRecord) -> Timeline:
    """Return the timeline of a record.

    Raises:
        KeyError: it names a device or a step that it does not have.
    """
    device = {name: j for j, name in enumerate(record.devices)}
    step = {each.name: i for i, each in enumerate(record.steps)}
    sent = [step[t.step] for t in record.transfers]
    return Timeline(
        names=tuple(s.name for s in record.steps),
        devices=tuple(record.devices),
        device=np.array([device[s.device] for s in record.steps], np.int32),
        start_s=np.array([s.start_s for s in record.steps]),
        end_s=np.array([s.end_s for s in record.steps]),
        sent=np.array(sent, np.int32),
        source=np.array([device[record.steps[i].device] for i in sent], np.int32),
        target=np.array([device[t.target] for t in record.transfers], np.int32),
        sent_start_s=np.array([t.start_s for t in record.transfers]),
        sent_end_s=np.array([t.end_s for t in record.transfers]),
        sent_bytes=np.array([t.bytes for t in record.transfers], np.int64),
        value_s=record.value_s,
    )


def critical_steps(timeline: Timeline, graph: Graph | None) -> Bool:
    """Return bool [n + t], which operations and then transfers the end waited for.

    From the last step back: always to the step that ended last before it, among those that it had to wait for: what it
    reads, and what its device or its link did before. graph: says what an operation reads; None: all that is sent to
    its device may be.
    """
    n, t = len(timeline.names), timeline.t
    start = np.r_[timeline.start_s, timeline.sent_start_s]
    end = np.r_[timeline.end_s, timeline.sent_end_s]
    on_path = np.zeros(n + t, np.bool_)
    if not n:
        return on_path
    before = _Before(timeline, graph)
    tolerance = NEAR * max(timeline.value_s, 1e-12)
    at = int(np.argmax(end))
    while not on_path[at]:
        on_path[at] = True
        waited = before.of(at)
        waited = waited[(end[waited] <= start[at] + tolerance) & ~on_path[waited]]
        if not waited.size:
            break
        at = int(waited[np.argmax(end[waited])])
    return on_path


class _Before:
    """What each step of a timeline had to wait for; transfers are numbered behind operations."""

    def __init__(self, timeline: Timeline, graph: Graph | None) -> None:
        self.timeline, n = timeline, len(timeline.names)
        self.n = n
        self.on = [n + np.flatnonzero(timeline.source == j) for j in range(len(timeline.devices))]
        self.computed = [np.flatnonzero(timeline.device == j) for j in range(len(timeline.devices))]
        for j, mine in enumerate(self.computed):
            self.computed[j] = mine[np.argsort(timeline.start_s[mine], kind="stable")]
        self.at = np.empty(n, np.int64)
        for mine in self.computed:
            self.at[mine] = np.arange(mine.size)
        self.sends: dict[tuple[int, int], list[int]] = {}
        for i, (maker, target) in enumerate(zip(timeline.sent.tolist(), timeline.target.tolist(), strict=True)):
            self.sends.setdefault((maker, target), []).append(n + i)
        arrives = [(n + np.flatnonzero(timeline.target == j)).tolist() for j in range(len(timeline.devices))]
        self.arrives = arrives if graph is None else [[] for _ in timeline.devices]
        self.producers: list[list[int]] = [[] for _ in range(n)]
        if graph is not None:
            for u, v in graph.edges.T.tolist():
                self.producers[v].append(u)

    def of(self, step: int) -> Int64:
        """Return the numbers of what a step waited for."""
        line = self.timeline
        if step >= self.n:
            t = step - self.n
            link = self.on[int(line.source[t])]
            return np.array([int(line.sent[t]), *link.tolist()], np.int64)
        device = int(line.device[step])
        place = int(self.at[step])
        mine = [*self.computed[device][max(0, place - 1) : place].tolist(), *self.arrives[device]]
        for producer in self.producers[step]:
            mine += [producer] if int(line.device[producer]) == device else self.sends.get((producer, device), [])
        return np.array(mine, np.int64)


def draw_timelines(timelines: Mapping[str, Timeline], paths: Mapping[str, Bool], colours: Mapping[str, int]) -> Markup:
    """Return a drawing of timelines one below the other, by what they are called, on one scale of time.

    paths: of each, as `critical` says. colours: device -> the number of its colour.
    """
    longest = max(t.value_s for t in timelines.values())
    scale = svg.Scale(0.0, longest, LEFT, svg.WIDTH - 12)
    parts: list[Markup] = []
    y = 8.0
    for name, timeline in timelines.items():
        parts.append(svg.make_text(0, y + 12, f"{name}: {seconds_text(timeline.value_s)}", kind="heading"))
        y += 20
        for rows in (_device_rows(timeline, paths[name], colours), _link_rows(timeline, paths[name])):
            for label, bars in rows:
                parts.append(svg.make_text(LEFT - 8, y + BAR - 2, shorten(label, 22), anchor="end"))
                parts += [_draw_bar(bar, scale, y) for bar in bars]
                y += ROW
        y += 8
    grid = [svg.make_line(scale(tick), 4, scale(tick), y + 4, "grid") for tick in scale.ticks()]
    axis = [svg.make_line(LEFT, y, svg.WIDTH - 12, y, "axis")]
    axis += [svg.make_text(scale(tick), y + 18, seconds_text(tick), anchor="middle") for tick in scale.ticks()]
    return svg.make_drawing(f"Timeline of one inference: {', '.join(timelines)}", y + 26, [*grid, *parts, *axis])


@dataclass(frozen=True, slots=True)
class _Bar:
    """Steps without a gap between them that could be seen; kind: how it is drawn."""

    start_s: float
    end_s: float
    kind: str
    title: str
    critical: bool


Rows = list[tuple[str, list[_Bar]]]


def _draw_bar(bar: _Bar, scale: svg.Scale, y: float) -> Markup:
    x, width = scale(bar.start_s), max(scale(bar.end_s) - scale(bar.start_s), 0.6)
    shape = svg.make_element(
        "rect", svg.make_element("title", bar.title), x=x, y=y, width=width, height=BAR, class_=bar.kind
    )
    if not bar.critical:
        return shape
    return shape + svg.make_element("rect", x=x, y=y + BAR + 1, width=width, height=3.0, class_="critical")


def _device_rows(timeline: Timeline, path: Bool, colours: Mapping[str, int]) -> Rows:
    rows = []
    for j, device in enumerate(timeline.devices):
        mine = np.flatnonzero((timeline.device == j) & (timeline.end_s > timeline.start_s))
        names = [timeline.names[i] for i in mine.tolist()]
        kind = f"bar device{colours.get(device, 0)}"
        spans = timeline.start_s[mine], timeline.end_s[mine], path[mine]
        rows.append((device, _merge_bars(names, spans, timeline.value_s, "operation", kind)))
    return rows


def _link_rows(timeline: Timeline, path: Bool) -> Rows:
    rows, n = [], len(timeline.names)
    pairs = sorted(set(zip(timeline.source.tolist(), timeline.target.tolist(), strict=True)))
    for source, target in pairs:
        mine = np.flatnonzero((timeline.source == source) & (timeline.target == target))
        names = [
            f"{timeline.names[int(timeline.sent[i])]} ({bytes_text(int(timeline.sent_bytes[i]))})"
            for i in mine.tolist()
        ]
        spans = timeline.sent_start_s[mine], timeline.sent_end_s[mine], path[n + mine]
        label = f"{timeline.devices[source]} → {timeline.devices[target]}"
        rows.append((label, _merge_bars(names, spans, timeline.value_s, "transfer", "bar link")))
    return rows


def _merge_bars(
    names: Sequence[str], spans: tuple[Float64, Float64, Bool], whole_s: float, thing: str, kind: str
) -> list[_Bar]:
    """Return the bars of steps, names, and begin, end and whether it is critical of each."""
    start, end, path = spans
    bars: list[_Bar] = []
    run: list[int] = []

    def close() -> None:
        first, last = run[0], max(run, key=lambda i: end[i])
        title = shorten(names[first], 200)
        if len(run) > 1:
            title = f"{count_text(len(run), thing)}, {title} to {shorten(names[run[-1]], 200)}"
        begins, ends = float(start[first]), float(end[last])
        words = f"{title}: {seconds_text(begins)} to {seconds_text(ends)}"
        bars.append(_Bar(begins, ends, kind, words, bool(path[run[0]])))

    latest = 0.0
    for i in np.argsort(start, kind="stable").tolist():
        if run and (start[i] - latest > whole_s / MERGED or bool(path[i]) != bool(path[run[0]])):
            close()
            run = []
        latest = max(latest, float(end[i])) if run else float(end[i])
        run.append(i)
    if run:
        close()
    return bars


def timeline_context(known: Mapping[str, Timeline], graph: Graph | None, devices: Sequence[str]) -> dict[str, Any]:
    """Return what a template's part about timelines needs.

    known: by what they are called. graph: says what operations wait for; a timeline of segments has other names, and
    then all that is sent to a device counts. devices: in the order of their colours.
    """
    names = () if graph is None else graph.names
    paths = {name: critical_steps(t, graph if t.names == names else None) for name, t in known.items()}
    every = [d for t in known.values() for d in t.devices]
    colours = {device: i % 7 for i, device in enumerate(dict.fromkeys([*devices, *every]))}
    words = (
        "Each bar is what a device computes or a link sends; the line below it marks the steps that the end waits for."
    )
    return {"timeline": draw_timelines(known, paths, colours), "timeline_words": words}


def timelines_trace(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """Return timelines as one trace for Perfetto: a process per device and timeline."""
    if len(timelines) == 1:
        return trace_of(next(iter(timelines.values())))
    events: list[dict[str, Any]] = []
    offset = 0
    for name, timeline in timelines.items():
        for event in trace_of(timeline)["traceEvents"]:
            moved = {**event, "pid": event["pid"] + offset}
            if event["name"] == "process_name":
                moved["args"] = {"name": f"{event['args']['name']}, {name}"}
            events.append(moved)
        offset += len(timeline.devices)
    value_s = {name: timeline.value_s for name, timeline in timelines.items()}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"value_s": value_s}}
