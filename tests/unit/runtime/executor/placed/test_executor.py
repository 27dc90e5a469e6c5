"""A model in segments: its interface, its errors, threads, processes, and what is compiled."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
import pytest
from openvino import opset13 as op

from pipeline.core.devices import DeviceSpec
from pipeline.core.placement import Placement
from pipeline.system.process import cpu_count
from runtime.executor.placed import (
    ManifestError,
    PlacedClosedError,
    PlacedInputError,
    PlacedModel,
    SegmentCompiler,
    SegmentError,
    load,
    read_manifest,
)
from runtime.executor.placed.manifest import DeviceEntry
from runtime.executor.segments import segment_graph
from runtime.executor.splitting import HowToRun, device_entries, placed_in_memory, split_model
from tests.executor_models import graph_with_dynamic_cuts
from tests.models import chain, constant, through_file, two_towers
from tests.two_cpus import two_cpus

RUNNERS = ("serial", "level", "threads", "pipeline")


def placement_of(graph: Any, on_b: str) -> Placement:
    """Return the placement that puts operations on B in whose names a text occurs, all others on A."""
    return Placement(np.array([on_b in name for name in graph.names], np.int32), ("A", "B"))


def split(folder: Path, model: ov.Model, on_b: str, how: HowToRun | None = None) -> Path:
    """Write a model in segments, and return the folder."""
    folder.mkdir(exist_ok=True)
    normal = through_file(model, folder)
    graph = graph_with_dynamic_cuts(normal)
    split_model(normal, graph, placement_of(graph, on_b), two_cpus(), folder / "split", how or HowToRun())
    return folder / "split"


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of two towers on two devices."""
    return split(tmp_path_factory.mktemp("towers"), two_towers(), "right")


def expected(x: np.ndarray[Any, Any]) -> Any:
    """Return what the two towers make of x [1, 8]."""
    rng = np.random.default_rng(0)
    tops = []
    for _ in range(2):
        y = x
        for _ in range(2):
            y = np.maximum(y @ (rng.standard_normal((8, 8)).astype(np.float32) / np.float32(np.sqrt(8))), 0)
        tops.append(y)
    return tops[0] + tops[1]


def test_inputs_are_taken_by_name_by_place_as_a_list_and_alone(towers: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    with load(towers) as model:
        for given in ({"x": x}, {0: x}, [x], x, x.astype(np.float64), ov.Tensor(x), x.tolist() and [x.tolist()]):
            found = model(given)
            assert np.allclose(found["out"], expected(x), atol=1e-5)
            assert np.array_equal(found[0], found["out"])
        assert (len(model.inputs), model.inputs[0].get_any_name(), model.outputs[0].shape) == (1, "x", (1, 8))
        assert model.infer(x).to_tuple()[0].shape == (1, 8)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": np.zeros((1, 9), np.float32)}, r"input x is f32 \[1,8\], not f32 \[1,9\]"),
        ({"z": np.zeros((1, 8), np.float32)}, "the inputs are x, and not z"),
        ([np.zeros((1, 8))] * 2, "takes 1 inputs, and was given 2"),
        (ov.Tensor(np.zeros((1, 8), np.float64)), r"not f64 \[1,8\]"),
        ({}, "no value for the input x"),
        (None, "no value for the input x"),
    ],
)
def test_wrong_inputs_are_named_and_the_model_goes_on(towers: Path, given: Any, words: str) -> None:
    x = np.ones((1, 8), np.float32)
    with load(towers, runner="pipeline") as model:
        with pytest.raises(PlacedInputError, match=words):
            model.infer(given)
        with pytest.raises(PlacedInputError, match=words):
            model.start_async(given)
        assert np.allclose(model(x)[0], expected(x), atol=1e-5)


