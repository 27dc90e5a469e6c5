"""RNNLM, GNMT, NMT, Transformer-XL and WaveNet: as many operations, FLOPs and parameters as published."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.graph import is_acyclic
from pipeline.core.workload import Workload
from runtime.zoo import workloads
from runtime.zoo.workloads import build, names, options

NETWORKS = [
    "gnmt2",
    "gnmt4",
    "gnmt8",
    "nmt",
    "rnnlm2",
    "rnnlm4",
    "rnnlm8",
    "txl2",
    "txl4",
    "txl8",
    "wavenet2",
    "wavenet4",
]
SMALL = {
    "gnmt2": "gnmt2?steps=3&batch=4&hidden=8&vocab=20",
    "nmt": "nmt?steps=3&batch=4&hidden=8&vocab=20",
    "rnnlm2": "rnnlm2?steps=3&batch=4&hidden=8&vocab=20",
    "txl2": "txl2?segments=2&length=4&batch=4&hidden=100&vocab=20",
    "wavenet2": "wavenet2?layers=3&samples=16&batch=2&channels=4&skip=4",
}

built = functools.cache(build)


def of_type(workload: Workload, *types: str) -> np.ndarray:
    """Return bool [n], which operations are of one of the types."""
    return np.isin(np.array(workload.graph.type_names)[workload.graph.op_type], types)


# Zhou et al., GDP, 2019: 28,044, 46,600 and 83,712; 9,021; 2,618; 234 + 828 per stack, from the two published depths.
# Where a depth was not published, the tolerance is that of the law drawn from the others.
@pytest.mark.parametrize(
    ("name", "operations", "tolerance"),
    [
        ("gnmt2", 28_044, 0.001),
        ("gnmt4", 46_600, 0.001),
        ("gnmt8", 83_712, 0.001),
        ("rnnlm2", 9_021, 0),
        ("rnnlm4", 18_000, 0.04),
        ("rnnlm8", 35_000, 0.03),
        ("txl2", 2_618, 0),
        ("txl4", 5_236, 0.03),
        ("txl8", 10_472, 0.03),
        ("wavenet2", 234 + 828 * 2, 0),
        ("wavenet4", 234 + 828 * 4, 0),
    ],
)
def test_a_network_has_as_many_operations_as_published(name: str, operations: int, tolerance: float) -> None:
    assert built(name).graph.n == pytest.approx(operations, rel=tolerance)


# Kernels, TFLOP per step and MiB of parameters, reckoned by hand from the shapes.
@pytest.mark.parametrize(
    ("name", "kernels", "tflop", "parameters"),
    [
        ("rnnlm2", 3_400, 1.35, 412),
        ("rnnlm4", 6_400, 2.38, 668),
        ("rnnlm8", 12_500, 4.45, 1180),
        ("gnmt2", 9_200, 1.38, 591),
        ("gnmt4", 16_200, 2.03, 751),
        ("gnmt8", 30_300, 3.32, 1071),
        ("txl2", None, 2.06, 132),
        ("txl4", None, 2.64, 149),
        ("txl8", None, 3.81, 183),
        ("wavenet2", 570, 1.73, 8),
        ("wavenet4", 1_100, 3.36, 16),
    ],
)
@pytest.mark.parametrize("fidelity", ["core", "fused"])
def test_kernels_flops_and_parameters_are_those_of_the_shapes(
    name: str, kernels: int | None, tflop: float, parameters: float, fidelity: str
) -> None:
    workload = built(f"{name}?fidelity={fidelity}")
    if kernels is not None and fidelity == "core":
        assert workload.graph.n == pytest.approx(kernels, rel=0.07)
    assert workload.graph.flops.sum() / 1e12 == pytest.approx(tflop, rel=0.01)
    held = workload.graph.weight_bytes[of_type(workload, "Variable")].sum() / 2**20
    assert held == pytest.approx(parameters, rel=0.06)  # of 8 MiB half a MiB is rounding


def test_the_products_of_a_small_rnnlm_are_those_reckoned_by_hand() -> None:
    workload = build("rnnlm2?steps=3&batch=4&hidden=8&vocab=20&fidelity=core")
    cell, softmax = 2 * 4 * 16 * 32, 2 * 4 * 8 * 20
    assert workload.graph.flops[of_type(workload, "MatMul")].sum() == 3 * 3 * (2 * cell + softmax)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_acyclic_and_every_operation_has_a_layer(name: str) -> None:
    workload = built(name)
    assert is_acyclic(workload.graph)
    assert workload.tags.layer.min() == 0
    used = np.unique(workload.tags.layer)
    assert used.tolist() == list(range(used.size))
    assert not workload.times


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("fidelity", ["core", "tf", "fused"])
@pytest.mark.parametrize("more", ["", "&gradients=addn&optimizer=adam", "&training=false"])
def test_equal_calls_give_equal_graphs_at_every_option(name: str, fidelity: str, more: str) -> None:
    text = f"{SMALL[name]}&fidelity={fidelity}{more}"
    one, two = build(text).graph, build(text, seed=5).graph
    assert is_acyclic(one)
    assert one.names == two.names
    for field in ("op_type", "edges", "flops", "weight_bytes", "out_bytes", "edge_bytes", "shape_dim", "colocate"):
        assert np.array_equal(getattr(one, field), getattr(two, field)), field


@pytest.mark.parametrize("name", SMALL)
def test_every_variable_is_updated_and_only_in_training(name: str) -> None:
    workload = build(SMALL[name])
    updates = np.count_nonzero(of_type(workload, "ApplySGD"))
    assert updates == np.count_nonzero(of_type(workload, "Variable")) > 0
    forward = build(SMALL[name] + "&training=false")
    assert not of_type(forward, "ApplySGD", "Accum").any()
    assert set(forward.graph.names) < set(workload.graph.names)


def test_the_decoder_follows_the_encoder_in_time() -> None:
    workload = build("gnmt2?steps=3&batch=4&hidden=8&vocab=20&fidelity=core")
    step = dict(zip(workload.graph.names, workload.tags.step.tolist(), strict=True))
    layer = dict(zip(workload.graph.names, workload.tags.layer.tolist(), strict=True))
    assert [step[f"enc1/t{t}/MatMul"] for t in range(3)] == [0, 1, 2]
    assert [step[f"dec1/t{t}/MatMul"] for t in range(3)] == [3, 4, 5]
    assert [step[f"enc0b/t{t}/MatMul"] for t in range(3)] == [0, 1, 2]  # in the order in which they run
    assert layer["enc1/t0/MatMul"] == layer["dec1/t0/MatMul"] == 2
    assert layer["softmax/t0/MatMul"] == 3


def reaches(workload: Workload, source: str, target: str) -> bool:
    """Return whether an operation depends on another."""
    graph = workload.graph
    reached = np.zeros(graph.n, bool)
    reached[graph.names.index(source)] = True
    for _ in range(graph.n):
        before = reached.sum()
        reached[graph.edges[1][reached[graph.edges[0]]]] = True
        if reached.sum() == before:
            break
    return bool(reached[graph.names.index(target)])


def test_layers_and_steps_wait_for_one_another_as_the_networks_say() -> None:
    rnnlm = build("rnnlm2?steps=3&batch=4&hidden=8&vocab=20&fidelity=core&training=false")
    assert reaches(rnnlm, "lstm0/t0/MatMul", "lstm0/t1/MatMul")
    assert not reaches(rnnlm, "lstm1/t0/MatMul", "lstm0/t2/MatMul")
    gnmt = build("gnmt4?steps=3&batch=4&hidden=8&vocab=20&fidelity=core&training=false")
    assert reaches(gnmt, "enc0b/t2/MatMul", "enc1/t0/MatMul")
    assert reaches(gnmt, "attention/t0/MatMul", "dec0/t1/MatMul")
    assert not reaches(gnmt, "dec3/t0/MatMul", "dec0/t2/MatMul")
    txl = build("txl4?segments=3&length=4&batch=4&hidden=100&vocab=20&fidelity=core&training=false")
    assert reaches(txl, "block0/s0/MatMul", "block2/s1/MatMul")
    assert not reaches(txl, "block1/s0/MatMul", "block1/s1/MatMul")


def test_the_memory_of_transformer_xl_lets_no_gradient_through() -> None:
    workload = build("txl2?segments=2&length=4&batch=4&hidden=100&vocab=20&fidelity=core")
    assert reaches(workload, "block0/s0/Concat", "block1/s1/Concat")
    assert not reaches(workload, "grad/block1/s1/Concat/d1", "grad/block0/s0/MatMul/dX")


def test_one_softmax_for_all_steps_needs_one_product() -> None:
    many = build("rnnlm2?steps=4&batch=4&hidden=8&vocab=20&fidelity=core")
    one = build("rnnlm2?steps=4&batch=4&hidden=8&vocab=20&fidelity=core&softmax=time-major")
    assert np.count_nonzero(of_type(many, "SoftmaxCrossEntropy")) == 4
    assert np.count_nonzero(of_type(one, "SoftmaxCrossEntropy")) == 1
    products = [w.graph.flops[of_type(w, "MatMul")].sum() for w in (many, one)]
    assert products[0] == products[1]


def test_kept_gradients_leave_more_tensors_alive_than_running_sums() -> None:
    small = "rnnlm2?steps=5&batch=4&hidden=8&vocab=20&fidelity=core"
    kept, running = build(small + "&gradients=addn"), build(small)
    name = "lstm0/weights/AddN"
    into = kept.graph.edges[1] == kept.graph.names.index(name)
    assert np.count_nonzero(into) == 5
    assert name not in running.graph.names
    assert np.count_nonzero(of_type(running, "Accum")) == 4 * 6


def test_all_names_are_sorted_and_lead_to_a_generator_whose_options_have_defaults() -> None:
    assert names() == list(workloads.TABLE)
    assert set(NETWORKS) <= set(names())
    assert options("gnmt8") == {
        "layers": 8,
        "steps": 40,
        "batch": 64,
        "hidden": 1024,
        "vocab": 32_000,
        "fidelity": "tf",
        "training": True,
        "optimizer": "sgd",
        "gradients": "accumulate",
    }


def test_an_option_may_overrule_the_name() -> None:
    small = "steps=2&batch=2&hidden=4&vocab=10"
    assert build(f"gnmt8?layers=2&{small}").graph.names == build(f"gnmt2?{small}").graph.names


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("gnmt3", UnknownNameError, "gnmt"),
        ("gnmt2?depth=3", UnknownNameError, "depth"),
        ("gnmt2?seed=3", UnknownNameError, "seed"),
        ("gnmt2?steps=many", UsageError, "many"),
        ("gnmt2?steps=2.5", UsageError, "2.5"),
        ("gnmt2?steps", UsageError, "without a value"),
        ("gnmt2?training=yes", UsageError, "true, false"),
        ("gnmt2?fidelity=high", UsageError, "core, tf, fused"),
        ("gnmt2?steps=0", UsageError, "at least 1"),
        ("gnmt2?batch=-1", UsageError, "at least 1"),
        ("gnmt2?layers=1", UsageError, "at least 2"),
        ("wavenet2?layers=0", UsageError, "at least 1"),
        ("txl2?hidden=501", UsageError, "multiple of 50"),
    ],
)
def test_wrong_names_and_options_are_the_users_mistakes(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(text)
