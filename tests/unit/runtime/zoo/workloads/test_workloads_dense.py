"""Convolutional networks, Transformers, and tensor computations in tiles, against the figures of their papers."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, is_acyclic, topological_order
from pipeline.core.workload import Workload
from runtime.zoo.workloads import TABLE, build, options
from runtime.zoo.workloads.amoebanet import amoebanet
from runtime.zoo.workloads.builder import NetworkOptions
from runtime.zoo.workloads.cnn import inception_v3, resnet50
from runtime.zoo.workloads.nasnet import nasnet
from runtime.zoo.workloads.record import AUXILIARY
from runtime.zoo.workloads.tiled import chainmm, ffnn, llama_block, llama_layer
from runtime.zoo.workloads.tiles import Blocks, Program, TileMachine
from runtime.zoo.workloads.transformer import bert, moe_block

CORE, CORE_INFERENCE = NetworkOptions("core"), NetworkOptions("core", training=False)
MIB = 2**20
Maker = Callable[..., Workload]
NETWORKS: dict[str, Maker] = {
    "amoebanet": amoebanet,
    "bert-base-training": bert,
    "inception-v3-training": inception_v3,
    "moe-block": moe_block,
    "nasnet-mobile": nasnet,
    "resnet50-training": resnet50,
}
TILED: dict[str, Maker] = {"chainmm": chainmm, "ffnn": ffnn, "llama-block": llama_block, "llama-layer": llama_layer}


def types(graph: Graph) -> list[str]:
    """Return the type of each operation."""
    return [graph.type_names[kind] for kind in graph.op_type]


def of_type(graph: Graph, *wanted: str) -> list[int]:
    """Return the operations of the given types."""
    return [i for i, kind in enumerate(types(graph)) if kind in wanted]


def parameter_bytes(workload: Workload) -> int:
    """Return the bytes of all variables."""
    return int(workload.graph.weight_bytes[of_type(workload.graph, "Variable")].sum())


def producers(graph: Graph, operation: int) -> list[int]:
    """Return what an operation reads."""
    return [int(i) for i in graph.edges[0, graph.edges[1] == operation]]


@pytest.fixture(scope="module")
def core() -> dict[str, Workload]:
    """Return a training step of every network, kernels only."""
    return {name: make(recipe=CORE) for name, make in NETWORKS.items()}


@pytest.fixture(scope="module")
def tiled() -> dict[str, Workload]:
    """Return every tensor computation in tiles."""
    return {name: make() for name, make in TILED.items()}


# --- networks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("inception-v3-training", 1260), ("amoebanet", 4070)])
def test_kernels_of_a_training_step_are_as_many_as_stated(core: dict[str, Workload], name: str, count: int) -> None:
    assert core[name].graph.n == pytest.approx(count, rel=0.1)


@pytest.mark.parametrize(("name", "count"), [("inception-v3-training", 24_713), ("amoebanet", 9_430)])
def test_with_a_frameworks_operations_the_counts_are_those_of_tensorflow(name: str, count: int) -> None:
    assert NETWORKS[name]().graph.n == pytest.approx(count, rel=0.03)


@pytest.mark.parametrize(
    ("name", "millions"),
    # ResNet-50 and Inception-v3: torchvision, the latter without the auxiliary head; BERT: with pooler and classifier.
    [
        ("resnet50-training", 25.557),
        ("inception-v3-training", 23.835),
        ("bert-base-training", 109.484),
        ("nasnet-mobile", 5.29),
    ],
)
def test_parameters_are_those_of_the_paper(core: dict[str, Workload], name: str, millions: float) -> None:
    assert parameter_bytes(core[name]) / 4e6 == pytest.approx(millions, rel=1e-3)


def test_inception_takes_91_mebibytes_and_1_1_teraflop_per_step_of_32_images(core: dict[str, Workload]) -> None:
    assert parameter_bytes(core["inception-v3-training"]) / MIB == pytest.approx(91, rel=0.01)
    assert core["inception-v3-training"].graph.flops.sum() == pytest.approx(1.10e12, rel=0.01)
    assert inception_v3(batch=64, recipe=CORE).graph.flops.sum() == pytest.approx(2.21e12, rel=0.01)


def test_amoebanet_of_190_filters_takes_255_mebibytes_and_3_2_teraflop_per_step_of_64_images() -> None:
    workload = amoebanet(filters=190, recipe=CORE)
    assert parameter_bytes(workload) / MIB == pytest.approx(255, rel=0.01)
    assert workload.graph.flops.sum() == pytest.approx(3.19e12, rel=0.01)


@pytest.mark.parametrize(
    ("text", "parameters", "multiply_adds"),
    [("nasnet-mobile?batch=1", 5.3e6, 564e6), ("nasnet-large?batch=1", 88.9e6, 23.8e9)],
)
def test_nasnet_is_as_large_as_published(text: str, parameters: float, multiply_adds: float) -> None:
    workload = build(f"{text}&fidelity=core&training=false")
    assert parameter_bytes(workload) / 4 == pytest.approx(parameters, rel=0.01)
    assert workload.graph.flops.sum() / 2 == pytest.approx(multiply_adds, rel=0.03)


def test_a_resnet_needs_4_1_billion_multiply_adds_per_image() -> None:
    flops = resnet50(batch=1, recipe=CORE_INFERENCE).graph.flops.sum()
    assert flops / 2 == pytest.approx(4.1e9, rel=0.02)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("recipe", [NetworkOptions("fused"), CORE_INFERENCE, NetworkOptions("tf")], ids=str)
def test_networks_are_acyclic_and_say_where_operations_stand(name: str, recipe: NetworkOptions) -> None:
    workload = NETWORKS[name](recipe=recipe)
    assert is_acyclic(workload.graph)
    assert not workload.times
    if name != "moe-block" or recipe.fidelity == "core":
        assert workload.tags.layer.max() >= 0


@pytest.mark.parametrize("name", NETWORKS)
def test_training_multiplies_the_work_by_about_three(core: dict[str, Workload], name: str) -> None:
    forward = NETWORKS[name](recipe=CORE_INFERENCE)
    ratio = core[name].graph.flops.sum() / forward.graph.flops.sum()
    assert 2.8 < ratio < 3.1
    assert parameter_bytes(forward) == parameter_bytes(core[name])


@pytest.mark.parametrize("name", NETWORKS)
def test_every_variable_is_updated_where_it_lives(core: dict[str, Workload], name: str) -> None:
    graph = core[name].graph
    variables = of_type(graph, "Variable")
    updates = of_type(graph, "ApplySGD")
    assert len(updates) == len(variables)
    assert sorted(graph.colocate[updates]) == sorted(graph.colocate[variables])
    assert graph.colocate[variables].min() >= 0


@pytest.mark.parametrize("name", NETWORKS)
def test_fused_networks_keep_the_parameters_and_the_work(core: dict[str, Workload], name: str) -> None:
    workload = NETWORKS[name](recipe=NetworkOptions("fused"))
    assert workload.graph.n < 0.6 * core[name].graph.n
    assert parameter_bytes(workload) == parameter_bytes(core[name])
    assert workload.graph.flops.sum() == pytest.approx(core[name].graph.flops.sum(), rel=0.02)


def test_auxiliary_operations_add_no_work(core: dict[str, Workload]) -> None:
    graph = inception_v3().graph
    auxiliary = of_type(graph, *AUXILIARY)
    assert graph.n - len(auxiliary) == core["inception-v3-training"].graph.n
    assert graph.flops[auxiliary].sum() == 0
    assert graph.flops.sum() == core["inception-v3-training"].graph.flops.sum()


def test_inception_halves_its_images_as_in_the_paper() -> None:
    graph = inception_v3(batch=2, recipe=CORE_INFERENCE).graph
    joined = [graph.shape(i) for i in of_type(graph, "Concat")]
    sizes = {35: 3, 17: 5, 8: 3}  # blocks that put out rows of that many pixels
    assert [shape[1] for shape in joined] == [rows for rows, count in sizes.items() for _ in range(count)]
    assert [shape[3] for shape in joined] == [256, 288, 288, *[768] * 5, 1280, 2048, 2048]


def test_amoebanet_joins_states_0_3_4_6_of_a_normal_cell_and_4_5_6_of_a_reducing_one() -> None:
    graph = amoebanet(batch=2, layers=3, filters=32, recipe=CORE_INFERENCE).graph
    cells = [i for i in of_type(graph, "Concat") if re.fullmatch(r"cell\d+/Concat", graph.names[i])]
    joined = [sorted(graph.names[j].split("/")[1] for j in producers(graph, i)) for i in cells]
    normal, reducing = ["in0", "state3", "state4", "state6"], ["state4", "state5", "state6"]
    assert joined == [reducing, reducing, normal, reducing, normal, reducing, normal]
    # Three or four states of 16, 32, 64, 128 channels; 112 pixels behind the stem.
    assert [graph.shape(i)[1:] for i in cells] == [
        (56, 56, 48),
        (28, 28, 96),
        (28, 28, 128),
        (14, 14, 192),
        (14, 14, 256),
        (7, 7, 384),
        (7, 7, 512),
    ]


def test_a_state_of_amoebanet_is_the_sum_of_the_operations_of_its_genotype() -> None:
    graph = amoebanet(batch=2, layers=3, filters=32, recipe=CORE_INFERENCE).graph
    index = {name: i for i, name in enumerate(graph.names)}
    state4 = producers(graph, index["cell2/state4/Add"])  # 0 conv1x1 and 0 conv1x7-7x1
    assert [types(graph)[i] for i in state4] == ["BatchNorm", "BatchNorm"]
    convolutions = [i for i in of_type(graph, "Conv") if graph.names[i].startswith("cell2/state4/")]
    windows = sorted(graph.shape(producers(graph, i)[-1]) for i in convolutions)
    assert windows == [(1, 1, 8, 32), (1, 1, 32, 8), (1, 1, 32, 32), (1, 7, 8, 8), (7, 1, 8, 8)]
    state5 = producers(graph, index["cell2/state5/Add"])  # 2 maxpool3x3 and 2 identity
    assert sorted(graph.names[i] for i in state5) == ["cell2/state2/Add", "cell2/state5/MaxPool"]


def test_amoebanet_factorises_what_comes_from_before_a_reduction() -> None:
    graph = amoebanet(batch=2, layers=3, filters=32, recipe=CORE_INFERENCE).graph
    joined = [name for name in graph.names if re.fullmatch(r"cell\d+/in1/Concat", name)]
    assert joined == [f"cell{i}/in1/Concat" for i in (1, 2, 4, 6)]


def test_nasnet_joins_six_states_of_a_normal_cell_and_four_of_a_reducing_one() -> None:
    graph = nasnet(batch=2, cells=2, recipe=CORE_INFERENCE).graph
    cells = [i for i in of_type(graph, "Concat") if re.fullmatch(r"cell\d+/Concat", graph.names[i])]
    widths = [4 * 11, 4 * 22, *[6 * 44] * 2, 4 * 88, *[6 * 88] * 2, 4 * 176, *[6 * 176] * 2]
    assert [graph.shape(i)[3] for i in cells] == widths
    assert [graph.shape(i)[1] for i in cells] == [56, *[28] * 3, *[14] * 3, *[7] * 3]


def test_a_separable_convolution_of_nasnet_is_two_depthwise_and_two_pointwise_ones() -> None:
    graph = nasnet(batch=2, cells=1, recipe=CORE_INFERENCE).graph
    state2 = [i for i in of_type(graph, "GroupConv") if graph.names[i].startswith("cell2/state2/")]
    windows = [graph.shape(producers(graph, i)[-1]) for i in state2]
    assert sorted(windows) == [(3, 3, 1, 44)] * 2 + [(5, 5, 1, 44)] * 2
    pointwise = [i for i in of_type(graph, "Conv") if graph.names[i].startswith("cell2/state2/")]
    assert len(pointwise) == 4


def test_a_token_reaches_all_experts_and_comes_back_from_all() -> None:
    graph = moe_block(batch=2, sequence=16, hidden=8, heads=2, experts=4, recipe=CORE_INFERENCE).graph
    total = of_type(graph, "AddN")
    assert len(total) == 1
    answers = producers(graph, total[0])
    assert [graph.names[i].split("/")[2] for i in answers] == [f"expert{i}" for i in range(4)]
    # Room for 1.25 x 2 tokens out of 16, shared by 4 experts: 10 places.
    weights = of_type(graph, "TopTwo")
    assert [graph.shape(i) for i in weights] == [(2, 16, 4, 10)]


def test_bert_has_a_softmax_per_layer_over_all_pairs_of_tokens() -> None:
    graph = bert(batch=2, sequence=16, recipe=CORE_INFERENCE).graph
    shapes = [graph.shape(i) for i in of_type(graph, "Softmax")]
    assert shapes == [(2, 12, 16, 16)] * 12 + [(2, 2)]
    assert not of_type(graph, "Dropout")


@pytest.mark.parametrize(
    "text",
    [
        "amoebanet?layers=4",
        "amoebanet?filters=8",
        "nasnet-mobile?cells=0",
        "bert-base-training?heads=7",
        "bert-base-training?sequence=513",
        "moe-block?experts=1",
        "chainmm?size=10",
        "ffnn?hidden=2",
        "llama-block?sequence=6",
        "chainmm?link_bytes_per_s=0",
    ],
)
def test_sizes_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        build(text)


@pytest.mark.parametrize("name", [*NETWORKS, *TILED, "nasnet-large"])
def test_every_generator_is_registered_with_its_options(name: str) -> None:
    assert name in TABLE
    assert {"recipe", "program"}.isdisjoint(options(name))
    assert ("training" in options(name)) == (name not in TILED)


# --- tiles ----------------------------------------------------------------------------------------------------------


def made_of(workload: Workload, name: str) -> set[str]:
    """Return the names of all operations that one depends on, itself included."""
    graph = workload.graph
    front, found = [graph.names.index(name)], set()
    while front:
        i = front.pop()
        if graph.names[i] not in found:
            found.add(graph.names[i])
            front += producers(graph, i)
    return found


def finish_s(workload: Workload, device: Sequence[int], p: int = 4) -> float:
    """Return the makespan on devices that run first come, first served, with links without contention."""
    graph, seconds = workload.graph, workload.times["*"]
    waiting, free_s = graph.in_degree.tolist(), [0.0] * p
    queue: list[list[tuple[float, int]]] = [[] for _ in range(p)]
    arrived = np.zeros(graph.n)
    events = [(0.0, i) for i in range(graph.n) if waiting[i] == 0]
    end_s = 0.0
    heapq.heapify(events)
    while events:
        now, _ = events[0]
        while events and events[0][0] == now:
            _, i = heapq.heappop(events)
            if i < graph.n:
                heapq.heappush(queue[device[i]], (now, i))
        for d in range(p):
            if queue[d] and free_s[d] <= now:
                _, i = heapq.heappop(queue[d])
                free_s[d] = done = now + seconds[i]
                end_s = max(end_s, done)
                heapq.heappush(events, (done, graph.n + d))  # wakes the device
                for e in np.flatnonzero(graph.edges[0] == i):
                    j = int(graph.edges[1, e])
                    far = device[i] != device[j]
                    arrived[j] = max(arrived[j], done + far * graph.edge_bytes[e] / workload.link_bytes_per_s)
                    waiting[j] -= 1
                    if waiting[j] == 0:
                        heapq.heappush(events, (float(arrived[j]), j))
    return end_s


def owner(name: str) -> int:
    """Return the device that makes output tile (i, j) of a product, and what leads to it; quarters by their half."""
    i, _, j = name[name.index("[") + 1 : name.index("]")].partition(",")
    if name.startswith("DE"):
        return 2 * (int(i) // 2) + int(j.split(",")[0]) // 2
    if not j:  # the update of a bias: those of the two layers on different devices
        return int(i) + 2 * (name[1] == "1")
    return 2 * int(i) + int(j.split(",")[0])


@pytest.mark.parametrize(
    ("name", "count"), [("chainmm", 76), ("ffnn", 180), ("llama-block", 182), ("llama-layer", 229)]
)
def test_tiled_computations_have_as_many_operations_as_those_of_the_benchmark(
    tiled: dict[str, Workload], name: str, count: int
) -> None:
    graph = tiled[name].graph
    assert graph.n == count if name != "llama-layer" else graph.n == pytest.approx(count, rel=0.03)
    assert len(topological_order(graph)) == graph.n


@pytest.mark.parametrize("name", TILED)
def test_tiles_take_the_seconds_of_the_machine_and_travel_whole(tiled: dict[str, Workload], name: str) -> None:
    workload, machine = tiled[name], TileMachine()
    graph = workload.graph
    assert set(workload.times) == {"*"}
    assert workload.link_bytes_per_s > 0
    sizes = [4 * np.prod(graph.shape(i)) for i in range(graph.n)]
    assert graph.out_bytes.tolist() == sizes
    assert np.array_equal(graph.edge_bytes, graph.out_bytes[graph.edges[0]])
    assert np.all(workload.times["*"] >= machine.launch_s + graph.flops / machine.flop_per_s - 1e-12)


def test_a_product_of_tiles_takes_the_time_of_its_flops() -> None:
    workload = chainmm(size=1024)
    i = workload.graph.names.index("AB[1,0,3]")  # 512 x 256 by 256 x 512
    assert workload.graph.flops[i] == 2 * 512 * 256 * 512
    assert workload.times["*"][i] == pytest.approx(8e-6 + 2 * 512 * 256 * 512 / 4.65e12)
    assert workload.graph.weight_bytes[i] == 2 * 4 * 512 * 256
    assert workload.graph.shape(i) == (512, 512)


def test_a_sum_of_tiles_takes_the_time_of_its_bytes() -> None:
    workload = chainmm(size=1024)
    i = workload.graph.names.index("sum[0,0]+0.0")
    assert workload.times["*"][i] == pytest.approx(8e-6 + 3 * 4 * 512 * 512 / 549e9)


def test_the_chain_of_products_multiplies_and_adds_what_it_should(tiled: dict[str, Workload]) -> None:
    workload = tiled["chainmm"]
    for i, j in product(range(2), range(2)):
        needed = made_of(workload, f"sum[{i},{j}]+2.0")
        terms = {f"{name}[{i},{j},{k}]" for name in ("AB", "CDE") for k in range(4)}
        inner = {f"DE[{k},{q},0]" for k in range(4) for q in (2 * j, 2 * j + 1)}
        assert {name for name in needed if not name.startswith("sum")} == terms | inner
    k_term = {name for name in made_of(workload, "CDE[0,1,2]") if name.startswith("DE")}
    assert k_term == {"DE[2,2,0]", "DE[2,3,0]"}
    assert sum(workload.graph.flops[of_type(workload.graph, "MatMul")]) == 3 * 2 * 2048**3


def test_the_training_step_needs_five_products_of_the_right_tiles(tiled: dict[str, Workload]) -> None:
    workload = tiled["ffnn"]
    assert sum(workload.graph.flops[of_type(workload.graph, "MatMul")]) == 5 * 2 * 3072**3
    reads = {
        name: {workload.graph.names[i] for i in producers(workload.graph, workload.graph.names.index(name))}
        for name in ("AW2[0,1,2]", "dW2[1,0,3]", "dA[0,1,0]", "dW1[1,0,3]", "W2'[0,1]", "b1'[1]")
    }
    assert reads == {
        "AW2[0,1,2]": {"A[0,1]"},  # the third quarter of the columns of A
        "dW2[1,0,3]": {"A[1,1]", "dY[1,0]"},  # rows 1 of the transpose, the last quarter of the batch
        "dA[0,1,0]": {"dY[0,0]"},
        "dW1[1,0,3]": {"dZ[1,0]"},
        "W2'[0,1]": {"dW2[0,1]+1.0"},
        "b1'[1]": {"db1[0,1]", "db1[1,1]"},
    }


def test_attention_reads_no_later_keys_and_all_earlier_ones(tiled: dict[str, Workload]) -> None:
    for name in ("llama-block", "llama-layer"):
        early = made_of(tiled[name], "attention[1,0]")
        late = made_of(tiled[name], "attention[1,1]")
        assert {"K.rope[0,1]", "Q.rope[0,1]"} <= early
        assert not {"K.rope[1,1]", "Q.rope[1,1]", "K.rope[0,0]"} & early
        assert {"K.rope[0,1]", "K.rope[1,1]", "Q.rope[1,1]"} <= late
        assert not {"Q.rope[0,1]", "K.rope[0,0]"} & late


def test_the_feed_forward_half_adds_to_the_output_of_the_attention_half(tiled: dict[str, Workload]) -> None:
    graph = tiled["llama-layer"].graph
    reads = {graph.names[i] for i in producers(graph, graph.names.index("residual2[1,0]"))}
    assert reads == {"residual1[1,0]", "down[1,0]+1.0"}
    gated = {graph.names[i] for i in producers(graph, graph.names.index("gated[0,1]"))}
    assert gated == {"silu[0,1]", "up[0,1]+1.0"}


@pytest.mark.parametrize("name", ["chainmm", "ffnn"])
def test_a_quarter_of_the_work_on_each_of_four_devices_can_be_reached(tiled: dict[str, Workload], name: str) -> None:
    workload = tiled[name]
    device = [owner(operation) for operation in workload.graph.names]
    work_s = workload.times["*"].sum()
    assert finish_s(workload, [0] * workload.graph.n) == pytest.approx(work_s)
    load_s = np.bincount(device, weights=workload.times["*"])
    assert load_s == pytest.approx(work_s / 4)
    assert finish_s(workload, device) == pytest.approx(work_s / 4)


@pytest.mark.parametrize("name", TILED)
def test_sending_a_product_takes_about_as_long_as_making_it(tiled: dict[str, Workload], name: str) -> None:
    workload = tiled[name]
    products = of_type(workload.graph, "MatMul")
    send_s = workload.graph.out_bytes[products] / workload.link_bytes_per_s
    assert 0.5 < np.median(send_s / workload.times["*"][products]) < 5


def test_a_product_of_matrices_cut_differently_reads_every_tile_that_overlaps() -> None:
    program = Program()
    left = program.each("Relu", "left", Blocks.given(8, 8, (2, 2)))
    right = program.each("Relu", "right", Blocks.given(8, 8, (4, 4)))
    program.product("P", left, right, grid=(2, 2), splits=4)
    graph = program.workload().graph
    reads = {graph.names[i] for i in producers(graph, graph.names.index("P[1,0,2]"))}
    assert reads == {"left[1,1]", "right[2,0]", "right[2,1]"}


def test_the_transpose_of_a_matrix_of_tiles_swaps_rows_and_columns() -> None:
    program = Program()
    matrix = program.each("Relu", "x", Blocks.given(4, 8, (2, 2)))
    turned = matrix.transposed
    assert (turned.rows, turned.columns) == (8, 4)
    assert turned.tile[0][1].op == matrix.tile[1][0].op
    assert turned.tile[0][1].shape == (4, 2)


def test_a_number_that_is_none_is_said_to_be_wanted() -> None:
    key = next(k for k, default in options("ffnn").items() if type(default) is int)
    with pytest.raises(UsageError, match=r"ffnn\?.* is 'x'. Give a whole number"):
        build(f"ffnn?{key}=x")
