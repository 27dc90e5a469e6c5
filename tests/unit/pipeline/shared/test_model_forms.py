"""Forms of a model: written beside it, tried with settings, measured on the same inputs, and deployed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.rewriting.forms import compressed_products
from pipeline.core.accuracy import Accuracy
from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.deploy.annotated import onnx_session
from pipeline.result.deployment import Deployment
from pipeline.result.result import write_placed
from pipeline.shared.model_forms import (
    FILLED,
    FLOAT_WEIGHTS,
    FORMS,
    INT8_LSTM,
    INT8_WEIGHTS,
    ModelForm,
    form_file,
    form_notes,
)
from pipeline.shared.model_inputs import TIMED
from pipeline.shared.payload import load_graph, read_json
from pipeline.store.store import Entry, file_digest
from runtime.machines.devices import GROUP_SIZE, KV_CACHE, PRECISION
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.space import ROW, Space, settings_variant
from runtime.measuring.contest.variant import Variant, check_outputs, outputs_of, start_child
from runtime.measuring.outputs.outputs import Reference
from tests.models import two_towers
from tests.quantised_models import float_model, quantised
from tests.unit.runtime.machines.test_devices import CPU

SHA256 = "0" * 64
COMPRESSED = (ModelForm(), ModelForm(INT8_WEIGHTS, ("a", "b"), compressed=2), ModelForm(FLOAT_WEIGHTS, ("a", "b")))
GROUPED = replace(CPU, settable=frozenset({GROUP_SIZE, KV_CACHE}))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the read stage makes of a quantised transformer."""
    folder = tmp_path_factory.mktemp("read")
    path = quantised(float_model("transformer", folder), "uint8 per channel")
    (folder / "out").mkdir()
    read_in_process(path, folder / "out", source=model_sha256(path), limits=ReadLimits())
    return folder / "out"


def forms_of(folder: Path) -> list[ModelForm]:
    return [ModelForm.from_json(row) for row in read_json(folder / FORMS)]


def space(forms: tuple[ModelForm, ...], objective: str = "latency", *, keeps_keys: bool = False) -> Space:
    devices = [DeviceSpec("CPU", "CPU", "CPU", {}, "cpu")]
    return Space.of(devices, {"CPU": GROUPED}, objective, forms, keeps_keys=keeps_keys)


def int8(**properties: str) -> Variant:
    return settings_variant("CPU", {PRECISION: "f32", **properties}, 1, rewrite=INT8_WEIGHTS)


def test_the_read_stage_writes_every_form_with_its_graph_and_what_was_rewritten(read: Path) -> None:
    plain, packed, floats = forms_of(read)
    assert (plain, packed.rewrite, floats.rewrite) == (ModelForm(), INT8_WEIGHTS, FLOAT_WEIGHTS)
    assert packed.products == floats.products
    assert (len(packed.products), packed.left, packed.compressed, floats.compressed) == (6, 0, 6, 0)
    for form in (packed, floats):
        names = {
            op.get_friendly_name() for op in ov.Core().read_model(form_file(read / "model.xml", form.rewrite)).get_ops()
        }
        assert set(form.products) <= names == set(load_graph(read / f"{form.rewrite}.npz").names)
    assert set(packed.products) <= set(load_graph(read / "graph.npz").names)


def test_weights_are_kept_in_8_bits_only_for_products_of_which_plug_ins_take_them_so(tmp_path: Path) -> None:
    told = {}
    for only in ((), ("Conv",)):
        path = quantised(float_model("conv", tmp_path), "int8 per tensor", only=only)
        read_in_process(path, tmp_path, source=model_sha256(path), limits=ReadLimits())
        told[only] = [(form.rewrite, len(form.products), form.compressed) for form in forms_of(tmp_path)]
    assert told == {
        (): [("", 0, 0), (INT8_WEIGHTS, 5, 1), (FLOAT_WEIGHTS, 5, 0)],
        ("Conv",): [("", 0, 0), (FLOAT_WEIGHTS, 4, 0)],
    }


def test_a_model_without_integers_has_one_form(tmp_path: Path) -> None:
    ov.save_model(two_towers(), tmp_path / "plain.xml")
    read_in_process(tmp_path / "plain.xml", tmp_path, source=model_sha256(tmp_path / "plain.xml"), limits=ReadLimits())
    assert forms_of(tmp_path) == [ModelForm()]


