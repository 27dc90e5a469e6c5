"""The networks of many branches that are built in code: they run, take their inputs seriously, and can be split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
import pytest

from coarsen.reading.model.read import read_model, to_graph
from pipeline.core.graph import Graph
from pipeline.shared.model_inputs import make_inputs
from runtime import zoo

BRANCHING = tuple(name for name in zoo.names() if name not in (*zoo.PUBLISHED, "decoder"))

# Outputs, and how much arithmetic an inference is, in GFLOP.
OUTPUTS = {
    "bilstm-128": {"states": (1, 32, 256), "last": (2, 1, 128)},
    "bilstm-512": {"states": (1, 32, 1024), "last": (2, 1, 512)},
    "ensemble": {"probabilities": (1, 100)},
    "four-towers": {"scores": (32, 1)},
    "gnmt-encoder": {"states": (1, 32, 192)},
    "mixture-of-experts": {"y": (1, 16, 384)},
    "nasnet-cells": {"logits": (1, 100)},
    "randwire": {"logits": (1, 100)},
    "two-towers": {"scores": (32, 1)},
}
MOST_GFLOP = 2.0

# What stands side by side: (type, how many of its operations do not wait for one another).
WIDTH = {
    "ensemble": ("Convolution", 4),
    "four-towers": ("MatMul", 4),
    "mixture-of-experts": ("MatMul", 4),
    "nasnet-cells": ("GroupConvolution", 3),
    "randwire": ("GroupConvolution", 2),
    "two-towers": ("MatMul", 2),
    "gnmt-encoder": ("LSTMSequence", 4),
}


@dataclass(frozen=True)
class Branching:
    name: str
    model: ov.Model
    graph: Graph
    written: list[str]  # names of the operations before they are read


@pytest.fixture(scope="module", params=BRANCHING)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Branching:
    """Each network, written and read again once for all tests of it."""
    xml = tmp_path_factory.mktemp(request.param) / "model.xml"
    zoo.export(request.param, xml)
    written = [o.get_friendly_name() for o in ov.Core().read_model(xml).get_ordered_ops()]
    model = read_model(xml)
    return Branching(request.param, model, to_graph(model, source=""), written)


def test_every_network_has_its_outputs_told() -> None:
    assert set(OUTPUTS) == set(BRANCHING)


def test_it_runs_and_its_outputs_follow_its_inputs(built: Branching) -> None:
    compiled = ov.Core().compile_model(built.model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    first, second = (compiled(make_inputs(built.model, seed=seed, dynamic_size=8)) for seed in (0, 1))
    assert {port.any_name: tuple(port.shape) for port in compiled.outputs} == OUTPUTS[built.name]
    for port in compiled.outputs:
        a, b = first[port], second[port]
        assert np.all(np.isfinite(a))
        assert 1e-3 < a.std() < 100
        assert np.abs(a - b).max() > 0.1 * a.std()


def test_an_inference_is_small(built: Branching) -> None:
    assert 0.01 < built.graph.flops.sum() / 1e9 < MOST_GFLOP


def test_every_operation_has_a_name_of_its_own_that_is_not_counted(built: Branching) -> None:
    assert len(set(built.written)) == len(built.written)
    types = [built.graph.type_names[t] for t in built.graph.op_type]
    pairs = zip(built.graph.names, types, strict=True)
    assert [name for name, kind in pairs if name.startswith(f"{kind}_")] == []


def widest(graph: Graph, kind: str) -> int:
    """Return how many operations of a type stand at one distance from the inputs, counted in operations of it."""
    depth = np.zeros(graph.n, int)
    ours = np.array([graph.type_names[t] == kind for t in graph.op_type])
    for producer, consumer in sorted(graph.edges.T.tolist(), key=lambda edge: edge[1]):
        depth[consumer] = max(depth[consumer], depth[producer] + ours[producer])
    return int(np.bincount(depth[ours]).max())


@pytest.mark.parametrize("built", WIDTH, indirect=True)
def test_branches_do_not_wait_for_one_another(built: Branching) -> None:
    kind, least = WIDTH[built.name]
    assert widest(built.graph, kind) >= least


@pytest.mark.parametrize("name", ["bilstm-128", "bilstm-512"])
def test_a_bidirectional_layer_is_one_operation(name: str) -> None:
    layers = [o for o in zoo.build_model(name).get_ordered_ops() if o.get_type_name() == "LSTMSequence"]
    assert [o.get_attributes()["direction"] for o in layers] == ["bidirectional"] * 2


def test_the_wiring_of_the_random_graphs_does_not_depend_on_the_seed_of_the_weights() -> None:
    def wired(seed: int) -> list[tuple[str, list[str]]]:
        return [
            (
                o.get_friendly_name(),
                [o.input_value(i).get_node().get_friendly_name() for i in range(o.get_input_size())],
            )
            for o in zoo.build_model("randwire", seed=seed).get_ordered_ops()
        ]

    assert wired(0) == wired(1)


def test_a_piece_of_time_waits_for_the_piece_below_it_and_the_one_before_it_alone() -> None:
    layers = {o.get_friendly_name(): o for o in zoo.build_model("gnmt-encoder").get_ordered_ops()}
    for layer in range(1, 6):
        for piece in range(4):
            lstm = layers[f"layer{layer}.piece{piece}"]
            x, *states = [lstm.input_value(i).get_node().get_friendly_name() for i in range(3)]
            below = f"layer{layer - 1}.piece{piece}"
            assert x in ({"pieces"} if layer == 1 else {f"{below}.residual", f"{below}.squeezed"})
            before = f"layer{layer}.piece{piece - 1}"
            assert states == ([before] * 2 if piece else [f"layer{layer}.initial_{s}" for s in ("hidden", "cell")])
