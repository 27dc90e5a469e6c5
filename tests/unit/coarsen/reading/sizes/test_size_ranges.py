"""Several sizes of open dimensions that one answer is to serve."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.sizes.shapes import InputShapes
from coarsen.reading.sizes.size_ranges import parse_range, size_between, size_points
from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import CoarsenSettings, MeasureSettings
from pipeline.placing.start_seconds import size_log_gains, size_seconds
from pipeline.settings.config import Settings
from pipeline.shared.checks import (
    CHECKS,
    EVALUATED,
    REFERENCE,
    SHAKEN,
    ReferenceOrder,
    load_by_kind,
    save_by_kind,
)
from pipeline.shared.measured_sizes import load_sizes, measured_at
from pipeline.shared.model_inputs import GIVEN
from pipeline.stages.host import ModelFile
from pipeline.stages.plan import plan_tasks
from pipeline.stages.repair_outputs import _open_attempts, _settle_reference, _write_conclusion
from runtime.measuring.contest import pair_bench as module
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.contenders import Contender
from runtime.measuring.contest.contest import Contest
from runtime.measuring.contest.pair_bench import PairBench, Start
from runtime.measuring.contest.space import settings_variant
from runtime.measuring.contest.statistics import TWIN, Rules
from runtime.measuring.contest.variant import Variant
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.child import ChildError
from tests.exported_models import text_classifier
from tests.open_models import any_frames, line_reader

SETTINGS = MeasureSettings(turn_s=0.01, realtime=False)


def read(path: Path, out: Path, *texts: str, seconds: float = 10.0) -> Path:
    """Read a model with ranges as a run does; return the normalised model."""
    out.mkdir()
    shapes = InputShapes.of(CoarsenSettings(shape_ranges=texts))
    order = ReferenceOrder(True, seconds, 60.0, 1)
    read_in_process(path, out, source=model_sha256(path), limits=ReadLimits(), shapes=shapes, reference=order)
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
    middle = size_between(low, high)
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
    points = size_points([parse_range("ids=1x[16..64]"), parse_range("mask=1x[16..64]")])
    assert [point for point, _ in points] == [{"ids": (1, n), "mask": (1, n)} for n in (16, 32, 64)]
    assert [share for _, share in points] == pytest.approx([1 / 3] * 3)
    (_, a), (_, b) = size_points([parse_range("x=1x1|2*3")])
    assert (a, b) == (0.25, 0.75)
    assert [p for p, _ in size_points([parse_range("x=[1..2]")])] == [{"x": (1,)}, {"x": (2,)}]
    assert size_points([]) == []


@pytest.mark.parametrize("texts", [("a=[1..9]", "b=1|9"), ("a=[1..9]", "a=[1..9]"), ("a=1|9", "b=1|9*2")])
def test_ranges_that_do_not_go_together_are_a_usage_error(texts: Sequence[str]):
    with pytest.raises(UsageError, match="go together"):
        InputShapes.of(CoarsenSettings(shape_ranges=tuple(texts)))


def test_arrays_and_ranges_exclude_one_another(tmp_path: Path):
    with pytest.raises(UsageError, match="--input and --shape-range exclude each other"):
        InputShapes.of(CoarsenSettings(shape_ranges=("x=[1..9]",), input=str(tmp_path / "data.npz")))


def test_an_input_has_a_shape_or_a_range():
    with pytest.raises(UsageError, match="x has both a shape and a range"):
        InputShapes.of(CoarsenSettings(shapes=("x=1x8",), shape_ranges=("x=1x[8..16]",)))
    with pytest.raises(UsageError, match="The input has both"):
        InputShapes.of(CoarsenSettings(shapes=("1x8",), shape_ranges=("1x[8..16]",)))
    InputShapes.of(CoarsenSettings(shapes=("y=1x8",), shape_ranges=("x=1x[8..16]",)))


def test_the_read_step_leaves_the_dimension_open_and_writes_arrays_of_every_size(tmp_path: Path):
    model = read(line_reader(tmp_path), tmp_path / "out", "x=1x3x48x64|160*2|320")
    assert str(ov.Core().read_model(model).inputs[0].get_partial_shape()) == "[1,3,48,64..320]"
    sizes = load_sizes(model.parent)
    assert [str(size) for size in sizes] == ["x=1x3x48x64", "x=1x3x48x160", "x=1x3x48x320"]
    assert [size.weight for size in sizes] == [0.25, 0.5, 0.25]
    checks = load_by_kind(model.with_name(CHECKS))
    assert [list(checks[size.kind]["x"].shape) for size in sizes] == [size.shapes["x"] for size in sizes]
    with np.load(model.with_name(GIVEN)) as arrays:
        assert arrays["x"].shape == (1, 3, 48, 160)  # of the most weight
    assert "x=1x3x48x160 (50 %)" in measured_at(sizes)


def test_inputs_without_a_range_get_sizes_as_ever(tmp_path: Path):
    length = "1x8|32"
    model = read(
        text_classifier(tmp_path), tmp_path / "out", *(f"{n}={length}" for n in ("input_ids", "attention_mask"))
        , f"token_type_ids={length}"
    )  # fmt: skip
    sizes = load_sizes(model.parent)
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
    with pytest.raises(UsageError, match=words) as raised:
        read(line_reader(tmp_path), tmp_path / "out", text)
    assert "dynamic_size" not in raised.value.remedy


def test_a_range_is_part_of_the_plan_and_only_then(tmp_path: Path):
    def planned(settings: Settings) -> dict[str, Any]:
        (task,) = plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, None, upto="read")
        return dict(task.params)

    assert planned(Settings())["shape_ranges"] == []
    told = planned(Settings().updated({"coarsen.shape_ranges": ("x=1x[2..8]",)}, "test"))
    assert told["shapes"] == ["x=1x2..8"]
    assert told["shape_ranges"] == ["x=1x[2..8]"]


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranged")
    return read(any_frames(folder, {}), folder / "out", "x=8|64*3x20")


def bench_of(model: Path) -> PairBench:
    return PairBench(model, SETTINGS, 0, sizes=load_sizes(model.parent))


def test_one_pair_of_processes_measures_every_size(ranged: Path):
    with bench_of(ranged) as bench:
        found = bench.start(reference_variant(), reference_variant(), part="screening", number=1, pairs=3)
        assert isinstance(found, Start)
        assert bench.expected is not None
        shapes = {kind: outputs["output_0"].shape for kind, outputs in bench.expected.outputs.items()}
        assert (shapes["noise 8x20"], shapes["noise"]) == ((8, 8), (64, 8))
        assert len({seat.child.pid for seat in bench._seats if seat.child}) == 2
        assert len(bench.alone(reference_variant(), 0.02)) >= 2
    assert len(found.variant_s) == len(found.control_s) == 3
    assert len(found.sizes_s) == len(found.size_log_ratios) == 2


def test_the_log_ratio_of_a_start_is_the_weighted_mean_over_the_sizes(ranged: Path, monkeypatch: pytest.MonkeyPatch):
    seconds = iter([2.0, 1.0, 8.0, 4.0])  # of the control and the variant at one size, then the other way round
    monkeypatch.setattr(module, "value_of", lambda turn, settings: next(seconds))
    with bench_of(ranged) as bench:
        found = bench.start(reference_variant(), reference_variant(), part="screening", number=1, pairs=1)
    assert isinstance(found, Start)
    assert found.size_log_ratios == pytest.approx((math.log(2), -math.log(2)))
    assert found.sizes_s == pytest.approx((1.0, 8.0))
    assert found.log_ratio == pytest.approx(0.25 * math.log(2) - 0.75 * math.log(2))
    assert found.value_s == pytest.approx(8**0.75)


def test_outputs_that_are_wrong_at_one_size_are_refused_at_first_sight(ranged: Path):
    wrong = {kind: {"output_0": np.ones((n, 8), np.float32)} for kind, n in (("noise", 64), ("noise 8x20", 8))}
    with bench_of(ranged) as bench:
        bench.start(reference_variant(), reference_variant(), part="screening", number=1, pairs=1)
        assert bench.expected is not None
        bench.checked.clear()
        bench.expected = Reference({**bench.expected.outputs, "noise 8x20": wrong["noise 8x20"]})
        found = bench.start(settings_of(1), reference_variant(), part="screening", number=1, pairs=1)
    assert isinstance(found, MeasurementFailed)
    assert "noise 8x20" in found.message


def test_a_size_with_which_a_variant_does_not_run_is_told(ranged: Path, tmp_path: Path):
    for file in ranged.parent.iterdir():
        shutil.copy(file, tmp_path)
    checks = load_by_kind(tmp_path / CHECKS)
    checks["noise 8x20"]["x"] = np.ones((8, 21), np.float32)
    save_by_kind(tmp_path / CHECKS, checks)
    expected = Reference({"noise": {"output_0": np.zeros((64, 8), np.float32)}})
    with bench_of(tmp_path / ranged.name) as bench:
        bench.expected = expected
        with pytest.raises(ChildError, match="with x=8x20: "):
            bench.start(reference_variant(), reference_variant(), part="screening", number=1, pairs=1)


def test_sizes_are_compared_with_what_the_source_gives_at_each(ranged: Path):
    checks, wanted = load_by_kind(ranged.with_name(CHECKS)), load_by_kind(ranged.with_name(REFERENCE))
    assert list(checks)[:2] == ["noise", "noise 8x20"]
    assert {kind: a["x"].shape[0] for kind, a in checks.items()}["noise 8x20"] == 8
    assert wanted["noise 8x20"]["output_0"].shape == (8, 8)
    assert wanted.keys() == checks.keys()


def test_every_size_is_compared_however_short_the_time(tmp_path: Path):
    model = read(any_frames(tmp_path, {}), tmp_path / "out", "x=8|16|64x20", seconds=0.0)
    assert list(load_by_kind(model.with_name(REFERENCE))) == ["noise", "noise 16x20", "noise 64x20"]


def test_what_has_several_sizes_stays_open_whatever_else_is_tried(tmp_path: Path):
    model = read(line_reader(tmp_path), tmp_path / "out", "x=1x3x48x64|160")
    assert [attempt.shapes.given[0] for attempt in _open_attempts(model.parent)] == [
        "x=?x3x48x?", "x=1x3x?x?", "x=1x3x48x?", "x=?x3x?x?"
    ]  # fmt: skip


def test_turns_take_the_inputs_of_each_size(ranged: Path, monkeypatch: pytest.MonkeyPatch):
    fed = list[str]()
    whole = module.Seat.feed

    def feed(seat: module.Seat, kind: str) -> None:
        fed.append(kind)
        whole(seat, kind)

    monkeypatch.setattr(module.Seat, "feed", feed)
    with bench_of(ranged) as bench:
        bench.start(reference_variant(), reference_variant(), part="screening", number=1, pairs=2)
    small, large = ["noise 8x20"] * 2, ["noise"] * 2
    assert fed[-8:] == [*small, *large, *large, *small]


def test_inputs_of_the_sizes_stay_where_there_is_no_reference(ranged: Path, tmp_path: Path):
    for file in ranged.parent.iterdir():
        if file.name not in (REFERENCE, SHAKEN):
            shutil.copy(file, tmp_path)
    _write_conclusion(tmp_path, None, "")
    with bench_of(tmp_path / ranged.name) as bench:
        bench.start(reference_variant(), reference_variant(), part="screening", number=1, pairs=1)
        assert bench.expected is not None
        assert list(bench.expected.outputs) == ["noise 8x20", "noise"]


def test_the_reference_implementation_is_right_where_one_size_departs(tmp_path: Path):
    right = {"noise": {"output_0": np.ones(4)}, "noise 8": {"output_0": np.ones(8)}}
    save_by_kind(tmp_path / EVALUATED, right)
    save_by_kind(tmp_path / REFERENCE, right | {"noise 8": {"output_0": 2 * np.ones(8)}, "zeros": right["noise"]})
    _settle_reference(tmp_path)
    assert load_by_kind(tmp_path / REFERENCE).keys() == right.keys()


def settings_of(threads: int) -> Variant:
    return settings_variant("CPU", {"INFERENCE_NUM_THREADS": str(threads)}, threads)


def test_one_size_has_no_sizes(tmp_path: Path):
    assert load_sizes(tmp_path) == []


def sized_start(small_s: float, large_s: float, control: tuple[float, float] = (1.0, 4.0)) -> Start:
    """Return a start of one turn of a variant at two sizes of equal weight beside a control."""
    ours, theirs = np.log([small_s, large_s]), np.log(control)
    together = math.exp(ours.mean()), math.exp(theirs.mean())
    loaded: Any = {"accuracy": {}}
    return Start(
        (together[0],),
        (together[1],),
        (together[0],),
        loaded,
        sizes_s=(small_s, large_s),
        size_log_ratios=tuple((theirs - ours).tolist()),
    )


def entrant(name: str, **starts: Sequence[Start]) -> Contender:
    variant = replace(reference_variant(), name=name)
    return Contender(variant, **{part: dict(enumerate(each, 1)) for part, each in starts.items()})


@pytest.mark.parametrize("control", ["old", "other"])
def test_what_a_candidate_gains_at_each_size_is_told(control: str):
    seconds = {"old": (1.0, 4.0), "new": (0.5, 8.0), "other": (2.0, 2.0)}
    starts = {name: [sized_start(*each)] * 2 for name, each in seconds.items()}
    entries = {
        "old": entrant("old", screened=starts["old"]),  # took turns with all, so that it has no final of its own
        TWIN: entrant(TWIN, final=starts["old"]),
        **{name: entrant(name, screened=starts[name], final=starts[name]) for name in ("new", "other")},
    }
    found = Contest(entries, control, "old", "", None, Rules(0.95, 0.02, 3), beside="old")
    for name, each in seconds.items():
        assert np.exp(size_log_gains(found, name)) == pytest.approx(np.divide(seconds[control], each))
        assert size_seconds(found, name) == pytest.approx(each)


def test_of_a_first_sight_the_screening_tells_the_gains():
    entries = {
        "old": entrant("old", screened=[sized_start(1.0, 4.0)]),
        "new": entrant("new", screened=[sized_start(0.5, 4.0)]),
    }
    found = Contest(entries, "old", "old", "", None, Rules(0.95, 0.02, 3))
    assert np.exp(size_log_gains(found, "new")) == pytest.approx((2.0, 1.0))


def test_one_size_gains_nothing_by_size():
    start = Start((1.0,), (1.0,), (1.0,), {"accuracy": {}})  # type: ignore[arg-type]
    found = Contest({"old": entrant("old", screened=[start])}, "old", "old", "", None, Rules(0.95, 0.02, 3))
    assert size_log_gains(found, "old") == []