def test_a_rewritten_form_gives_nearly_the_outputs_of_the_model_on_the_same_inputs(read: Path) -> None:
    settings = MeasureSettings(low_tolerance=0.05)
    child, loaded = start_child(reference_variant(), read / "model.xml", settings, seed=3)
    with child:
        expected = Reference({TIMED: outputs_of(child)}, loaded["int8_kernels"])
    child, loaded = start_child(int8(), read / "model.xml", settings, seed=3)
    with child:
        found = check_outputs(int8(), loaded, child, expected, settings)
        strict = check_outputs(int8(), loaded, child, expected, replace(settings, low_tolerance=1e-6))
    assert isinstance(found, Accuracy)
    assert (
        1e-4 < (found.difference or 0.0) < 0.05
    )  # the rounding of inputs: it is another computation, on the same inputs
    assert isinstance(strict, MeasurementFailed)


@pytest.mark.parametrize(
    ("variant", "rounds"),
    [
        (reference_variant(), False),
        (int8(), True),
        (settings_variant("CPU", {GROUP_SIZE: "32"}, 1), True),
        (settings_variant("CPU", {GROUP_SIZE: "0"}, 1), False),
        (settings_variant("CPU", {KV_CACHE: "u8"}, 1), True),
    ],
)
def test_what_rounds_more_than_its_precision_says_is_judged_like_a_low_precision(
    variant: Variant, *, rounds: bool
) -> None:
    assert variant.rounds == rounds


def test_the_form_is_part_of_the_identity_and_of_the_name() -> None:
    plain = settings_variant("CPU", {PRECISION: "f32"}, 1)
    assert plain.identity != int8().identity
    assert int8(**{GROUP_SIZE: "32"}).name == "CPU int8-weights f32 group 32"
    assert int8(**{GROUP_SIZE: ROW}).name == "CPU int8-weights f32 group row"


def test_rewritten_forms_are_tried_before_the_model_as_it_was_read() -> None:
    variants = space(COMPRESSED).first()
    rewritten = [v for v in variants if v.rewrite]
    assert variants[: len(rewritten)] == rewritten
    told = [(v.rewrite, v.devices[0].properties.get(GROUP_SIZE)) for v in rewritten]
    assert dict.fromkeys(told) == dict.fromkeys([(INT8_WEIGHTS, "128"), (INT8_WEIGHTS, "32"), (FLOAT_WEIGHTS, None)])
    assert [v.devices[0].properties[PRECISION] for v in rewritten[:2]] == ["bf16", "f32"]
    plain = [replace(v, name="") for v in space((ModelForm(),)).first()]
    assert [replace(v, name="") for v in variants if not v.rewrite] == plain


def test_groups_are_an_axis_where_products_unpack_their_weights() -> None:
    def groups(variant: Variant) -> set[str]:
        near = space(COMPRESSED).around(variant)
        assert {v.rewrite for v in near} <= {variant.rewrite}
        return {v.devices[0].properties[GROUP_SIZE] for v in near if GROUP_SIZE in v.devices[0].properties}

    assert groups(int8()) == {"0", "32", "64", "128", ROW}
    assert groups(settings_variant("CPU", {}, 1)) == set()
    assert groups(settings_variant("CPU", {}, 1, rewrite=FLOAT_WEIGHTS)) == set()
    near = space((ModelForm(compressed=1),)).around(settings_variant("CPU", {}, 1))
    assert {v.devices[0].properties.get(GROUP_SIZE) for v in near} >= {"0", "32", "64", "128", ROW}


def test_the_precision_of_kept_keys_is_an_axis_where_a_model_keeps_some() -> None:
    def caches(*, keeps_keys: bool) -> set[str]:
        near = space((ModelForm(),), keeps_keys=keeps_keys).around(settings_variant("CPU", {}, 1))
        return {v.devices[0].properties[KV_CACHE] for v in near if KV_CACHE in v.devices[0].properties}

    assert caches(keeps_keys=True) == {"u8", "bf16", "f16", "f32"}
    assert caches(keeps_keys=False) == set()


def test_threads_and_streams_of_a_rewritten_form_are_varied_around_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.measuring.contest.space.cpu_count", lambda: 4)
    first = space(COMPRESSED).first()[0]
    threads = [v.devices[0].properties["INFERENCE_NUM_THREADS"] for v in space(COMPRESSED).around(first)]
    assert threads.count("3") == 1
    first = space(COMPRESSED, "throughput").first()[0]
    near = [v for v in space(COMPRESSED, "throughput").around(first) if v.devices[0].properties["NUM_STREAMS"] == "3"]
    assert [v.requests for v in near] == [3]


