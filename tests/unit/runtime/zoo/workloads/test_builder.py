"""The builder of networks: FLOPs, bytes, shapes, and the structure of what differentiation adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from pipeline.core.arrays import Bool
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, is_acyclic
from runtime.zoo.workloads.builder import Builder
from runtime.zoo.workloads.record import AUXILIARY

Net = Callable[[Builder], int]


def index(graph: Graph, name: str) -> int:
    """Return the operation of a name."""
    return graph.names.index(name)


def kind(graph: Graph, i: int) -> str:
    """Return the type of an operation."""
    return graph.type_names[graph.op_type[i]]


def read(graph: Graph, name: str) -> dict[str, int]:
    """Return {producer: bytes} of what an operation reads."""
    into = graph.edges[1] == index(graph, name)
    return {graph.names[p]: int(b) for p, b in zip(graph.edges[0][into], graph.edge_bytes[into], strict=True)}


def kinds(graph: Graph) -> Counter[str]:
    """Return how many operations there are of each type."""
    return Counter(kind(graph, i) for i in range(graph.n))


def trained(net: Net, **options: str) -> Graph:
    """Return the graph of a training step of the sum of a network's output."""
    b = Builder()
    b.training(b.reduce("Sum", net(b)), **options)  # type: ignore[arg-type]
    return b.workload().graph


def test_a_product_counts_two_flops_per_multiply_add_and_reads_both_factors() -> None:
    b = Builder()
    x, w = b.placeholder((64, 8), name="x"), b.variable((8, 2), name="w")
    assert b.shape(b.matmul(x, w)) == (64, 2)
    graph = b.workload().graph
    assert graph.flops.tolist() == [0, 0, 2 * 64 * 8 * 2]
    assert graph.out_bytes.tolist() == [64 * 8 * 4, 8 * 2 * 4, 64 * 2 * 4]
    assert graph.weight_bytes.tolist() == [0, 64, 0]
    assert read(graph, "MatMul") == {"x": 2048, "w": 64}
    assert graph.shape(2) == (64, 2)


def test_elements_may_be_of_another_size() -> None:
    b = Builder(element_bytes=2)
    b.elementwise("Tanh", b.placeholder((3, 5)))
    assert b.workload().graph.out_bytes.tolist() == [30, 30]


@pytest.mark.parametrize(
    ("options", "shape", "flops"),
    [
        ({"kernel": 3}, (2, 8, 8, 4), 2 * 2 * 8 * 8 * 4 * 9 * 6),
        ({"kernel": 3, "stride": 2}, (2, 4, 4, 4), 2 * 2 * 4 * 4 * 4 * 9 * 6),
        ({"kernel": 3, "padding": "valid"}, (2, 6, 6, 4), 2 * 2 * 6 * 6 * 4 * 9 * 6),
        ({"kernel": (1, 7)}, (2, 8, 8, 4), 2 * 2 * 8 * 8 * 4 * 7 * 6),
        ({"kernel": 3, "dilation": 2, "padding": "valid"}, (2, 4, 4, 4), 2 * 2 * 4 * 4 * 4 * 9 * 6),
        ({"kernel": 3, "groups": 2}, (2, 8, 8, 4), 2 * 2 * 8 * 8 * 4 * 9 * 3),
    ],
)
def test_a_convolution_has_the_shape_and_flops_of_its_windows(
    options: dict[str, int], shape: tuple[int, ...], flops: int
) -> None:
    b = Builder()
    y = b.conv(b.placeholder((2, 8, 8, 6)), 4, **options)  # type: ignore[arg-type]
    assert b.shape(y) == shape
    assert b.workload().graph.flops[-1] == flops


