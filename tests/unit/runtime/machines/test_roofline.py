"""Seconds of operations on a chip nobody has, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.graph import Graph
from runtime.machines.roofline import CHIPS, EFFICIENCY, Chip, operation_class, roofline_s
from tests.strategies import graph_of

CHIP = Chip(1e12, 1e11, launch_s=5e-6, auxiliary_s=1e-6, efficiency={"conv": 0.5, "gemm": 0.8})


def priced(type_name: str, *, flops: float = 0.0, read: int = 0, out: int = 100_000, weight: int = 0) -> float:
    """Return the seconds of one operation that reads `read` bytes from another."""
    graph = graph_of(
        2,
        [(0, 1)],
        types=["Parameter", type_name],
        flops=[0.0, flops],
        out_bytes=[read, out],
        edge_bytes={(0, 1): read},
    )
    parts = {name: getattr(graph, name) for name in Graph.__slots__}
    heavy = Graph(**{**parts, "weight_bytes": np.array([0, weight])})
    return float(roofline_s(heavy, CHIP)[1])


def test_arithmetic_that_takes_longer_than_the_bytes_counts_at_the_efficiency_of_its_class() -> None:
    assert priced("MatMul", flops=8e9) == pytest.approx(5e-6 + 8e9 / (0.8 * 1e12))
    assert priced("Convolution", flops=8e9) == pytest.approx(5e-6 + 8e9 / (0.5 * 1e12))
    assert priced("GroupConvolution", flops=8e9) == pytest.approx(5e-6 + 8e9 / (EFFICIENCY["depthwise"] * 1e12))
    assert priced("NeverHeardOf", flops=8e9) == pytest.approx(5e-6 + 8e9 / (EFFICIENCY["other"] * 1e12))


def test_bytes_read_weights_and_output_stream_at_three_quarters_of_the_bandwidth() -> None:
    seconds = priced("Add", flops=1.0, read=2_000_000, out=1_000_000, weight=4_000_000)
    assert seconds == pytest.approx(5e-6 + 7_000_000 / (0.75 * 1e11))


def test_a_lookup_reads_no_more_than_it_writes() -> None:
    assert priced("Gather", read=50_000, weight=10**9, out=1_000_000) == pytest.approx(5e-6 + 2e6 / (0.75 * 1e11))
    assert priced("Gather", read=50_000, out=1_000_000) == pytest.approx(5e-6 + 1_050_000 / (0.75 * 1e11))


@pytest.mark.parametrize("type_name", ["Parameter", "Constant", "Const", "Variable", "VarHandleOp", "Result"])
def test_what_lies_ready_takes_no_time(type_name: str) -> None:
    assert priced(type_name, out=10**9) == 0.0


def test_an_operation_that_makes_a_tiny_output_without_arithmetic_is_auxiliary() -> None:
    assert priced("Transpose", out=4096) == 1e-6
    assert priced("Transpose", out=4097) > 5e-6
    assert priced("Add", flops=4.0, out=16) > 5e-6


@pytest.mark.parametrize("type_name", ["Reshape", "Unsqueeze", "ShapeOf", "Shape", "Identity", "ConcatOffset"])
def test_an_operation_that_only_handles_shapes_is_auxiliary_however_large(type_name: str) -> None:
    assert priced(type_name, read=10**9, out=10**9) == 1e-6


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        *((t, "conv") for t in ("Convolution", "Conv2D", "Conv2DBackpropInput", "ConvolutionBackpropData", "Deconv2D")),
        *((t, "gemm") for t in ("MatMul", "BatchMatMulV2", "FullyConnected", "LSTMSequence", "Einsum")),
        *((t, "depthwise") for t in ("GroupConvolution", "DepthwiseConv2dNative")),
        *((t, "lookup") for t in ("Gather", "GatherV2", "EmbeddingBagOffsetsSum", "StridedSlice")),
        *((t, "other") for t in ("Convert", "ConvertLike", "Add", "ReduceMean", "Softmax", "Concat", "VariadicSplit")),
    ],
)
def test_types_of_both_vocabularies_fall_into_their_class(type_name: str, expected: str) -> None:
    assert operation_class(type_name) == expected


def test_a_chip_takes_the_usual_efficiency_where_it_states_none() -> None:
    assert Chip(1.0, 1.0, efficiency={"gemm": 0.9}).efficiency == {**EFFICIENCY, "gemm": 0.9}


def test_a_chip_twice_as_fast_halves_everything_but_the_launch() -> None:
    graph = graph_of(2, [(0, 1)], types=["MatMul", "Add"], flops=[1e9, 10.0], out_bytes=[10**6, 10**6])
    slow, fast = roofline_s(graph, CHIP), roofline_s(graph, CHIP.scaled(2.0))
    assert fast - 5e-6 == pytest.approx((slow - 5e-6) / 2)


@pytest.mark.parametrize("figures", [(0.0, 1.0), (1.0, -1.0)])
def test_a_chip_without_arithmetic_or_bandwidth_is_refused(figures: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        Chip(*figures)


def test_a_step_of_a_large_recurrent_layer_takes_what_is_known_of_a_p100() -> None:
    flops, weights = 2.0 * 64 * 4096 * 8192, 4 * 4096 * 8192
    graph = graph_of(2, [(0, 1)], types=["Variable", "MatMul"], flops=[0, flops], edge_bytes={(0, 1): weights})
    assert roofline_s(graph, CHIPS["p100"])[1] == pytest.approx(8e-6 + flops / (0.5 * 9.3e12), rel=1e-9)
