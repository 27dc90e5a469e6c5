"""The pictures of the documents, as SVG.

    python -m benchmarks.document_pictures figures docs/images           # data flow, contest, segments, simulators
    python -m benchmarks.document_pictures stages STEPS docs/images      # a run made stage by stage, one picture each

STEPS is the run directory of docs/tutorials/stages.md; its artifacts are read from the store of PLACEWRIGHT_STORE.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from markupsafe import Markup

from pipeline.core.arrays import Float64, Int64
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from pipeline.report import svg
from pipeline.report.hierarchy import order_layers
from pipeline.report.page import svg_file
from pipeline.report.timeline import timeline_context
from pipeline.settings.registry import build_implementation
from pipeline.shared import payload
from pipeline.store.store import Store, default_store

COLOURS = 7  # that the style of pages has
NODE = 4.5
Node = tuple[float, float]


def draw_box(x: float, y: float, width: float, words: str, below: str = "", *, fill: str = "") -> list[Markup]:
    """Return a box with a line of words, and a smaller one below it."""
    frame = {"class_": f"fill{fill}"} if fill else {"fill": "var(--panel)", "stroke": "var(--soft)"}
    parts = [svg.make_element("rect", x=x, y=y, width=width, height=44.0, rx=5, **frame)]
    colour = {"style": "fill:#ffffff"} if fill else {}
    for text, down, kind in ((words, 19 if below else 27, "heading"), (below, 35, "small")):
        middle = x + width / 2
        parts.append(svg.make_element("text", text, x=middle, y=y + down, text_anchor="middle", class_=kind, **colour))
    return parts


def draw_arrow(begin: Node, end: Node, words: str = "") -> list[Markup]:
    """Return an arrow, with words above its middle."""
    (x1, y1), (x2, y2) = begin, end
    length = float(np.hypot(x2 - x1, y2 - y1))
    dx, dy = 7 * (x2 - x1) / length, 7 * (y2 - y1) / length
    head = [(x2 - dx - dy / 2, y2 - dy + dx / 2), (x2, y2), (x2 - dx + dy / 2, y2 - dy - dx / 2)]
    parts = [svg.make_line(x1, y1, x2, y2, "axis"), svg.make_path(head, fill="none", class_="axis")]
    if words:
        parts.append(svg.make_text((x1 + x2) / 2, (y1 + y2) / 2 - 6, words, anchor="middle", kind="small"))
    return parts


def draw_data_flow() -> Markup:
    """Return the stages of a run, and what each hands to the next."""
    stages = ["read", "coarsen", "embed", "group", "place", "measure"]
    gives = ["graph", "grouping", "embeddings", "groups", "placements", "result"]
    parts: list[Markup] = []
    for i, (stage, given) in enumerate(zip(stages, gives, strict=True)):
        x = 8 + 152 * i
        parts += draw_box(x, 20, 104, stage, given)
        if i:
            parts += draw_arrow((x - 46, 42), (x - 3, 42))
    parts += draw_box(312, 118, 104, "profile", "costs, links")
    parts += draw_arrow((364, 118), (364, 67))
    parts += [*draw_arrow((418, 140), (668, 68)), *draw_arrow((60, 66), (309, 138))]
    parts += draw_arrow((820, 66), (820, 108))
    parts.append(svg.make_text(910, 124, "placed model, placement.json, report", anchor="end", kind="small"))
    parts.append(svg.make_text(460, 190, "Every stage is swapped by name, runs alone, and leaves an artifact in the "
                               "store; embed and group run only if a placer learns.", anchor="middle"))  # fmt: skip
    return svg.make_drawing("Data flow: from a model to a measured result", 214, parts)


def draw_contest() -> Markup:
    """Return how a variant takes turns with the control, start by start."""
    parts: list[Markup] = []
    for start in range(3):
        y = 36 + 74 * start
        parts.append(svg.make_text(8, y + 16, f"start {start + 1}", kind="heading"))
        parts.append(svg.make_text(8, y + 33, "both load again", kind="small"))
        for turn, kind in enumerate("cvvccvvccvvc"):
            x = 122 + 44 * turn
            parts.append(svg.make_element("rect", x=x, y=y + (0 if kind == "c" else 24), width=41, height=20,
                                          class_="fill6" if kind == "c" else "fill2"))  # fmt: skip
        parts += draw_arrow((662, y + 22), (702, y + 22))
        parts.append(svg.make_text(708, y + 27, "median of log(control / variant)"))
    parts.append(svg.make_text(122, 24, "10 ms turns: the control above, the variant below", kind="small"))
    parts += draw_arrow((808, 252), (808, 274))
    parts.append(svg.make_text(460, 292, "Interval over starts (Student), for all contenders together. A gain counts "
                               "if it lies above 1 and above 2 %, and exceeds what the", anchor="middle"))  # fmt: skip
    parts.append(svg.make_text(460, 310, "control's twin, which differs in nothing, seems to gain.", anchor="middle"))
    return svg.make_drawing("A contest: turns within a start, evidence over starts", 336, parts)


def draw_segments() -> Markup:
    """Return two branches of a model in segments on two devices, by HETERO and by the executor."""
    work = [("s1", "A", 0.0, 3.0), ("s2", "B", 3.0, 7.0), ("s3", "A", 7.0, 10.0), ("s4", "A", 10.0, 11.0)]
    beside = [("s1", "A", 0.0, 3.0), ("s2", "B", 0.4, 4.4), ("s3", "A", 3.0, 6.0), ("s4", "A", 6.0, 7.0)]
    parts: list[Markup] = []
    parts += draw_box(8, 20, 96, "input")
    parts += [*draw_box(170, 0, 110, "s1, s3", "on A", fill="0"), *draw_box(170, 56, 110, "s2", "on B", fill="1")]
    parts += draw_box(346, 20, 96, "s4", "on A", fill="0")
    parts += [*draw_arrow((104, 40), (168, 22)), *draw_arrow((104, 46), (168, 76))]
    parts += [*draw_arrow((282, 22), (344, 38)), *draw_arrow((282, 78), (344, 50))]
    for name, steps, y in (("HETERO: one sub-graph after another", work, 140.0),
                           ("segments: each when its device and its inputs are there", beside, 250.0)):  # fmt: skip
        parts.append(svg.make_text(8, y - 8, name, kind="heading"))
        for row, device in enumerate("AB"):
            parts.append(svg.make_text(8, y + 18 + 30 * row, device))
        for label, device, begin, end in steps:
            x, top = 40 + 70 * begin, y + (0 if device == "A" else 30)
            parts.append(svg.make_element("rect", x=x, y=top, width=70 * (end - begin) - 2, height=24,
                                          class_="fill0" if device == "A" else "fill1"))  # fmt: skip
            parts.append(svg.make_element("text", label, x=x + 8, y=top + 17, style="fill:#ffffff"))
    return svg.make_drawing("Two branches on two devices, by HETERO and in segments", 320, parts)


def draw_simulators() -> Markup:
    """Return the simulators as steps: what each of them counts."""
    rows = [
        ("sequential", "one sub-graph after another, as HETERO: operations + transfers + launches"),
        ("listsched T0", "devices work at the same time; links send any number of tensors at once"),
        ("listsched T1", "and a device sends one tensor at a time (Placeto's link model)"),
        ("listsched T2", "and receives one at a time; costs per operation and device, memory"),
        ("pipelined", "many inferences: the largest load of a device sets the pace"),
        ("latency", "one inference: accelerators are called with sets of operations"),
    ]
    parts: list[Markup] = []
    for i, (name, words) in enumerate(rows):
        y, x = 8 + 52 * i, 8 + (60 * (i - 1) if 1 < i < 4 else 0)
        parts += draw_box(x, y, 150, name, fill="0" if "listsched" in name else "2" if i == 0 else "6")
        parts.append(svg.make_text(x + 166, y + 27, words))
    return svg.make_drawing("Simulators and their levels", 24 + 52 * len(rows), parts)


FIGURES = {"data-flow": draw_data_flow, "contest": draw_contest, "segments": draw_segments,
           "simulators": draw_simulators}  # fmt: skip


def layered_places(graph: Graph, width: float = 900.0, row: float = 15.0) -> tuple[Float64, float]:
    """Return float64 [n, 2], where operations stand in a drawing from inputs at the top to outputs, and its height."""
    rows = order_layers(graph.n, graph.edges.astype(np.int64))
    places = np.zeros((graph.n, 2))
    for i, members in enumerate(rows):
        step = min(width / (len(members) + 1), 60.0)
        for j, node in enumerate(members):
            places[node] = (width / 2 + step * (j - (len(members) - 1) / 2) + 10, 20 + row * i)
    return places, 40 + row * len(rows)


def draw_graph(graph: Graph, label: Int64, words: str) -> Markup:
    """Return a graph with a colour for each label of its nodes, int64 [n]; edges between labels are dark."""
    places, height = layered_places(graph)
    at = places.tolist()
    crossing = label[graph.edges[0]] != label[graph.edges[1]]
    parts = [
        svg.make_line(at[u][0], at[u][1], at[v][0], at[v][1], "axis" if cut else "grid")
        for u, v, cut in zip(*graph.edges.tolist(), crossing.tolist(), strict=True)
    ]
    parts += [
        svg.make_element("circle", cx=float(x), cy=float(y), r=NODE, class_=f"fill{int(group) % COLOURS}")
        for (x, y), group in zip(places.tolist(), label.tolist(), strict=True)
    ]
    return svg.make_drawing(words, height, parts)


def flat_places(values: Float64) -> Float64:
    """Return float64 [n, 2], rows of values along their two principal components, in [0, 1]."""
    centred = values - values.mean(axis=0)
    flat = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    return np.asarray((flat - flat.min(axis=0)) / np.maximum(np.ptp(flat, axis=0), 1e-12), np.float64)


def draw_embedding(nodes: Float64, group: Int64, words: str) -> Markup:
    """Return nodes by the two principal components of their embedding, coloured by group."""
    places = flat_places(nodes) * (860, 260) + (30, 20)
    parts = [
        svg.make_element("circle", cx=float(x), cy=float(y), r=6.0, class_=f"fill{int(g) % COLOURS}", opacity=0.8)
        for (x, y), g in zip(places.tolist(), group.tolist(), strict=True)
    ]
    axis = svg.make_text(460, 312, "first principal component; the second upwards", anchor="middle", kind="small")
    return svg.make_drawing(words, 320, [*parts, axis])


def draw_stages(steps: Path) -> Iterator[tuple[str, Markup]]:
    """Yield name and picture of every stage of a run that was made stage by stage."""
    stages = payload.read_json(steps / "manifest.json")["stages"]
    store = Store(default_store())

    def artifact(stage: str, name: str) -> Path:
        entry = store.find(stages[stage]["key"])
        if entry is None:
            raise SystemExit(f"the artifact of {stage} is not in {store.root}: set PLACEWRIGHT_STORE")
        return entry.path(name)

    graph = payload.load_graph(artifact("read", "graph.npz"))
    coarse = payload.load_grouping(artifact("coarsen", "grouping.npz"))
    small = contract(graph, coarse)
    groups = payload.load_grouping(artifact("group", "grouping.npz"))
    nodes = payload.load_arrays(artifact("embed", "embedding.npz"))["nodes"].astype(np.float64)
    yield "stage-coarsen-before", draw_graph(graph, coarse.group.astype(np.int64), f"{graph.n} operations as read, "
                                             f"coloured by the {coarse.k} nodes they become")  # fmt: skip
    yield "stage-coarsen-after", draw_graph(small, np.arange(small.n), f"The {small.n} nodes after coarsening")
    group = groups.group.astype(np.int64)
    yield "stage-embed", draw_embedding(nodes, group, f"{small.n} nodes by their embedding, coloured by group")
    yield "stage-group", draw_graph(small, group, f"{groups.k} groups on the coarse graph")
    best = payload.read_json(artifact("place", "candidates.json"))[0]["placement"]
    costs, topology = payload.load_profile(artifact("profile", "profile.npz"))
    placement = Placement.from_json(best, graph.names, topology.names)
    yield "stage-place", draw_graph(graph, placement.device.astype(np.int64), "Operations by device")
    subject = Subject(None, graph, Grouping.identity(graph.n), topology, costs, 0)
    timeline = build_implementation("measure", "listsched").bind(subject).timeline(placement)
    yield "stage-measure", timeline_context({"predicted": timeline}, graph, topology.names)["timeline"]


def main(what: str, *paths: str) -> None:
    """Write the figures, or the pictures of a run's stages."""
    *steps, out = map(Path, paths)
    drawn = draw_stages(steps[0]) if what == "stages" else ((name, draw()) for name, draw in FIGURES.items())
    out.mkdir(parents=True, exist_ok=True)
    for name, drawing in drawn:
        (out / f"{name}.svg").write_text(svg_file(drawing).replace('class="chart" ', "", 1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