def test_shapes_follow_from_the_inputs() -> None:
    b = Builder()
    x = b.placeholder((2, 9, 9, 6))
    assert b.shape(b.pool("MaxPool", x, 3, 2, padding="valid")) == (2, 4, 4, 6)
    assert b.shape(b.pool("AvgPool", x, 3, 2)) == (2, 5, 5, 6)
    assert b.shape(b.concat((x, x), axis=1)) == (2, 18, 9, 6)
    assert b.shape(b.stack((x, x, x), axis=1)) == (2, 3, 9, 9, 6)
    assert [b.shape(t) for t in b.split(x, 3)] == [(2, 9, 9, 2)] * 3
    assert [b.shape(t) for t in b.split(x, (4, 2))] == [(2, 9, 9, 4), (2, 9, 9, 2)]
    assert b.shape(b.transpose(x, (0, 3, 1, 2))) == (2, 6, 9, 9)
    assert b.shape(b.reduce("Mean", x, (1, 2))) == (2, 6)
    assert b.shape(b.reduce("Sum", x)) == ()
    assert b.shape(b.elementwise("Add", x, b.placeholder((9, 1)))) == (2, 9, 9, 6)
    assert b.shape(b.matmul(b.placeholder((2, 3, 5)), b.placeholder((2, 7, 5)), transpose=True)) == (2, 3, 7)
    assert b.shape(b.cross_entropy(b.placeholder((4, 10)))) == (4,)
    assert b.shape(b.dense(b.placeholder((4, 10)), 3)) == (4, 3)


def variables(b: Builder, *shapes: tuple[int, ...]) -> list[int]:
    """Return variables a, b, ... of the given shapes."""
    return [b.variable(shape, name="abc"[i]) for i, shape in enumerate(shapes)]


