"""The pipeline in its steady state, by hand and against published figures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves, PipelineModel
from pipeline.core.stages import Subject
from runtime.simulators.pipelined.pipelined import Pipelined
from tests.published import MSR
from tests.strategies import graph_of

NAMES = ("A", "B", "C")


def topology(*kinds: str, memory_bytes: int = 0) -> Topology:
    devices = tuple(
        DeviceSpec(name, "X", "X", kind=kind, memory_bytes=memory_bytes)
        for name, kind in zip(NAMES, kinds, strict=False)
    )
    return Topology.uniform(devices, bytes_per_s=10.0, latency_s=0.5)


def subject(graph: Graph, on: Topology, op_s: list[float]) -> Subject:
    table = np.repeat(np.array(op_s)[:, None], on.p, axis=1)
    costs = CostTable(graph.names, on.names, table, np.zeros(on.p), ("given",) * on.p)
    return Subject(None, graph, Grouping.identity(graph.n), on, costs, 0)


def fan() -> Graph:
    """Return a -> {b, c, d}, d -> e; b reads 10 of a's 20 bytes; e reads 5."""
    return graph_of(5, [(0, 1), (0, 2), (0, 3), (3, 4)], out_bytes=[20, 1, 1, 5, 1], edge_bytes={(0, 1): 10})


FAN_S = [1.0, 2.0, 4.0, 8.0, 16.0]


def test_loads_by_hand() -> None:
    pipe = Pipelined().bind(subject(fan(), topology("gpu", "gpu", "gpu"), FAN_S))
    figures = pipe.simulate(np.array([[0, 0, 0, 0, 0], [0, 1, 1, 1, 1], [0, 0, 1, 2, 0]], np.int32))
    net_a, net_d = 0.5 + 2.0, 0.5 + 0.5  # each paid once by every device that holds part of it
    assert figures.busy_s.tolist() == [
        [31.0, 0.0, 0.0],
        [1.0 + net_a, 30.0 + net_a, 0.0],
        [19.0 + net_a + net_d, 4.0 + net_a, 8.0 + net_a + net_d],
    ]
    assert figures.value_s.tolist() == [31.0, 30.0 + net_a, 19.0 + net_a + net_d]
    assert figures.cut_bytes.tolist() == [0, 20, 2 * 20 + 5]  # once for every device but the source's own


def test_a_cpu_does_not_pay() -> None:
    pipe = Pipelined().bind(subject(fan(), topology("cpu", "gpu"), FAN_S))
    assert pipe.simulate(np.array([[0, 1, 1, 1, 1]], np.int32)).busy_s.tolist() == [[1.0, 30.0 + 2.5]]


def test_a_device_pays_for_its_slowest_link() -> None:
    on = topology("gpu", "gpu", "gpu")
    bandwidth, latency = on.link_bytes_per_s.copy(), on.link_latency_s.copy()
    bandwidth[2, 0], latency[1, 2] = 1.0, 4.0
    slow = Topology(on.devices, bandwidth, latency)
    # 20 bytes take 2.5 s but from C to A, 20.5 s, and from B to C, 6 s; the slowest depends on the bytes.
    assert slow.slowest_link_s(np.array([20, 0])).tolist() == [[20.5, 6.0, 20.5], [0.5, 4.0, 4.0]]


def test_a_group_holds_the_nets_of_its_operations() -> None:
    grouped = replace(subject(fan(), topology("gpu", "gpu"), FAN_S), grouping=Grouping(np.array([0, 0, 0, 1, 1])))
    figures = Pipelined().bind(grouped).simulate(np.array([[0, 1]], np.int32))
    assert figures.busy_s.tolist() == [[7.0 + 2.5, 24.0 + 2.5]]


def test_answers_tell_devices_pieces_and_refusals() -> None:
    case = subject(replace(fan(), weight_bytes=np.full(5, 3)), topology("gpu", "gpu", memory_bytes=12), FAN_S)
    assert case.costs is not None
    op_s = case.costs.op_s.copy()
    op_s[4, 0] = np.inf
    case = replace(case, costs=replace(case.costs, op_s=op_s))
    placements = [Placement(np.array(d), ("A", "B")) for d in ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 1])]
    refused, full, fine = Pipelined().bind(case).evaluate(placements)
    assert refused == MeasurementFailed("refused", "A does not run op4")
    assert full == MeasurementFailed("out_of_memory", "B lacks 3 B of memory")
    assert isinstance(fine, Prediction)
    assert (fine.executed_on, fine.subgraphs) == (("A", "B"), 3)
    careless = Pipelined(memory=False).bind(case)
    assert isinstance(careless.evaluate(placements)[1], Prediction)
    assert careless.execution == PipelineModel(memory=False)


