"""What operations and links cost."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import DeviceError
from pipeline.core.graph import Graph
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings, ProfileSettings
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.links import fit_link
from runtime.measuring.profile import profile as module
from runtime.measuring.profile.fusion import cpu_kernels
from runtime.measuring.profile.left_out import COMPILE, UnfitError
from runtime.measuring.profile.profile import BYTES_PER_FLOP, Profile, kernel_labels, profile_model, share_out
from tests.models import two_towers
from tests.strategies import graph_of
from tests.two_cpus import two_cpus, write

SETTINGS = ProfileSettings(inferences=20, link_inferences=10, timeout_s=120.0)


def test_a_kernels_time_is_shared_by_flops_and_bytes() -> None:
    graph = graph_of(4, [], flops=[10, 0, 5, 3], out_bytes=[1, 1, 2, 9])
    weights = [10 + 4 + 1, 0 + 4 + 1, 5 + 8 + 1]
    assert BYTES_PER_FLOP == 4
    op_s = share_out(graph, [(["op2", "op0"], 29.0), (["op1"], 3.0), (["op0"], 2.0)])
    assert weights == [15, 5, 14]
    # op0 has its share of the first kernel and all of the last; op3 runs in none.
    np.testing.assert_allclose(op_s, [15 + 2, 3, 14, 0], rtol=1e-15)


def test_all_kernel_time_is_shared_out() -> None:
    rng = np.random.default_rng(0)
    graph = graph_of(9, [], flops=rng.integers(0, 99, 9).tolist(), out_bytes=rng.integers(0, 99, 9).tolist())
    kernels = [([f"op{i}" for i in rng.permutation(9)[: rng.integers(1, 9)]], float(rng.random())) for _ in range(20)]
    np.testing.assert_allclose(share_out(graph, kernels).sum(), sum(s for _, s in kernels), rtol=1e-12)


def test_kernels_are_numbered_and_the_first_of_several_counts() -> None:
    groups = [["op3"], ["op1", "op0"], ["op0", "op2"]]
    assert kernel_labels(graph_of(5, []), groups).tolist() == [1, 1, 2, 0, -1]


def test_a_link_by_hand() -> None:
    assert fit_link([3.0, 5.0], [100, 300]) == (2.0, 100.0)
    assert fit_link([3.0, 3.0], [100, 300]) == (3.0, math.inf)
    assert fit_link([3.0, 2.0], [100, 300]) == (3.0, math.inf)  # noise: no time grows with size
    assert fit_link([0.0, 4.0], [100, 300]) == (0.0, 50.0)  # noise: nothing takes less than no time


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Graph]:
    return write(two_towers(2, width=768), tmp_path_factory.mktemp("towers"))  # large: most of its time is kernels


def run(written: tuple[Path, Graph], devices: tuple[DeviceSpec, ...] | None = None, **more: Any) -> Profile:
    alike: dict[str, Any] = {"measuring": MeasureSettings(), "seed": 0, "progress": lambda text: None, **more}
    return profile_model(*written, devices or two_cpus(), SETTINGS, **alike)


def unlike() -> tuple[DeviceSpec, ...]:
    """Return two devices that may not be taken for one another."""
    a, b = two_cpus()
    return a, replace(b, fingerprint="another")


@pytest.fixture(scope="module")
def found(written: tuple[Path, Graph]) -> Profile:
    return run(written)


def kind(graph: Graph, i: int) -> str:
    return graph.type_names[graph.op_type[i]]


def test_counters_explain_most_of_the_latency(found: Profile) -> None:
    # Both sides of the share are means of the same inferences; what is not kernels is the cost of asking.
    assert all(0.5 <= share <= 1.05 for share in found.covered.values()), found.covered
    assert set(found.latency_s) == set(found.covered) == {"A", "B"}


def test_every_operation_has_a_figure_and_computing_ones_take_time(found: Profile, written: tuple[Path, Graph]) -> None:
    graph = written[1]
    assert found.costs.names == graph.names
    assert found.costs.devices == ("A", "B")
    assert np.isfinite(found.costs.op_s).all()
    for i in range(graph.n):
        if kind(graph, i) == "MatMul":
            assert found.costs.op_s[i].min() > 0, graph.names[i]
        if kind(graph, i) == "Constant":
            assert found.costs.op_s[i].max() == 0, graph.names[i]
    assert found.costs.origin == ("measured", "measured")
    assert found.refused == {"A": (), "B": ()}


def test_the_heavy_operations_are_found_by_name(found: Profile, written: tuple[Path, Graph]) -> None:
    # Were figures joined by position, they would land on other types of operations.
    graph = written[1]
    products = np.array([kind(graph, i) == "MatMul" for i in range(graph.n)])
    share = found.costs.op_s[products].sum(axis=0) / found.costs.op_s.sum(axis=0)
    assert share.min() > 0.7


def test_links_are_symmetric_and_positive(found: Profile) -> None:
    speed = found.topology.link_bytes_per_s
    assert speed[0, 1] == speed[1, 0] > 0
    assert found.topology.names == ("A", "B")
    assert np.all(found.costs.launch_s >= 0)


def test_figures_follow_the_names_when_the_graph_is_shuffled(
    written: tuple[Path, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = written[1]
    kernels = [[[name], float(i)] for i, name in enumerate(graph.names)]
    monkeypatch.setattr(module, "_refused_by_device", lambda *_: ())
    measured = {"kernels": kernels[::-1], "latency_s": 1.0, "mean_s": 2.0, "outputs": {}, "precisions": {}}
    monkeypatch.setattr(module, "_time_kernels", lambda *_, **__: measured)
    monkeypatch.setattr(module, "reference_outputs", lambda *_, **__: Reference({}))
    monkeypatch.setattr(module, "_measure_links", lambda devices, *_: (np.zeros(2), found_topology(), {}))
    costs = run(written).costs
    assert (
        costs.op_s[:, 0].tolist() == costs.op_s[:, 1].tolist() == [i / 2 for i in range(graph.n)]
    )  # the median inference took half of the mean


def found_topology() -> module.Topology:
    return module.Topology.uniform(two_cpus(), bytes_per_s=1.0, latency_s=0.0)


def test_refused_operations_cost_infinitely_much(written: tuple[Path, Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = written[1]
    monkeypatch.setattr(module, "_refused_by_device", lambda model, device, _: ("left0",) if device.name == "B" else ())
    measured = {"kernels": [[["left0"], 0.5]], "latency_s": 1.0, "mean_s": 1.0, "outputs": {}, "precisions": {}}
    monkeypatch.setattr(module, "_time_kernels", lambda *_, **__: measured)
    monkeypatch.setattr(module, "reference_outputs", lambda *_, **__: Reference({}))
    monkeypatch.setattr(module, "_measure_links", lambda *_: (np.zeros(2), found_topology(), {}))
    found = run(written, unlike())
    refused = graph.names.index("left0")
    assert found.costs.op_s[refused].tolist() == [0.5, np.inf]
    assert np.isinf(found.costs.op_s).sum() == 1
    assert found.covered == {"A": 0.5, "B": 0.5}  # what B refuses ran elsewhere, in the same inference
    assert found.refused == {"A": (), "B": ("left0",)}


def test_operations_that_no_device_runs_are_listed(
    written: tuple[Path, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"A": ("sum", "out"), "B": ("x", "sum")}
    monkeypatch.setattr(module, "_refused_by_device", lambda model, device, _: refused[device.name])
    with pytest.raises(DeviceError, match=r"1 operation\(s\) run on none of A, B: sum\."):
        run(written, unlike())


def test_of_equal_devices_one_is_asked_what_it_refuses(
    written: tuple[Path, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(module, "_refused_by_device", lambda model, device, _: asked.append(device.name) or ("sum",))
    with pytest.raises(DeviceError, match=r"1 operation\(s\) run on none of A, B: sum\."):
        run(written)
    assert asked == ["A"]


def test_what_a_single_device_refuses_is_asked_only_if_it_does_not_compile_the_model(
    written: tuple[Path, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UnfitError(MeasurementFailed("refused", "no such operation"), COMPILE)

    monkeypatch.setattr(module, "_refused_by_device", lambda *_: ("sum",))
    monkeypatch.setattr(module, "_time_kernels", refuse)
    monkeypatch.setattr(module, "reference_outputs", lambda *_, **__: Reference({}))
    with pytest.raises(DeviceError, match=r"1 operation\(s\) run on none of A: sum\."):
        run(written, unlike()[:1])


def test_kernels_of_a_single_device_that_were_timed_before_are_not_timed_again(
    written: tuple[Path, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    (device, _), asked = unlike(), list[str]()
    monkeypatch.setattr(module, "_refused_by_device", lambda *_: asked.append("support") or ())
    monkeypatch.setattr(module, "_time_kernels", lambda *_, **__: asked.append("kernels"))
    timed = {"kernels": [[["left0"], 0.5]], "latency_s": 1.0, "mean_s": 1.0}
    precision = device.properties["INFERENCE_PRECISION_HINT"]
    found = run(written, (device,), timed={precision: timed}, reference=Reference({}))
    assert (asked, found.latency_s, found.covered) == ([], {"A": 1.0}, {"A": 0.5})


def test_the_cpus_kernels_join_a_product_with_its_activation(written: tuple[Path, Graph]) -> None:
    path, graph = written
    kernel = dict(zip(graph.names, cpu_kernels(path, graph).tolist(), strict=True))
    assert kernel["left0"] == kernel["left0.relu"] >= 0
    assert len({kernel[name] for name in ("left0", "left1", "right0", "right1")}) == 4