# name: network, {gradient operation: (type, shape, FLOPs, what it reads beyond the gradient of the output)}
GRADIENTS: dict[str, tuple[Net, dict[str, tuple[str, tuple[int, ...], float, set[str]]]]] = {
    "MatMul": (
        lambda b: b.matmul(*variables(b, (4, 3), (3, 5))),
        {"MatMul/dX": ("MatMul", (4, 3), 120, {"b"}), "MatMul/dW": ("MatMul", (3, 5), 120, {"a"})},
    ),
    "BatchMatMul": (
        lambda b: b.matmul(*variables(b, (2, 4, 3), (2, 3, 5))),
        {
            "BatchMatMul/dX": ("BatchMatMul", (2, 4, 3), 240, {"b"}),
            "BatchMatMul/dW": ("BatchMatMul", (2, 3, 5), 240, {"a"}),
        },
    ),
    "Conv": (
        lambda b: b.conv(*variables(b, (1, 4, 2)), 3, 2),
        {
            "Conv/dX": ("ConvBackpropInput", (1, 4, 2), 96, {"weights"}),
            "Conv/dW": ("ConvBackpropFilter", (2, 2, 3), 96, {"a"}),
        },
    ),
    "Add": (
        lambda b: b.elementwise("Add", *variables(b, (4, 3), (3,))),
        {"Add/d0": ("AddGrad", (4, 3), 12, set()), "Add/d1": ("AddGrad", (3,), 12, set())},
    ),
    "Mul": (
        lambda b: b.elementwise("Mul", *variables(b, (4, 3), (4, 3))),
        {"Mul/d0": ("MulGrad", (4, 3), 12, {"b"}), "Mul/d1": ("MulGrad", (4, 3), 12, {"a"})},
    ),
    "Tanh": (
        lambda b: b.elementwise("Tanh", *variables(b, (4,))),
        {"Tanh/d0": ("TanhGrad", (4,), 4, {"Tanh"})},
    ),
    "Softmax": (
        lambda b: b.softmax(*variables(b, (4, 2))),
        {"Softmax/d0": ("SoftmaxGrad", (4, 2), 24, {"Softmax"})},
    ),
    "unknown": (
        lambda b: b.op("Strange", variables(b, (4,), (2,)), (5,), flops=9.0),
        {"Strange/d0": ("StrangeGrad", (4,), 9, {"a", "b"}), "Strange/d1": ("StrangeGrad", (2,), 9, {"a", "b"})},
    ),
    "BiasAdd": (
        lambda b: b.bias(*variables(b, (4, 2), (2,))),
        {"BiasAdd/dBias": ("BiasAddGrad", (2,), 8, set())},
    ),
    "AddN": (lambda b: b.elementwise("AddN", *variables(b, (4,), (4,), (4,))), {}),
    "Concat": (
        lambda b: b.concat(variables(b, (4, 2), (4, 3))),
        {"Concat/d0": ("Slice", (4, 2), 0, set()), "Concat/d1": ("Slice", (4, 3), 0, set())},
    ),
    "Pack": (
        lambda b: b.stack(variables(b, (4,), (4,))),
        {"Pack/d0": ("Slice", (4,), 0, set()), "Pack/d1": ("Slice", (4,), 0, set())},
    ),
    "Split": (
        lambda b: b.elementwise("AddN", *b.split(*variables(b, (4, 6)), 3)),
        {"Split/d0": ("Concat", (4, 6), 0, set())},
    ),
    "Slice": (lambda b: b.slice(*variables(b, (4, 6)), (4, 2)), {"Slice/d0": ("Pad", (4, 6), 0, set())}),
    "Transpose": (
        lambda b: b.transpose(*variables(b, (4, 6)), (1, 0)),
        {"Transpose/d0": ("Transpose", (4, 6), 0, set())},
    ),
    "Mean": (lambda b: b.reduce("Mean", *variables(b, (4, 6)), (1,)), {"Mean/d0": ("MeanGrad", (4, 6), 24, set())}),
    "MaxPool": (
        lambda b: b.pool("MaxPool", *variables(b, (1, 4, 4, 2)), 2, 2),
        {"MaxPool/d0": ("MaxPoolGrad", (1, 4, 4, 2), 32, {"a", "MaxPool"})},
    ),
    "AvgPool": (
        lambda b: b.pool("AvgPool", *variables(b, (1, 4, 4, 2)), 2, 2),
        {"AvgPool/d0": ("AvgPoolGrad", (1, 4, 4, 2), 32, set())},
    ),
    "BatchNorm": (
        lambda b: b.batch_norm(*variables(b, (4, 2))),
        {"BatchNorm/d": ("BatchNormGrad", (4, 2), 64, {"a", "gamma", "beta", "BatchNorm"})},
    ),
    "LayerNorm": (
        lambda b: b.layer_norm(*variables(b, (4, 2), (2,), (2,))),
        {"LayerNorm/d": ("LayerNormGrad", (4, 2), 96, {"a", "b", "c", "LayerNorm"})},
    ),
    "SoftmaxCrossEntropy": (
        lambda b: b.cross_entropy(*variables(b, (4, 10))),
        {"SoftmaxCrossEntropy/d0": ("Mul", (4, 10), 40, {"SoftmaxCrossEntropy"})},
    ),
    "Gather": (lambda b: b.gather(*variables(b, (10, 3)), b.placeholder((4,))), {}),
    "Gather of a computed table": (
        lambda b: b.gather(b.elementwise("Relu", *variables(b, (10, 3))), b.placeholder((4,), name="rows")),
        {
            "Gather/d0": ("GatherGrad", (10, 3), 0, {"Relu", "rows"}),
            "Relu/d0": ("ReluGrad", (10, 3), 30, {"Relu"}),
        },
    ),
    "fused": (
        lambda b: b.fused("Cell", variables(b, (4, 3), (4, 2)), [(4, 3), (4, 2)], flops=7.0)[1],
        {"FusedCell/d": ("FusedCellGrad", (4, 3), 14, {"a", "b", "FusedCell"})},
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_every_type_has_the_gradients_of_its_rule(name: str) -> None:
    net, expected = GRADIENTS[name]
    graph = trained(net)
    assert is_acyclic(graph)
    found = {}
    for i, full in enumerate(graph.names):
        if full.startswith("grad/") and full not in ("grad/Fill", "grad/Sum/d0"):
            reads = {p for p in read(graph, full) if not p.startswith("grad/")}
            found[full.removeprefix("grad/")] = (kind(graph, i), graph.shape(i), graph.flops[i], reads)
            assert any(p.startswith("grad/") for p in read(graph, full))
    assert found == expected
    held = {n for i, n in enumerate(graph.names) if kind(graph, i) == "Variable"}
    assert {n.removesuffix("/Apply") for n in graph.names if n.endswith("/Apply")} == held


def test_one_operation_with_all_gradients_sends_each_reader_its_own() -> None:
    graph = trained(lambda b: b.batch_norm(*variables(b, (64, 2))))
    assert graph.out_bytes[index(graph, "grad/BatchNorm/d")] == 4 * (128 + 2 + 2)
    assert read(graph, "a/Apply") == {"a": 512, "grad/BatchNorm/d": 512}
    assert read(graph, "gamma/Apply") == {"gamma": 8, "grad/BatchNorm/d": 8}


@pytest.mark.parametrize(("optimizer", "share", "flops"), [("sgd", 3, 2), ("adam", 7, 10)])
def test_an_update_is_tied_to_its_variable_and_holds_what_the_optimizer_keeps(
    optimizer: str, share: int, flops: int
) -> None:
    graph = trained(lambda b: b.elementwise("Mul", *variables(b, (4,), (4,))), optimizer=optimizer)
    ties = []
    for name in ("a", "b"):
        i, j = index(graph, name), index(graph, f"{name}/Apply")
        assert graph.weight_bytes[i] + graph.weight_bytes[j] == share * 16
        assert graph.flops[j] == flops * 4
        assert graph.out_bytes[j] == 0  # in place
        assert graph.colocate[i] == graph.colocate[j] >= 0
        ties.append(graph.colocate[i])
    assert ties[0] != ties[1]
    assert np.count_nonzero(graph.colocate >= 0) == 4


def readers(count: int) -> Net:
    """Return a network in which `count` products, one after the other, read one variable."""

    def net(b: Builder) -> int:
        x, w = b.placeholder((2, 4)), b.variable((4, 4), name="w")
        for t in range(count):
            with b.at(f"t{t}", layer=5, step=t):
                x = b.matmul(x, w)
        return x

    return net


def test_gradients_of_a_variable_are_added_up_as_they_come() -> None:
    graph = trained(readers(3))
    assert kinds(graph)["Accum"] == 2
    assert kinds(graph)["AddN"] == 0
    last, first = "grad/t1/MatMul/Accum", "grad/t0/MatMul/Accum"
    assert set(read(graph, last)) == {"grad/t2/MatMul/dW", "grad/t1/MatMul/dW"}
    assert set(read(graph, first)) == {last, "grad/t0/MatMul/dW"}
    assert set(read(graph, "w/Apply")) == {"w", first}
    assert graph.flops[index(graph, first)] == 16


def test_gradients_of_a_variable_are_kept_until_one_operation_adds_them() -> None:
    graph = trained(readers(3), gradients="addn")
    assert kinds(graph)["Accum"] == 0
    assert set(read(graph, "w/AddN")) == {f"grad/t{t}/MatMul/dW" for t in range(3)}
    assert set(read(graph, "w/Apply")) == {"w", "w/AddN"}
    assert graph.flops[index(graph, "w/AddN")] == 32


def test_an_activation_with_two_readers_has_the_sum_of_two_gradients() -> None:
    graph = trained(_diamond)
    assert set(read(graph, "grad/Exp/AddN")) == {"grad/Relu/d0", "grad/Tanh/d0"}
    assert set(read(graph, "grad/Exp/d0")) == {"grad/Exp/AddN", "Exp"}


def _diamond(b: Builder) -> int:
    x = b.elementwise("Exp", *variables(b, (4,)))
    return b.elementwise("Mul", b.elementwise("Relu", x), b.elementwise("Tanh", x))


def test_backward_operations_carry_the_tags_of_their_forward_operations() -> None:
    b = Builder()
    with b.at("top", layer=1):
        loss = b.reduce("Sum", readers(2)(b))
    b.training(loss)
    workload = b.workload()
    pairs = zip(workload.tags.layer.tolist(), workload.tags.step.tolist(), strict=True)
    tags = dict(zip(workload.graph.names, pairs, strict=True))
    assert tags["top/t1/MatMul"] == tags["grad/top/t1/MatMul/dX"] == tags["grad/top/t1/MatMul/dW"] == (5, 1)
    assert tags["grad/top/t0/MatMul/Accum"] == (5, 0)
    assert tags["top/w"] == tags["top/w/Apply"] == tags["grad/Fill"] == (1, -1)


def test_scopes_nest_and_names_are_unique() -> None:
    b = Builder()
    with b.at("a", layer=1, step=2):
        b.placeholder((1,))
        with b.at("b", step=3):
            b.placeholder((1,))
        b.placeholder((1,))
        b.placeholder((1,), name="Placeholder_1")
    b.placeholder((1,))
    workload = b.workload()
    assert workload.graph.names == (
        "a/Placeholder",
        "a/b/Placeholder",
        "a/Placeholder_1",
        "a/Placeholder_1_1",
        "Placeholder",
    )
    assert workload.tags.layer.tolist() == [1, 1, 1, 1, -1]
    assert workload.tags.step.tolist() == [2, 3, 2, 2, -1]


def test_a_reader_of_a_split_gets_its_part_and_of_all_parts_their_sum() -> None:
    b = Builder()
    parts = b.split(b.placeholder((4, 6)), (1, 5))
    b.elementwise("One", parts[0])
    b.op("Both", parts, (1,))
    graph = b.workload().graph
    assert read(graph, "One") == {"Split": 16}
    assert read(graph, "Both") == {"Split": 96}


def test_a_tensor_read_twice_by_one_reader_flows_once_even_through_views() -> None:
    b = Builder()
    x = b.placeholder((4, 6), name="x")
    b.elementwise("Mul", x, x)
    b.op("Both", (x, b.reshape(x, (24,))), (1,))
    graph = b.workload().graph
    assert read(graph, "Mul") == {"x": 96}
    assert read(graph, "Both") == {"x": 96}


def test_the_square_of_a_variable_has_two_gradients_that_are_added() -> None:
    def square(b: Builder) -> int:
        a = b.variable((4,), name="a")
        return b.elementwise("Mul", a, a)

    assert kinds(trained(square, gradients="addn"))["MulGrad"] == 2
    assert kinds(trained(square, gradients="addn"))["AddN"] == 1
    assert kinds(trained(square))["Accum"] == 1


def test_a_fused_operation_that_reads_a_variable_twice_has_one_gradient_of_it() -> None:
    def net(b: Builder) -> int:
        a = b.variable((4,), name="a")
        return b.fused("Cell", (a, a), [(4,)], flops=1.0)[0]

    graph = trained(net)
    assert graph.out_bytes[index(graph, "grad/FusedCell/d")] == 16
    assert set(read(graph, "a/Apply")) == {"a", "grad/FusedCell/d"}


def test_no_gradient_passes_a_barrier_nor_goes_to_data() -> None:
    def net(b: Builder) -> int:
        a, c = variables(b, (4,), (4,))
        return b.elementwise("Mul", b.stop_gradient(b.elementwise("Tanh", a)), b.elementwise("Relu", c))

    graph = trained(net)
    assert "b/Apply" in graph.names
    assert "a/Apply" not in graph.names
    assert kinds(graph)["TanhGrad"] == 0
    assert kinds(graph)["MulGrad"] == 1
    assert kinds(trained(lambda b: b.matmul(b.placeholder((2, 3)), *variables(b, (3, 3)))))["MatMul"] == 2


def test_a_variable_that_is_not_trained_is_not_updated() -> None:
    b = Builder()
    frozen = b.variable((3, 3), name="frozen", trained=False)
    b.training(b.reduce("Sum", b.matmul(b.variable((2, 3), name="a"), frozen)))
    names = b.workload().graph.names
    assert "a/Apply" in names
    assert "frozen/Apply" not in names
    assert "grad/MatMul/dW" not in names


def test_rows_are_gathered_and_updated_where_the_table_lives() -> None:
    b = Builder()
    table = b.variable((1000, 8), name="table")
    rows = [b.gather(table, b.placeholder((3,), name=f"rows{i}")) for i in range(2)]
    b.training(b.reduce("Sum", b.elementwise("Mul", *rows)))
    graph = b.workload().graph
    held = [index(graph, name) for name in ("table", "Gather", "Gather_1", "table/Apply")]
    assert len({int(graph.colocate[i]) for i in held}) == 1
    assert read(graph, "Gather") == {"table": 3 * 8 * 4, "rows0": 12}
    assert read(graph, "table/Apply") == {"table": 6 * 8 * 4, "table/rows": 6 * 8 * 4}
    assert graph.flops[held[-1]] == 2 * 6 * 8
    assert graph.weight_bytes[held[-1]] == 2 * 32000


def test_a_table_that_is_also_multiplied_gets_the_sum_of_both_gradients() -> None:
    b = Builder()
    table = b.variable((10, 4), name="table")
    x = b.gather(table, b.placeholder((3,)))
    b.training(b.reduce("Sum", b.matmul(x, table, transpose=True)))
    graph = b.workload().graph
    assert set(read(graph, "table/AddN")) == {"grad/MatMul/dW", "grad/MatMul/dX"}
    assert graph.shape(index(graph, "table/AddN")) == (10, 4)


def test_auxiliary_operations_hang_off_their_kernel_and_change_nothing_else() -> None:
    def graph(fidelity: str) -> Graph:
        b = Builder(fidelity, glue={"MatMul": 3, "Variable": 2, "ApplySGD": 1, "Split": 6})  # type: ignore[arg-type]
        x, w = b.placeholder((2, 8)), b.variable((8, 8), name="w")
        halves = b.split(b.matmul(b.matmul(x, w), w), 2)
        b.training(b.reduce("Sum", b.elementwise("Mul", *halves)))
        return b.workload().graph

    core, full = graph("core"), graph("tf")
    extra = np.array([kind(full, i) in AUXILIARY for i in range(full.n)])
    assert np.count_nonzero(extra) == 3 * 5 + 2 + 1 + 6
    assert tuple(n for n, e in zip(full.names, extra, strict=True) if not e) == core.names
    assert full.flops[extra].sum() == 0
    assert full.out_bytes[extra].max() == 16
    for i in np.flatnonzero(extra):
        assert full.colocate[i] == full.colocate[index(full, full.names[i].rpartition("/")[0])] >= 0
    between = ~extra[full.edges[0]] & ~extra[full.edges[1]]
    named = {tuple(full.names[i] for i in pair): b for pair, b in _pairs(full, between)}
    assert named == {tuple(core.names[i] for i in pair): b for pair, b in _pairs(core, np.ones(core.m, bool))}
    assert np.all(full.colocate[full.edges[0][~between]] == full.colocate[full.edges[1][~between]])
    assert full.edge_bytes[~between].max() == 16
    assert is_acyclic(full)


def _pairs(graph: Graph, kept: Bool) -> list[tuple[tuple[int, int], int]]:
    return [((int(p), int(c)), int(b)) for p, c, b in zip(*graph.edges[:, kept], graph.edge_bytes[kept], strict=True)]


def test_an_operation_can_be_tied_and_read_less_than_a_whole_tensor() -> None:
    b = Builder()
    x = b.placeholder((100,), name="x")
    b.op("Peek", (x,), (1,), colocate=x, reads=(4,))
    graph = b.workload().graph
    assert read(graph, "Peek") == {"x": 4}
    assert graph.colocate.tolist() == [0, 0]


def test_a_network_of_products_costs_three_times_its_forward_pass() -> None:
    def net(b: Builder) -> int:
        x = b.variable((4, 8), name="x")
        for i in range(5):
            x = b.matmul(x, b.variable((8, 8), name=f"w{i}"))
        return x

    graph = trained(net)
    products = np.array([kind(graph, i) == "MatMul" for i in range(graph.n)])
    assert graph.flops[products].sum() == 3 * 5 * 2 * 4 * 8 * 8


@pytest.mark.parametrize("seed", range(5))
def test_exactly_the_variables_that_reach_the_loss_are_updated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = Builder()
    made = [b.variable((2,), name=f"v{i}") for i in range(6)]
    sources = {t: {f"v{t}"} for t in made}
    for _ in range(12):
        x, y = (made[i] for i in rng.integers(len(made), size=2))
        made.append(b.elementwise(str(rng.choice(["Mul", "Add", "AddN"])), x, y))
        sources[made[-1]] = sources[x] | sources[y]
    b.training(made[-1])
    graph = b.workload().graph
    assert {n.removesuffix("/Apply") for n in graph.names if n.endswith("/Apply")} == sources[made[-1]]
    assert is_acyclic(graph)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda b: b.matmul(b.placeholder((2, 3)), b.placeholder((4, 5))),
        lambda b: b.reshape(b.placeholder((2, 3)), (7,)),
        lambda b: b.split(b.placeholder((2, 3)), 2),
        lambda b: b.elementwise("Add", b.placeholder((2,)), b.placeholder((3,))),
        lambda b: b.conv(b.placeholder((2, 4, 3)), 4, 3, groups=2),
    ],
)
def test_shapes_that_do_not_fit_are_refused(wrong: Callable[[Builder], int]) -> None:
    with pytest.raises(ValueError, match=r"cannot|broadcast"):
        wrong(Builder())


def test_a_tensor_without_elements_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match=r"\(4, 0\)"):
        Builder().variable((4, 0))


def test_an_empty_builder_makes_an_empty_graph() -> None:
    assert Builder().workload().graph.n == 0