def test_moves_renew_the_largest_load_of_either_pass() -> None:
    chain = graph_of(4, [(0, 1), (1, 2), (2, 3)], out_bytes=[10, 20, 30, 0])
    training = replace(chain, op_type=np.array([0, 0, 1, 1], np.int16), type_names=("Forward", "Backward"))
    case = subject(training, topology("gpu", "gpu", "gpu"), [1.0, 2.0, 4.0, 8.0])
    pipe = Pipelined(passes="apart").bind(case)
    # The forward pass takes 1 + 2 s on C, the backward pass 8 s and 0.5 + 3 s for what 2 sends on B.
    assert pipe.simulate(np.array([[2, 2, 2, 1]], np.int32)).value_s.tolist() == [3.0 + 11.5]
    node, device = np.array([3, 2, 1, 3, 0, 2, 1, 2], np.int32), np.array([1, 0, 1, 0, 1, 1, 2, 2], np.int32)
    moves = Moves.single(node, device, np.full(8, np.inf))
    placement = Placement(np.full(4, 2), NAMES)
    walk = pipe.local_search(placement, moves, allowed=np.ones((4, 3), bool), limit=8)
    assert walk.taken.all()
    for i, value_s in enumerate(walk.value_s.tolist()):
        placement = moves.applied(i, placement)
        assert value_s == pipe.simulate(placement.device[None]).value_s[0]


def test_a_timeline_is_one_period() -> None:
    pipe = Pipelined().bind(subject(fan(), topology("gpu", "gpu", "gpu"), FAN_S))
    timeline = pipe.timeline(Placement(np.array([0, 0, 1, 2, 0]), NAMES))
    assert timeline.start_s.tolist() == [0.0, 1.0, 0.0, 0.0, 3.0]
    assert timeline.end_s.tolist() == [1.0, 3.0, 4.0, 8.0, 19.0]
    told = zip(timeline.sent, timeline.source, timeline.target, timeline.sent_start_s, timeline.sent_end_s, strict=True)
    assert sorted(told) == [
        (0, 0, 1, 4.0, 6.5),  # B receives
        (0, 0, 1, 19.0, 21.5),  # A sends
        (0, 0, 2, 8.0, 10.5),
        (3, 2, 0, 10.5, 11.5),  # C sends
        (3, 2, 0, 21.5, 22.5),
    ]
    assert timeline.value_s == 22.5


def test_a_placement_on_the_wrong_device_has_no_timeline() -> None:
    pipe = Pipelined().bind(subject(fan(), topology("gpu", "gpu"), [*FAN_S[:4], np.inf]))
    with pytest.raises(UsageError, match="op4"):
        pipe.timeline(Placement(np.zeros(5), ("A", "B")))


def test_other_kinds_of_devices_are_not_comparable() -> None:
    def fingerprint(*kinds: str) -> str:
        return Pipelined().bind(subject(fan(), topology(*kinds), FAN_S)).fingerprint

    assert fingerprint("gpu", "gpu") == fingerprint("gpu", "npu") != fingerprint("gpu", "cpu")


def test_without_costs_there_is_nothing_to_simulate() -> None:
    with pytest.raises(UsageError, match="`pipelined` needs a cost table"):
        Pipelined().bind(replace(subject(fan(), topology("gpu"), FAN_S), costs=None))


def published(name: str, p: int) -> tuple[Subject, dict[int, int]]:
    """Return a published graph on p accelerators, and {the number its file gives a node: its index}."""
    path = MSR / "throughput-inputs" / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    document = json.loads(path.read_text())
    bytes_per_s = 1e15  # the cost of an edge, given in milliseconds, becomes bytes without visible rounding
    index = {node["id"]: i for i, node in enumerate(document["nodes"])}
    cost = {(index[e["sourceId"]], index[e["destId"]]): e["cost"] for e in document["edges"]}
    size = {edge: round(ms * 1e-3 * bytes_per_s) for edge, ms in cost.items()}
    devices = tuple(DeviceSpec(f"D{d}", "X", "X", kind="npu") for d in range(p))
    on = Topology.uniform(devices, bytes_per_s=bytes_per_s, latency_s=0.0)
    op_s = [node["fpgaLatency"] * 1e-3 for node in document["nodes"]]
    return subject(graph_of(len(index), cost, edge_bytes=size), on, op_s), index


@pytest.mark.parametrize(
    ("name", "load_ms"),
    [("OperatorGraphs/bert_l-3_inference.json", 49.35), ("OperatorGraphs/resnet50_inference.json", 325.13)],
)
def test_one_accelerator_has_the_published_load(name: str, load_ms: float) -> None:
    case, _ = published(name, 1)
    figures = Pipelined().bind(case).simulate(np.zeros((1, case.graph.n), np.int32))
    assert figures.value_s[0] * 1e3 == pytest.approx(load_ms, abs=0.005)  # published with two decimals


@pytest.mark.parametrize(("name", "load_ms"), [("bert24_inference", 20.084), ("resnet50_inference", 43.918)])
def test_the_splits_by_experts_have_the_published_loads(name: str, load_ms: float) -> None:
    case, index = published(f"LayerGraphs/{name}.json", 6)
    split = json.loads((MSR / "human-experts" / f"{name}_expert.json").read_text())
    device = np.full((1, case.graph.n), -1, np.int32)
    for d, accelerator in enumerate(split["fpgas"]):
        device[0, [index[i] for i in accelerator["nodes"]]] = d
    assert device.min() >= 0
    assert Pipelined().bind(case).simulate(device).value_s[0] * 1e3 == pytest.approx(load_ms, abs=0.0005)
