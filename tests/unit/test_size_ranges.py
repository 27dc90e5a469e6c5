"""Several sizes of open dimensions that one answer is to serve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.growth import ReadLimits
from coarsen.reading.read_apart import read_apart
from coarsen.reading.sizes.shapes import InputShapes
from coarsen.reading.sizes.size_ranges import between, parse_range, points_of
from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import CoarsenSettings, MeasureSettings
from pipeline.settings.config import Settings
from pipeline.shared.measured_sizes import SIZES, MeasuredSize, load_sizes, measured_at
from pipeline.shared.model_inputs import GIVEN
from runtime.measuring.contest import ranges as module
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.pairs import PairBench, Start
from runtime.measuring.contest.ranges import RangeBench, bench_of, together
from runtime.measuring.outputs.inputs import TIMED
from tests.exported_models import text_classifier
from tests.open_models import any_frames, line_reader
from tests.reports import accuracy

SETTINGS = MeasureSettings(turn_s=0.01, realtime=False)


def read(path: Path, out: Path, *texts: str) -> Path:
    """Read a model with ranges as a run does; return the normalised model."""
    out.mkdir()
    shapes = InputShapes.of(CoarsenSettings(shape_ranges=texts))
    read_apart(path, out, source=model_sha256(path), limits=ReadLimits(), shapes=shapes)
    return out / "model.xml"


def test_a_range_is_its_ends_and_one_size_between_them():
    found = parse_range("x=1x3x[32..640]x320")
    assert found.bounds == "x=1x3x32..640x320"
    assert found.shapes == ((1, 3, 32, 320), (1, 3, 128, 320), (1, 3, 640, 320))
    assert found.weights == (1.0, 1.0, 1.0)
    assert parse_range("1x[8..16]").name == ""


def test_a_list_has_weights():
    found = parse_range("a=b=1x64|320*2.5|96x7")
    assert (found.name, found.bounds) == ("a=b", "a=b=1x64..320x7")
    assert found.shapes == ((1, 64, 7), (1, 320, 7), (1, 96, 7))
    assert found.weights == (1.0, 2.5, 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_size_between_lies_between_and_is_such_a_multiple_as_both_ends_are(seed: int):
    rng = np.random.default_rng(seed)
    step = int(rng.integers(1, 33))
    low = step * int(rng.integers(1, 20))
    high = low + step * int(rng.integers(1, 40))
    middle = between(low, high)
    assert low <= middle <= high
    assert middle % step == 0
    assert abs(middle - math.sqrt(low * high)) <= math.gcd(low, high) / 2 + 1e-9


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "x=", "x=1x3", "x=1x[3..3]", "x=1x[640..32]", "x=1x[0..4]", "x=1x[4..]", "x=1x4|4", "x=1x4|a",
        "x=1x0|4",         "x=1x4*0|5", "x=1x4|5*", "x=1x[2..8]x2|4", "x=1x1|2|3|4|5|6|7", "x=?x[1..2]", "x=1x4*2",
    ],
)  # fmt: skip
def test_what_is_no_range_is_a_usage_error(text: str):
    with pytest.raises(UsageError) as raised:
        parse_range(text)
    assert "NAME=1x3x[32..640]x320" in raised.value.remedy


def test_ranges_of_several_inputs_go_together():
    points = points_of([parse_range("ids=1x[16..64]"), parse_range("mask=1x[16..64]")])
    assert [point for point, _ in points] == [{"ids": (1, n), "mask": (1, n)} for n in (16, 32, 64)]
    assert [share for _, share in points] == pytest.approx([1 / 3] * 3)
    (_, a), (_, b) = points_of([parse_range("x=1x1|2*3")])
    assert (a, b) == (0.25, 0.75)
    assert [p for p, _ in points_of([parse_range("x=[1..2]")])] == [{"x": (1,)}, {"x": (2,)}]
    assert points_of([]) == []


@pytest.mark.parametrize("texts", [("a=[1..9]", "b=1|9"), ("a=[1..9]", "a=[1..9]"), ("a=1|9", "b=1|9*2")])
def test_ranges_that_do_not_go_together_are_a_usage_error(texts: Sequence[str]):
    with pytest.raises(UsageError, match="go together"):
        InputShapes.of(CoarsenSettings(shape_ranges=tuple(texts)))


def test_arrays_and_ranges_exclude_one_another(tmp_path: Path):
    with pytest.raises(UsageError, match="--input and --shape-range exclude each other"):
        InputShapes.of(CoarsenSettings(shape_ranges=("x=[1..9]",), input=str(tmp_path / "data.npz")))


def test_the_read_step_leaves_the_dimension_open_and_writes_arrays_of_every_size(tmp_path: Path):
    model = read(line_reader(tmp_path), tmp_path / "out", "x=1x3x48x64|160*2|320")
    assert str(ov.Core().read_model(model).inputs[0].get_partial_shape()) == "[1,3,48,64..320]"
    sizes = load_sizes(model.with_name(SIZES))
    assert [str(size) for size in sizes] == ["x=1x3x48x64", "x=1x3x48x160", "x=1x3x48x320"]
    assert [size.weight for size in sizes] == [0.25, 0.5, 0.25]
    for size in sizes:
        with np.load(model.with_name(size.arrays)) as arrays:
            assert list(arrays["x"].shape) == size.shapes["x"]
    with np.load(model.with_name(GIVEN)) as arrays:
        assert arrays["x"].shape == (1, 3, 48, 160)  # of the most weight
    assert "x=1x3x48x160 (50 %)" in measured_at(sizes)


def test_inputs_without_a_range_get_sizes_as_ever(tmp_path: Path):
    length = "1x8|32"
    model = read(
        text_classifier(tmp_path), tmp_path / "out", *(f"{n}={length}" for n in ("input_ids", "attention_mask"))
        , f"token_type_ids={length}"
    )  # fmt: skip
    sizes = load_sizes(model.with_name(SIZES))
    assert [set(map(tuple, size.shapes.values())) for size in sizes] == [{(1, 8)}, {(1, 32)}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x=1x3x[48..480]x320", r"does not run with the shape|does not run with x=1x3x\d+x320"),
        ("x=1x4x48x[64..320]", r"does not run with the shape x \[1,4,48,64..320\]"),
        ("y=1x3x48x[64..320]", "names no input of the model"),
        ("x=1x3x[64..320]", "does not run with the shape"),
    ],
)
def test_sizes_that_do_not_fit_are_a_usage_error(tmp_path: Path, text: str, words: str):
    with pytest.raises(UsageError, match=words):
        read(line_reader(tmp_path), tmp_path / "out", text)


def test_a_range_is_part_of_the_plan_and_only_then(tmp_path: Path):
    from pipeline.stages.plan import _shapes

    assert "shape_ranges" not in _shapes(Settings())
    told = _shapes(Settings().updated({"coarsen.shape_ranges": ("x=1x[2..8]",)}, "test"))
    assert told["shapes"] == ("x=1x2..8",)
    assert told["shape_ranges"] == ("x=1x[2..8]",)


def start(variant_s: tuple[float, ...], control_s: tuple[float, ...], **given: float) -> Start:
    loaded = {"accuracy": accuracy(given.pop("difference", 0.0)).to_json(), "executed_on": ["CPU"]}
    return Start(variant_s, control_s, variant_s, loaded, **given)  # type: ignore[arg-type]


def test_the_log_ratio_of_a_start_is_the_weighted_mean_over_the_sizes():
    small = start((1.0, 1.0), (2.0, 2.0), difference=0.1, peak_bytes=5, cpu_s=1.0)
    large = start((8.0, 8.0, 9.0), (4.0, 4.0, 1.0), peak_bytes=7, cpu_s=3.0)  # of one turn more, which is left out
    found = together([small, large], [0.75, 0.25])
    assert found.log_ratio == pytest.approx(0.75 * math.log(2) - 0.25 * math.log(2))
    assert found.value_s == pytest.approx(8**0.25)
    assert (len(found.variant_s), len(found.samples_s)) == (2, 5)
    assert (found.loaded["accuracy"]["difference"], found.peak_bytes, found.cpu_s) == (0.1, 7, 1.5)


def test_variants_are_measured_at_every_size(tmp_path: Path):
    model = read(any_frames(tmp_path, {}), tmp_path / "out", "x=8|64x20")
    with bench_of(model, SETTINGS, 0) as bench:
        assert isinstance(bench, RangeBench)
        found = bench.start(reference_variant(), reference_variant(), part="screening", number=1, pairs=2)
        assert isinstance(found, Start)
        assert len(found.variant_s) == 2
        assert [expected.outputs[TIMED]["output_0"].shape for expected in map(reference_of, bench._benches)] == [
            (8, 8),
            (64, 8),
        ]
        assert len(bench.alone(reference_variant(), 0.02)) >= 2


def reference_of(bench: PairBench):  # type: ignore[no-untyped-def]
    assert bench.expected is not None
    return bench.expected


def test_one_size_is_measured_as_ever(tmp_path: Path):
    assert isinstance(bench_of(tmp_path / "model.xml", SETTINGS, 0), PairBench)


def test_a_variant_that_fails_at_one_size_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Failing:
        def __init__(self, model: Path, settings: MeasureSettings, seed: int, **_: object) -> None:
            self.fails = model.parent.name == "1"

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def start(self, *_: object, **__: object) -> Start | MeasurementFailed:
            return MeasurementFailed("refused", "no") if self.fails else start((1.0,), (1.0,))

    monkeypatch.setattr(module, "PairBench", Failing)
    sizes = [MeasuredSize({"x": [n]}, 0.5, f"inputs_{n}.npz") for n in (1, 2)]
    for name in ("model.xml", "inputs_1.npz", "inputs_2.npz"):
        (tmp_path / name).write_bytes(b"")
    with RangeBench(tmp_path / "model.xml", sizes, SETTINGS, 0) as bench:
        found = bench.start(reference_variant(), reference_variant(), part="final", number=1, pairs=1)
    assert found == MeasurementFailed("refused", "with x=2: no")