def test_an_array_that_may_not_be_written_is_an_input_like_others(towers: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    x.flags.writeable = False
    with load(towers) as model:
        assert np.allclose(model(x)[0], expected(x), atol=1e-5)


def test_what_a_device_is_asked_to_do_goes_before_what_segments_want() -> None:
    plain = DeviceSpec("CPU", "CPU", "CPU", {}, "cpu")
    asked = DeviceSpec("A", "CPU", "CPU_A", {"INFERENCE_NUM_THREADS": "1", "ENABLE_CPU_PINNING": "YES"}, "cpu")
    gpu = DeviceSpec("GPU.0", "GPU.0", "GPU.0", {"INFERENCE_PRECISION_HINT": "f16"}, "gpu")
    found = device_entries([plain, asked, gpu])
    threads = str(cpu_count())
    expected = {"NUM_STREAMS": "1", "ENABLE_CPU_PINNING": "NO", "INFERENCE_NUM_THREADS": threads}
    assert found["CPU"] == DeviceEntry("CPU", "CPU", "", expected)
    assert found["A"].properties == {"NUM_STREAMS": "1"} | dict(asked.properties)
    assert found["A"].library == "openvino_intel_cpu_plugin"
    assert found["GPU.0"].properties == gpu.properties


def test_an_input_may_change_once_an_inference_has_begun_and_outputs_do_not(towers: Path) -> None:
    x = np.ones((1, 8), np.float32)
    with load(towers, runner="pipeline") as model:
        pending = model.start_async(x)
        x[:] = 0
        first = model.wait(pending)
        assert np.allclose(first[0], expected(np.ones((1, 8), np.float32)), atol=1e-5)
        kept = first[0].copy()
        model(x)
        assert np.array_equal(first[0], kept)


def test_a_request_is_used_as_openvinos_is(towers: Path) -> None:
    x = np.ones((1, 8), np.float32)
    with load(towers) as model:
        request = model.create_infer_request()
        request.set_input_tensor(0, ov.Tensor(x))
        request.infer()
        assert np.allclose(request.output_tensors[0].data, expected(x), atol=1e-5)
        assert request.latency > 0
        request.start_async(2 * x)
        request.wait()
        assert np.allclose(request.results["out"], expected(2 * x), atol=1e-5)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_queue_tells_every_inference_to_its_callback(towers: Path, runner: Any) -> None:
    found: dict[int, Any] = {}
    xs = [np.full((1, 8), i, np.float32) for i in range(20)]
    with load(towers, runner=runner, requests=3) as model:
        queue = model.queue(lambda results, number: found.update({number: results[0]}))
        assert len(queue) == 3
        assert queue.is_ready()
        for i, x in enumerate(xs):
            queue.start_async(x, i)
        queue.wait_all()
    assert all(np.allclose(found[i], expected(x), atol=1e-4) for i, x in enumerate(xs))
    assert len(found) == 20


def test_what_a_queues_callback_raises_is_told_at_the_end(towers: Path) -> None:
    ended = []

    def callback(_: Any, number: int) -> None:
        ended.append(number)
        if number == 1:
            raise ZeroDivisionError

    with load(towers, runner="pipeline", requests=2) as model:
        queue = model.queue(callback)
        for i in range(4):
            queue.start_async(np.ones((1, 8), np.float32), i)
        with pytest.raises(ZeroDivisionError):
            queue.wait_all()
        queue.wait_all()
    assert sorted(ended) == [0, 1, 2, 3]


def hammer(folder: Path, runner: Any, requests: int, count: int) -> None:
    """Run `count` inferences under 8 threads, and look at every answer."""
    with load(folder, runner=runner, requests=requests) as model:

        def work(thread: int) -> int:
            rng = np.random.default_rng(thread)
            right = 0
            for _ in range(count // 8):
                x = rng.standard_normal((1, 8)).astype(np.float32)
                right += np.allclose(model(x)[0], expected(x), atol=1e-4)
            return right

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(work, range(8))) == count // 8 * 8


@pytest.mark.parametrize("runner", RUNNERS)
def test_eight_threads_get_all_their_answers_and_no_others(towers: Path, runner: Any) -> None:
    hammer(towers, runner, 3, 304)


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_eight_threads_get_ten_thousand_answers(towers: Path, runner: Any) -> None:
    hammer(towers, runner, 4, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_memory_does_not_grow_with_inferences(towers: Path, runner: Any) -> None:
    x = np.ones((1, 8), np.float32)
    with load(towers, runner=runner) as model:
        for _ in range(5_000):
            model(x)
        before = psutil.Process().memory_info().rss
        for _ in range(100_000):
            model(x)
        assert psutil.Process().memory_info().rss - before < 8 << 20


def with_halves() -> ov.Model:
    """Return the sum of both halves of relu(x), x [?, 8]: an odd number of rows has none."""
    x = op.parameter(ov.PartialShape([-1, 8]), np.float32, name="x")
    halves = op.split(op.relu(x, name="relu"), constant(0, "axis", np.int64), 2)
    halves.set_friendly_name("halves")
    total = op.add(halves.output(0), halves.output(1), name="sum")
    return ov.Model([op.result(total, name="out")], [x], "with_halves")


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_segment_that_fails_is_named_with_its_device(tmp_path: Path, runner: Any) -> None:
    folder = split(tmp_path, with_halves(), "halves")
    with load(folder, runner=runner) as model:
        with pytest.raises(SegmentError, match="on device B failed") as caught:
            model(np.ones((3, 8)))
        place = int(caught.value.segment.removeprefix("segment"))
        assert model.manifest.segments[place].operations == ("halves",)
        for rows in (2, 6):
            assert np.array_equal(model(np.ones((rows, 8)))[0], np.full((rows // 2, 8), 2.0))


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_closed_model_refuses_and_ends_its_threads(towers: Path, runner: Any) -> None:
    before = threading.active_count()
    model = load(towers, runner=runner, requests=2)
    x = np.ones((1, 8), np.float32)
    model.wait(model.start_async(x))
    model.close()
    model.close()
    assert threading.active_count() == before
    for call in (model, model.infer, model.start_async, lambda _: model.create_infer_request()):
        with pytest.raises(PlacedClosedError, match="is closed"):
            call(x)


@pytest.mark.parametrize("runner", RUNNERS)
def test_closing_waits_for_what_runs(towers: Path, runner: Any) -> None:
    x = np.ones((1, 8), np.float32)
    model = load(towers, runner=runner, requests=2)
    begun = [model.start_async(x) for _ in range(10)]
    refused, right, first = [], [], threading.Event()

    def work() -> None:
        while not refused:
            try:
                right.append(np.allclose(model(x)[0], expected(x), atol=1e-5))
            except PlacedClosedError as error:
                refused.append(error)
            first.set()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    first.wait()
    model.close()
    for thread in threads:
        thread.join()
    assert refused
    assert all(right)
    assert all(np.allclose(pending.wait()[0], expected(x), atol=1e-5) for pending in begun)


def test_a_model_that_is_forgotten_ends_its_threads(towers: Path) -> None:
    before = threading.active_count()
    model = load(towers, runner="pipeline")
    assert threading.active_count() > before
    del model
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that forking with threads may hang
def test_after_a_fork_the_child_is_told_to_load_again(towers: Path) -> None:
    x = np.ones((1, 8), np.float32)
    with load(towers) as model:
        model(x)
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                model(x)
                os.write(tell, b"it ran")
            except PlacedClosedError as error:
                os.write(tell, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(told, 1000).endswith(b"load it again in this one")
        assert np.allclose(model(x)[0], expected(x), atol=1e-5)
    os.close(told)
    os.close(tell)


def in_spawned(folder: str, answer: Any) -> None:
    """Run one inference in a process of its own."""
    os.environ["CI"] = "true"
    with load(folder) as model:
        answer.put(model(np.ones((1, 8), np.float32))[0])


def test_a_spawned_process_loads_the_folder_itself(towers: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    process = context.Process(target=in_spawned, args=(str(towers), answer))
    process.start()
    found = answer.get()
    process.join()
    assert np.allclose(found, expected(np.ones((1, 8), np.float32)), atol=1e-5)


def test_the_folder_runs_with_openvino_and_numpy_alone(towers: Path, tmp_path: Path) -> None:
    x = np.ones((1, 8), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    code = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(towers)!r}); sys.argv = ['placed', {str(towers)!r}, 'in.npz', 'out.npz']\n"
        "runpy.run_module('placed', run_name='__main__')\n"
        "ours = {'pipeline', 'coarsen', 'embed', 'policy', 'runtime'} & {m.partition('.')[0] for m in sys.modules}\n"
        "assert not ours, ours\n"
    )
    environment = {**os.environ, "CI": "true"}
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    with np.load(tmp_path / "out.npz") as arrays:
        assert np.allclose(arrays["output_0"], expected(x), atol=1e-5)


def compiled_for(model: ov.Model, on_b: str, compiler: SegmentCompiler) -> PlacedModel:
    """Return a model in segments, those compiled by a compiler that may have done so before."""
    graph = graph_with_dynamic_cuts(model)
    found = segment_graph(graph, placement_of(graph, on_b))
    return placed_in_memory(model, found, two_cpus(), HowToRun(), compiler)


def test_a_placement_that_differs_in_one_group_compiles_what_changed(tmp_path: Path) -> None:
    model = through_file(chain(12), tmp_path)
    compiler = SegmentCompiler()
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    counts = []
    answers = []
    for on_b in ("op3", "op3", "op7", "op3"):  # one operation of the chain on B: before it and behind it a segment on A
        before = compiler.compilations
        with compiled_for(model, on_b, compiler) as placed:
            answers.append(placed(x)[0])
            counts.append((len(placed.manifest.segments), compiler.compilations - before))
    assert counts == [(3, 3), (3, 0), (3, 3), (3, 0)]
    assert all(np.array_equal(a, answers[0]) for a in answers)


def test_a_folder_is_compiled_again_only_where_it_changed(tmp_path: Path) -> None:
    first = load(split(tmp_path / "first", two_towers(), "right"))
    second = split(tmp_path / "second", two_towers(), "left")  # the towers change places, what adds them stays on A
    compiler = first.compiler
    first.close()
    for folder, compiled in ((tmp_path / "first" / "split", 3), (second, 5)):
        manifest = read_manifest(folder)
        PlacedModel(manifest, [folder / entry.file for entry in manifest.segments], compiler).close()
        assert compiler.compilations == compiled


def test_what_was_not_used_for_longest_is_forgotten(tmp_path: Path) -> None:
    model = through_file(chain(12), tmp_path)
    compiler = SegmentCompiler(most=3)
    for on_b, compiled in (("op3", 3), ("op7", 6), ("op3", 9)):
        compiled_for(model, on_b, compiler).close()
        assert compiler.compilations == compiled


def test_a_device_that_is_not_there_is_named(towers: Path, tmp_path: Path) -> None:
    document = json.loads((towers / "manifest.json").read_text(encoding="utf-8"))
    document["devices"]["B"] = {"openvino_name": "GPU.7", "plugin": "GPU.7", "library": "", "properties": {}}
    for path in towers.glob("segment*"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(SegmentError, match="on device B failed"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(schema="placewright.split/9"), "is not of schema"),
        (lambda d: d.pop("tensors"), "the file needs tensors"),
        (lambda d: d.update(extra=1), "has an unknown key extra"),
        (lambda d: d.update(requests="two"), "requests of the file is 'two'"),
        (lambda d: d.update(runner="fast"), "runner of the file is 'fast'"),
        (lambda d: d.update(requests=0), "must be at least 1"),
        (lambda d: d["segments"].reverse(), "which nothing before it makes"),
        (lambda d: d["segments"][0].update(device="C"), "runs on C, which is no device"),
        (lambda d: d["outputs"][0].update(tensor="other"), "no segment makes the output other"),
        (lambda d: d["segments"][0].update(priority=True), "priority of item 0 of segments"),
    ],
)
def test_a_damaged_manifest_is_refused_in_words(towers: Path, tmp_path: Path, change: Any, words: str) -> None:
    document = json.loads((towers / "manifest.json").read_text(encoding="utf-8"))
    change(document)
    (tmp_path / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ManifestError, match=words):
        load(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_a_manifest_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        load(tmp_path)


def test_tensors_that_a_gpu_reaches_are_of_its_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Context:
        def create_host_tensor(self, *what: Any) -> str:
            asked.append(what)
            return "host tensor"

    class GpuCore:
        def get_default_context(self, name: str) -> Context:
            asked.append(name)
            return Context()

    monkeypatch.setattr(ov, "Core", GpuCore)
    compiler = SegmentCompiler()
    cpu, gpu = DeviceEntry("CPU_A", "CPU"), DeviceEntry("GPU_B", "GPU.1")
    made: Any = compiler.tensor({"A": cpu, "B": gpu}, ov.Type.f32, ov.Shape([2]))
    assert made == "host tensor"
    assert asked == ["GPU_B", (ov.Type.f32, ov.Shape([2]))]
    assert isinstance(compiler.tensor({"A": cpu}, ov.Type.f32, ov.Shape([2])), ov.Tensor)


def passing_through() -> Iterator[ov.Model]:
    """Yield models with outputs that nothing computes: an input, a constant, and one value twice."""
    x = op.parameter([1, 8], np.float32, name="x")
    y = op.relu(x, name="relu")
    yield ov.Model([op.result(x, name="same"), op.result(y, name="out")], [x], "input")
    x = op.parameter([1, 8], np.float32, name="x")
    y = op.relu(x, name="relu")
    yield ov.Model([op.result(y, name="a"), op.result(y, name="b"), op.result(op.tanh(y, name="t"), name="c")], [x], "")
    x = op.parameter([1, 8], np.float32, name="x")
    fixed = op.result(constant([[3.0]], "three"), name="fixed")
    yield ov.Model([fixed, op.result(op.relu(x, name="relu"), name="out")], [x], "constant")


@pytest.mark.parametrize("number", range(3))
def test_outputs_that_nothing_computes_are_there_too(tmp_path: Path, number: int) -> None:
    model = list(passing_through())[number]
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    wanted = [np.array(v) for v in ov.Core().compile_model(model, "CPU")([x]).values()] if number != 1 else None
    with load(split(tmp_path, model, "t")) as placed:
        found = placed(x).to_tuple()
    relu = np.maximum(x, 0)
    wanted = [relu, relu, np.tanh(relu)] if wanted is None else wanted
    assert len(found) == len(wanted)
    assert all(np.allclose(f, w, atol=1e-5) for f, w in zip(found, wanted, strict=True))
