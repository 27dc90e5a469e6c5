"""Inputs drawn from a seed: what an input is taken for, and what it then gets."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as op

from pipeline.core.errors import ModelError
from pipeline.shared.model_inputs import GIVEN, KINDS, draw_samples, first_samples, kind_of, make_checks, make_inputs
from pipeline.shared.signals import text_ids
from pipeline.system.process import python_command
from runtime.measuring.outputs.inputs import inputs_of
from tests.exported_models import VOCABULARY, dynamic_batch_cnn, text_classifier, uint8_images
from tests.models import constant


def model() -> ov.Model:
    ports = [
        op.parameter(ov.PartialShape([-1, 3, -1]), np.float32, name="x"),
        op.parameter([50], np.int64, name="index"),
        op.parameter([50], np.bool_, name="flags"),
    ]
    return ov.Model([op.result(p) for p in ports], ports)


def made(model: ov.Model, *, seed: int = 0, dynamic_size: int = 5) -> dict[str, npt.NDArray[np.generic]]:
    return make_inputs(model, seed=seed, dynamic_size=dynamic_size)


def of_one(build: object, shape: list[int], dtype: npt.DTypeLike, name: str = "x") -> npt.NDArray[np.generic]:
    """Return what the one input of a model gets whose rest `build` makes of it."""
    x = op.parameter(shape, dtype, name=name)
    y = build(x)  # type: ignore[operator]
    return made(ov.Model([op.result(y)], [x]))[name]


def test_inputs_fit_their_ports() -> None:
    x, index, flags = made(model()).values()
    assert (x.shape, x.dtype) == ((1, 3, 5), np.float32)
    assert (index.dtype, set(index.tolist())) == (np.int64, {0, 1})
    assert (flags.dtype, set(flags.tolist())) == (np.bool_, {True})


def test_inputs_depend_on_the_seed_alone() -> None:
    first, again, other = (made(model(), seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x"], other["x"])


def test_inputs_are_equal_in_every_process(tmp_path: Path) -> None:
    path = text_classifier(tmp_path)
    text = (
        "import hashlib, sys, openvino as ov\n"
        "from pipeline.shared.model_inputs import make_inputs\n"
        "found = make_inputs(ov.Core().read_model(sys.argv[1]), seed=3, dynamic_size=7)\n"
        "print(hashlib.sha256(b''.join(a.tobytes() for a in found.values())).hexdigest())"
    )
    there = subprocess.run(
        [python_command("x")[0], "-c", text, str(path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    here = made(ov.Core().read_model(path), seed=3, dynamic_size=7)
    assert there == hashlib.sha256(b"".join(a.tobytes() for a in here.values())).hexdigest()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("[?,?]", (1, 8)),
        ("[2,?]", (2, 8)),
        ("[?,1..4]", (1, 4)),
        ("[?,10..20]", (1, 10)),
        ("[3..9,..12]", (3, 8)),
        ("[]", ()),
    ],
)
def test_dynamic_dimensions_are_set_within_their_bounds(shape: str, expected: tuple[int, ...]) -> None:
    x = op.parameter(ov.PartialShape(shape), np.float32, name="x")
    assert made(ov.Model([op.result(x)], [x]), dynamic_size=8)["x"].shape == expected


@pytest.mark.parametrize("kind", [ov.Type.bf16, ov.Type.u4, ov.Type.f8e4m3])
def test_types_without_arrays_are_told(kind: ov.Type) -> None:
    x = op.parameter([1, 4], kind, name="x")
    with pytest.raises(ModelError, match=f"'x' is {kind.get_type_name()}, of which there are no arrays.*f32"):
        made(ov.Model([op.result(x)], [x]))


def test_an_unknown_rank_cannot_be_filled() -> None:
    x = op.parameter(ov.PartialShape.dynamic(), np.float32, name="x")
    with pytest.raises(ModelError, match=r"'x' has no known rank.*--shape 'x="):
        made(ov.Model([op.result(x)], [x]))


def test_ids_go_over_the_vocabulary_and_masks_are_ones(tmp_path: Path) -> None:
    found = made(ov.Core().read_model(text_classifier(tmp_path)), dynamic_size=64)
    ids, mask, kinds = (found[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert ids.shape == (1, 64)
    assert 0 <= ids.min() < VOCABULARY / 4
    assert VOCABULARY * 3 / 4 < ids.max() < VOCABULARY
    assert set(kinds.ravel().tolist()) == {0, 1}
    assert set(mask.ravel().tolist()) == {1}


def test_bytes_of_images_go_over_the_full_range(tmp_path: Path) -> None:
    (image,) = made(ov.Core().read_model(uint8_images(tmp_path)), dynamic_size=32).values()
    assert image.dtype == np.uint8
    assert (image.min(), image.max()) == (0, 255)
    assert 100 < image.mean() < 155


def test_images_that_the_model_scales_itself_go_over_the_range_of_bytes(tmp_path: Path) -> None:
    def scaled(x: ov.Node) -> ov.Node:
        return op.subtract(op.divide(x, constant(127.5, "std")), constant(1.0, "one"))

    image = of_one(scaled, [1, 3, 8, 8], np.float32)
    assert 0 <= image.min() < 20
    assert 235 < image.max() <= 255
    (normal,) = made(ov.Core().read_model(dynamic_batch_cnn(tmp_path))).values()
    assert (abs(normal.mean()) < 0.1, 0.9 < normal.std() < 1.1) == (True, True)


def test_integers_that_are_only_compared_are_masks() -> None:
    assert of_one(lambda x: op.equal(x, constant(0, "zero", np.int32)), [40], np.int32).min() == 1

    def inverted(x: ov.Node) -> ov.Node:
        return op.multiply(op.subtract(constant(1.0, "one"), op.convert(x, "f32")), constant(-1e4, "low"))

    assert of_one(inverted, [40], np.int32).min() == 1
    assert of_one(lambda x: op.add(x, constant(1, "one", np.int32)), [40], np.int32).min() == 0


def test_an_input_called_mask_is_ones_whatever_it_goes_to() -> None:
    def times(x: ov.Node) -> ov.Node:
        return op.multiply(x, constant(2, "two", x.get_element_type().to_dtype()))

    assert of_one(times, [40], np.int64, "src_Mask.1").min() == 1
    assert of_one(times, [40], np.float32, "padding_mask").min() == 1
    assert of_one(times, [40], np.int64, "count").min() == 0


def test_lengths_are_those_of_the_sequence() -> None:
    x, n = op.parameter([2, 30, 40], np.float32, name="frames"), op.parameter([2], np.int64, name="n")
    turned = op.reverse_sequence(x, n, 0, 1)
    assert made(ov.Model([op.result(turned)], [x, n]))["n"].tolist() == [30, 30]


def test_lengths_that_no_operation_tells_are_the_longest_there_is() -> None:
    x, lengths = op.parameter([1, 80, 128], np.float32, name="audio"), op.parameter([1], np.int64, name="x_length")
    model = ov.Model([op.result(x), op.result(op.add(lengths, constant(1, "one", np.int64)))], [x, lengths])
    assert made(model)["x_length"].tolist() == [128]


def test_ids_are_followed_through_what_passes_them_on() -> None:
    def looked_up(x: ov.Node) -> ov.Node:
        wide = op.unsqueeze(op.convert(x, "i64"), constant([0], "front", np.int64))
        return op.gather(constant(np.zeros((3, 500)), "table"), wide, constant(1, "axis", np.int64))

    assert 400 < of_one(looked_up, [200], np.int32).max() < 500
    depth = [
        constant(v, f"v{i}", t) for i, (v, t) in enumerate(((257, np.int64), (1.0, np.float32), (0.0, np.float32)))
    ]
    assert 200 < of_one(lambda x: op.one_hot(x, *depth, -1), [200], np.int32).max() < 257

    def compared(classes: list[int]) -> int:
        one_hot = of_one(lambda x: op.equal(op.unsqueeze(x, 1), constant([classes], "all", np.int32)), [200], np.int32)
        return int(one_hot.max())

    assert 200 < compared(list(range(257))) < 257
    assert compared([3, 1, 2]) == compared([0]) == 1


def test_arrays_beside_the_model_come_before_those_that_are_made(tmp_path: Path) -> None:
    x = op.parameter([2], np.float32, name="x")
    one = ov.Model([op.result(op.relu(x))], [x])
    path = tmp_path / "model.xml"
    assert abs(inputs_of(one, path, seed=0, dynamic_size=8)[0]).max() < 7
    np.savez(tmp_path / GIVEN, x=np.array([7, 8], np.float32))
    assert inputs_of(one, path, seed=0, dynamic_size=8)[0].tolist() == [7, 8]
    np.savez(tmp_path / GIVEN, y=np.zeros(2, np.float32))
    with pytest.raises(ModelError, match="no array for x"):
        inputs_of(one, path, seed=0, dynamic_size=8)


def test_a_kind_changes_the_inputs_that_it_fits_and_no_other() -> None:
    x, ids, mask = (
        op.parameter([1, 3, 16, 16], np.float32, name="x"),
        op.parameter([1, 64], np.int64, name="ids"),
        op.parameter([1, 64], np.int64, name="mask"),
    )
    rows = op.gather(constant(np.zeros((500, 2)), "table"), ids, constant(0, "axis", np.int64))
    both = ov.Model([op.result(x), op.result(rows), op.result(mask)], [x, ids, mask])
    noise, *others = (make_inputs(both, seed=0, dynamic_size=8, kind=kind) for kind in KINDS)
    changed = {
        kind: {name for name, array in inputs.items() if not np.array_equal(array, noise[name])}
        for kind, inputs in zip(KINDS[1:], others, strict=True)
    }
    assert changed == {
        "smooth": {"x", "ids"},
        "edges": {"x"},
        "text": {"x", "ids"},
        "padded": {"mask"},
        "second": {"x", "ids"},
        "zeros": {"x", "ids"},
        "page": {"x"},
    }


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (dynamic_batch_cnn, ["noise", "smooth", "edges", "text", "second", "zeros", "page"]),
        (text_classifier, ["noise", "smooth", "text", "padded", "second", "zeros"]),
        (uint8_images, ["noise", "smooth", "edges", "text", "second", "zeros", "page"]),
    ],
)
def test_a_model_is_checked_on_the_kinds_that_change_something(build: Any, expected: list[str], tmp_path: Path) -> None:
    read = ov.Core().read_model(build(tmp_path))
    found = make_checks(read, seed=0, dynamic_size=8)
    again = make_checks(read, seed=0, dynamic_size=8)
    assert list(found) == expected
    assert all(np.array_equal(a, again[kind][name]) for kind, inputs in found.items() for name, a in inputs.items())
    assert all(a.dtype == found["noise"][name].dtype for inputs in found.values() for name, a in inputs.items())


def test_a_third_of_what_is_masked_or_counted_is_padding() -> None:
    x, lengths = op.parameter([1, 80, 128], np.float32, name="audio"), op.parameter([2], np.int64, name="x_length")
    mask, one = op.parameter([2, 6], bool, name="mask"), op.parameter([], bool, name="training")
    kept = [op.result(x), op.result(op.add(lengths, constant(1, "one", np.int64))), op.result(mask), op.result(one)]
    model = ov.Model(kept, [x, lengths, mask, one])
    padded = make_inputs(model, seed=0, dynamic_size=8, kind="padded")
    assert padded["mask"].tolist() == [[True] * 4 + [False] * 2] * 2
    assert (padded["x_length"].tolist(), padded["training"].tolist()) == ([86, 86], True)
    assert np.array_equal(padded["audio"], make_inputs(model, seed=0, dynamic_size=8)["audio"])


def test_further_samples_of_a_kind_are_drawn_anew_the_second_of_every_kind_first(tmp_path: Path) -> None:
    read = ov.Core().read_model(dynamic_batch_cnn(tmp_path))
    first = make_checks(read, seed=0, dynamic_size=8)
    more = dict(draw_samples(read, first, seed=0, dynamic_size=8))
    kinds = [kind for kind in first if kind != "zeros"]
    assert list(more) == [f"{kind} #{number}" for number in (2, 3, 4) for kind in kinds]
    assert (first_samples([*first, *more]), kind_of("smooth #3")) == (list(first), "smooth")
    [name] = first["noise"]
    drawn = [inputs[name] for inputs in (*first.values(), *more.values())]
    assert not any(np.array_equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert not dict(draw_samples(read, ["given", "noise 1x3x8x8"], seed=0, dynamic_size=8))


def test_arrays_of_a_user_are_the_only_kind() -> None:
    given = {"x": np.ones((1, 3, 5), np.float32)}
    assert make_checks(model(), seed=0, dynamic_size=5, given=given) == {"given": given}


def test_a_long_sequence_of_numbers_sounds_and_a_short_one_waves() -> None:
    def made_smooth(shape: list[int]) -> npt.NDArray[Any]:
        x = op.parameter(shape, np.float32, name="x")
        found = make_inputs(ov.Model([op.result(x)], [x]), seed=0, dynamic_size=8, kind="smooth")["x"]
        return np.asarray(found, np.float64)

    sound = made_smooth([1, 16_000, 1]).ravel()
    loudest = np.abs(np.fft.rfft(sound)).argmax()  # in Hz: it is a second
    assert loudest in (220, 277, 330)
    assert 0.4 < np.abs(sound).max() <= 0.5
    wave = made_smooth([1, 80, 300])
    assert np.sqrt(np.mean(wave**2)) == pytest.approx(1.0, 1e-3)
    assert np.abs(np.diff(wave, axis=-1)).max() < 0.2  # of noise: several
    assert made_smooth([]).shape == ()


def test_images_are_within_the_range_that_the_model_wants(tmp_path: Path) -> None:
    read = ov.Core().read_model(uint8_images(tmp_path))
    (smooth,) = make_inputs(read, seed=0, dynamic_size=32, kind="smooth").values()
    (edges,) = make_inputs(read, seed=0, dynamic_size=32, kind="edges").values()
    assert smooth.shape == edges.shape == next(iter(made(read, dynamic_size=32).values())).shape
    assert (smooth.dtype, smooth.min(), smooth.max()) == (np.uint8, 0, 255)
    steps = np.abs(np.diff(edges.astype(np.float64), axis=-2))
    assert np.mean(steps < 8) > 0.8  # a grain within few rectangles
    assert steps.max() > 30
    (grey,) = make_inputs(read, seed=0, dynamic_size=32, kind="second").values()
    channels = int(np.argmin(grey.shape[1:])) + 1
    assert (np.ptp(grey.astype(int), axis=channels) == 0).all()
    assert grey.max() > grey.min() + 100


def test_lines_of_letters_are_dark_on_light_and_most_is_ground(tmp_path: Path) -> None:
    read = ov.Core().read_model(uint8_images(tmp_path))
    (text,) = make_inputs(read, seed=0, dynamic_size=32, kind="text").values()
    dark, light = text < 0.3 * 255, text > 0.7 * 255
    assert (dark | light).all()
    assert 0.05 < dark.mean() < 0.25
    x = op.parameter([2, 3, 48, 96], np.float32, name="x")
    page = make_inputs(ov.Model([op.result(x)], [x]), seed=0, dynamic_size=8, kind="text")["x"].astype(np.float64)
    assert 0 <= page.min() < 0.1 < 0.9 < page.max() <= 1
    ink = page[:, 0] < 0.5
    lines = ink.any(axis=2)[0].astype(int)
    assert np.count_nonzero(np.diff(lines) == 1) == 2  # a line of letters in every 16 rows, with room above and below
    assert ((page < 0.5) == ink[:, None]).all()
    assert (ink[0] != ink[1]).any()
    other = make_inputs(ov.Model([op.result(x)], [x]), seed=0, dynamic_size=8, kind="page")["x"]
    assert ((other[:, 0] < 0.5) != ink).any()
    tiny = op.parameter([1, 3, 4, 4], np.float32, name="x")
    assert make_inputs(ov.Model([op.result(tiny)], [tiny]), seed=0, dynamic_size=8, kind="text")["x"].min() > 0.5


def test_normalised_images_are_grey_waves_about_zero() -> None:
    x = op.parameter([2, 3, 24, 40], np.float32, name="x")
    grey = make_inputs(ov.Model([op.result(x)], [x]), seed=0, dynamic_size=8, kind="second")["x"].astype(np.float64)
    assert np.sqrt(np.mean(grey**2)) == pytest.approx(1.0, 1e-3)
    assert (grey[:, 0] == grey[:, 2]).all()
    assert (grey[0] != grey[1]).any()
    assert grey.min() < -0.5
    assert np.abs(np.diff(grey, axis=-1)).max() < 1.0


def test_ids_of_texts_repeat_and_stay_within_the_table() -> None:
    rng = np.random.default_rng(0)
    ids = text_ids((2, 64), 30_000, rng)
    assert (ids.shape, ids.dtype) == ((2, 64), np.int64)
    assert 0 <= ids.min() < ids.max() < 30_000
    assert len(np.unique(ids[0])) < 32
    assert np.array_equal(ids[0, :8], ids[0, 32:40])
    assert len(set(ids[0, 56:])) == 1
    assert text_ids((1, 6), 2, rng).tolist() == [[0, 0, 0, 1, 1, 1]]
    assert text_ids((), 5, rng) < 5
    assert text_ids((1, 1), 1, rng).tolist() == [[0]]
