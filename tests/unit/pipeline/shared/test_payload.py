"""Payload files: what is written is read back, and no object of Python's is in them."""

from __future__ import annotations

import errno
import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import Measurement, MeasurementFailed, Prediction
from pipeline.core.tensors import Reads
from pipeline.shared import payload
from runtime.calibration.machine_lines import MachineLine
from tests.strategies import graph_of, graphs

FULL = Path("/dev/full")


@given(graphs())
@settings(max_examples=25)
def test_a_graph_is_read_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    payload.save_graph(path, graph)
    again = payload.load_graph(path)
    assert (again.names, again.type_names, again.source) == (graph.names, graph.type_names, graph.source)
    for name in payload.GRAPH_ARRAYS:
        found, expected = getattr(again, name), getattr(graph, name)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert again.reads.same_as(graph.reads)


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a file that is always full")
def test_a_model_that_a_full_disk_cannot_hold_is_no_fault_of_openvino(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(words: str) -> None:
        with payload.whole_ir(tmp_path / "model.xml"):
            raise RuntimeError(words)

    with pytest.raises(OSError, match="as on a full disk") as raised:
        save("basic_ios::clear: iostream error")
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="no such op"):
        save("no such op")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: FULL.open("wb"))
    with pytest.raises(OSError, match="No space left on device"):
        save("Can't open bin file")


def test_reads_are_inferred_where_a_file_has_none(tmp_path: Path) -> None:
    graph = graph_of(3, [(0, 1), (0, 2)], out_bytes=[200, 1, 1], edge_bytes={(0, 1): 100, (0, 2): 100})
    payload.save_graph(tmp_path / "graph.npz", graph)
    arrays = payload.load_arrays(tmp_path / "graph.npz")
    payload.save_arrays(tmp_path / "old.npz", {k: v for k, v in arrays.items() if not k.startswith("read_")})
    assert payload.load_graph(tmp_path / "old.npz").reads.same_as(graph.reads)


def test_every_array_of_a_graph_is_written() -> None:
    assert set(payload.GRAPH_ARRAYS) == set(Graph.__dataclass_fields__) - {"names", "type_names", "source", "reads"}
    assert set(payload.READ_ARRAYS) == set(Reads.__dataclass_fields__)


def test_a_grouping_is_read_back_as_it_was(tmp_path: Path) -> None:
    payload.save_grouping(tmp_path / "g.npz", Grouping(np.array([0, 1, 1, 0], np.int32)))
    again = payload.load_grouping(tmp_path / "g.npz")
    assert again.group.tolist() == [0, 1, 1, 0]
    assert again.k == 2


def test_weights_are_read_back_as_they_were(tmp_path: Path) -> None:
    weights = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.zeros(0, np.float32)}
    payload.save_weights(tmp_path / "w.safetensors", weights)
    again = payload.read_weights(tmp_path / "w.safetensors")
    assert sorted(again) == sorted(weights)
    for name in weights:
        np.testing.assert_array_equal(again[name], weights[name])


def test_a_profile_is_read_back_as_it_was(tmp_path: Path) -> None:
    devices = (
        DeviceSpec("A", "CPU", "CPU_A", {"INFERENCE_NUM_THREADS": "1"}, "cpu", 10, "f"),
        DeviceSpec("B", "GPU.1", "GPU.1"),
    )
    topology = Topology.uniform(devices, bytes_per_s=1e9, latency_s=1e-6)
    costs = CostTable(("x", "y"), ("A", "B"), [[1.0, np.inf], [2.0, 0.5]], [0.1, 0.2], ("measured", "given"))
    payload.save_profile(tmp_path / "p.npz", costs, topology)
    costs_again, topology_again = payload.load_profile(tmp_path / "p.npz")
    assert topology_again.devices == devices
    assert (costs_again.names, costs_again.devices, costs_again.origin) == (costs.names, costs.devices, costs.origin)
    np.testing.assert_array_equal(costs_again.op_s, costs.op_s)
    np.testing.assert_array_equal(costs_again.launch_s, costs.launch_s)
    np.testing.assert_array_equal(topology_again.link_bytes_per_s, topology.link_bytes_per_s)
    np.testing.assert_array_equal(topology_again.link_latency_s, topology.link_latency_s)


def test_a_measurement_survives_json() -> None:
    result = Measurement(np.array([1.5, 2.5]), warm_up=3, compile_s=0.5, executed_on=("A", "B"), subgraphs=2)
    again = payload.result_from_json(json.loads(json.dumps(payload.result_to_json(result))))
    assert isinstance(again, Measurement)
    assert again.samples_s.tolist() == [1.5, 2.5]
    assert (again.warm_up, again.compile_s, again.executed_on, again.subgraphs) == (3, 0.5, ("A", "B"), 2)


def test_a_prediction_survives_json_and_is_no_measurement_afterwards() -> None:
    result = Prediction(1.5, ("A", "B"), 2)
    document = json.loads(json.dumps(payload.result_to_json(result)))
    assert payload.result_from_json(document) == result
    assert document.keys() >= payload.result_to_json(Measurement(np.array([1.0]))).keys()


def test_a_failure_survives_json() -> None:
    result = MeasurementFailed("timeout", "no answer within 3 s")
    assert payload.result_from_json(json.loads(json.dumps(payload.result_to_json(result)))) == result


def test_objects_are_refused_in_both_directions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        payload.save_arrays(tmp_path / "o.npz", {"o": np.array([object()], dtype=object)})
    np.savez(tmp_path / "evil.npz", o=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        payload.load_arrays(tmp_path / "evil.npz")


def test_what_a_document_lacks_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match="schema") as refused:
        payload.from_json(MachineLine, {"rows": 3})
    assert "\n" not in str(refused.value)


def test_an_archive_of_something_else_is_no_file_of_arrays(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"text")
    with pytest.raises(ValueError, match="something else"):
        payload.load_arrays(tmp_path / "a.npz")


def test_weights_that_cannot_be_written_are_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        payload.save_weights(tmp_path / "gone" / "encoder.safetensors", {"w": np.ones(3, np.float32)})