def entry_of(folder: Path) -> Entry:
    files = {path.name: file_digest(path) for path in folder.iterdir()}
    return Entry(folder, SHA256, {}, {}, files)


def measured_row(rewrite: str) -> dict[str, Any]:
    variant = settings_variant("CPU", {PRECISION: "f32", GROUP_SIZE: "32"}, 1, rewrite=rewrite)
    devices = [device.to_json() for device in variant.devices]
    told = {"name": variant.name, "target": "CPU", "properties": {}, "devices": devices, "placement": None}
    return told | {"batch": 1, "requests": 1, "rewrite": rewrite, "runner": ""}


def written(read: Path, folder: Path, rewrite: str) -> Mapping[str, Any]:
    """Write what is deployed of a form; return its placement.json."""
    names = load_graph(read / (f"{rewrite}.npz" if rewrite else "graph.npz")).names
    write_placed(folder, entry_of(read), names, measured_row(rewrite), SHA256)  # type: ignore[arg-type]
    return dict(json.loads((folder / "placement.json").read_text(encoding="utf-8")))


def test_lstms_in_int8_are_tried_with_one_thread_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.measuring.contest.space.cpu_count", lambda: 4)
    forms = (ModelForm(), ModelForm(INT8_LSTM, ("a",)), ModelForm(FLOAT_WEIGHTS, ("b",)))
    first = [v for v in space(forms).first() if v.rewrite]
    names = [v.name for v in first if "f32" in v.name]
    assert names == [
        f"CPU {how} f32" for how in ("int8-lstm 4 threads", "int8-lstm 1 thread", "float-weights 4 threads")
    ]
    filled = [v.name for v in space((ModelForm(), ModelForm(FILLED, ("a",)))).first() if v.rewrite]
    assert {name.partition(" whole-tiles ")[2] for name in filled} == {"4 threads bf16", "1 thread bf16"}
    assert form_notes([ModelForm(FILLED, ("a",))])[0].endswith("it is tried as whole tiles.")
    assert not any("1 thread" in v.name for v in space(forms, "throughput").first() if v.rewrite)


@pytest.mark.parametrize("rewrite", ["", INT8_WEIGHTS, FLOAT_WEIGHTS])
def test_the_placed_model_is_the_form_that_was_measured(rewrite: str, read: Path, tmp_path: Path) -> None:
    record = written(read, tmp_path, rewrite)
    assert record["rewrite"] == rewrite
    assert (tmp_path / "placed.bin").read_bytes() == form_file(read / "model.xml", rewrite).with_suffix(
        ".bin"
    ).read_bytes()
    operations = {node.get_friendly_name() for node in ov.Core().read_model(tmp_path / "placed.xml").get_ops()}
    assert set(record["placement"]) == operations


def test_onnx_runtime_is_not_handed_the_file_that_was_rewritten(read: Path, tmp_path: Path) -> None:
    written(read, tmp_path, INT8_WEIGHTS)
    with pytest.raises(UsageError, match="rewritten"):
        onnx_session(Deployment.load(tmp_path), tmp_path / "out")


def test_weights_are_compressed_only_where_nothing_is_quantised_to_fixed_scales(read: Path) -> None:
    core = ov.Core()
    counts = [compressed_products(core.read_model(form_file(read / "model.xml", r))) for r in ("", INT8_WEIGHTS)]
    assert counts == [0, 6]
    for scaled in (False, True):
        x = op.parameter([1, 4], np.float32, name="x")
        limits = [op.constant(np.float32(v)) for v in (-1, 1, -1, 1)]
        weights = op.multiply(op.convert(op.constant(np.ones((4, 4), np.int8)), "f32"), op.constant(np.float32(0.5)))
        product = op.matmul(op.fake_quantize(x, *limits, 256) if scaled else x, weights, False, True)
        assert compressed_products(ov.Model([op.result(product)], [x], "one")) == (0 if scaled else 1)


def test_notes_say_what_was_rewritten_and_what_was_not() -> None:
    assert form_notes([ModelForm()]) == []
    (told,) = form_notes([ModelForm(), ModelForm(INT8_WEIGHTS, ("a",), left=2, compressed=1)])
    assert told.startswith("1 dynamically quantised product can be rewritten; 2 more are not")
