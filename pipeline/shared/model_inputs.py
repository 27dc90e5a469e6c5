"""Arrays for the inputs of a model that exercise it, drawn from a seed and equal in every process.

What an input is taken for follows from its name and from where the model takes it; on the way there it may be
converted and reshaped (`CARRIERS`). The first rule that fits counts:

| input | array |
|---|---|
| "mask" in its name, or booleans | ones |
| integers that index tables: Gather, OneHot, Equal to each of 0, 1, 2 .. | uniform over the rows of the shortest one |
| integers that LSTMSequence or the like takes as lengths, or of rank 0 or 1 with "len" in the name | the length |
| uint8 of rank 4 | uniform over 0 .. 255 |
| integers that are only compared, or subtracted from something (masks, as in (1 - mask) * -10000) | ones |
| other integers | uniform over {0, 1} |
| floating point of rank 4 with 1, 3 or 4 channels, from which more than 10 is subtracted, or that is divided by it | \
uniform over [0, 255] |
| other floating point | standard normal |

That is the kind "noise". Noise flatters low precisions, so outputs are compared on other kinds as well (`KINDS`). A
kind changes the inputs that it fits, and no other:

| kind | changes | to |
|---|---|---|
| smooth | images (rank 4 with 1, 3 or 4 channels) | gradients and soft blobs, within [0, 1], or [0, 255] as noise |
| | floating point of one dimension of `LONG` or more, 2 at most beside it (audio) | a chord, struck every half second |
| | ids | steps of a drawn size, through all of them again and again |
| | other floating point | few waves along the last two dimensions, of deviation 1 |
| edges | images | rectangles of one colour each, with a grain, within [-2, 2], or [0, 255] as noise |
| text | images | lines of letters, dark on light, within [0, 1], or [0, 255] as noise |
| | ids | frequent and rare ones, a phrase that repeats, a run of one id |
| padded | masks | ones, the last third zeros: what is added to scores there may overflow in a low precision |
| | lengths | two thirds of it |
| second | images | grey waves of deviation 1, as normalised images have it, or within [0, 255] as noise |
| | audio | drawn anew as noise |
| | other floating point, ids | drawn anew |
| zeros | what is drawn | zeros |
| page | images | as text, drawn anew: of one sample a low precision may differ by a third of what it does of the next |

For the same reason low precisions are compared on more samples of every kind, "smooth #2" and so on.

Nothing here imports OpenVINO: models and ports are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import ModelError
from pipeline.shared import signals

SEQUENCE = "sequence.json"  # how many inferences a sequence of a model with state has at most, and why, beside it, too
GIVEN = "inputs.npz"  # arrays that a user gave for a model, by input, beside the normalised model
CHANNELS = (1, 3, 4)  # what tells an image, in its second or last dimension
CARRIERS = frozenset({"Convert", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Broadcast", "StridedSlice", "Slice"})
COMPARED = frozenset({"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"})
TABLES: Mapping[str, int] = {"Gather": 1, "OneHot": 0}  # the port that takes the indices
SEQUENCES: Mapping[str, int] = {"LSTMSequence": 3, "GRUSequence": 2, "RNNSequence": 2, "ReverseSequence": 1}
WITHOUT_ARRAYS = frozenset({"bf16", "f8e4m3", "f8e5m2", "f8e8m0"})  # types of whole bytes that numpy does not have
BYTES = 256
NOISE, SMOOTH, EDGES, TEXT, PADDED = "noise", "smooth", "edges", "text", "padded"
SECOND, ZEROS, PAGE = "second", "zeros", "page"
TIMED = "timed"  # the kind of the inputs that inferences are timed with, where nobody has drawn others
# Of inputs on which outputs are compared, in the order in which that is done; a place in it is a part of the seed.
KINDS = (NOISE, SMOOTH, EDGES, TEXT, PADDED, SECOND, ZEROS, PAGE)
SAMPLES = 4  # of every kind, the first included; of zeros there is one
SAMPLE_MARK = " #"  # between a kind and the number of a sample of it that is not the first
GIVEN_KIND = "given"  # of the arrays that a user gave, on which alone outputs are compared then
PADDING = 3  # a sequence is padded for one part in so many
LONG = 1000  # samples that make a sequence of numbers audio
SCALED = 10.0  # subtracting or dividing by more turns bytes into small numbers

Inputs = dict[str, npt.NDArray[np.generic]]
Use = tuple[Any, int]  # an operation that takes a value, and at which port


def input_name(port: Any) -> str:
    """Return how users call an input of a model."""
    return str(port.get_any_name()) if port.get_names() else str(port.get_node().get_friendly_name())


def is_image(port: Any) -> bool:
    """Return whether an input has four dimensions, one of which counts channels."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic or len(shape) != 4:
        return False
    return any(shape[i].is_static and shape[i].get_length() in CHANNELS for i in (1, 3))


def image_axes(port: Any) -> tuple[int, int]:
    """Return which dimensions of an image are its height and its width."""
    channels = port.get_partial_shape()[1]
    return (2, 3) if channels.is_static and channels.get_length() in CHANNELS else (1, 2)


@dataclass(frozen=True, slots=True)
class Role:
    """What an input is taken for.

    most: of an image the brightest value, 0 where noise is normal; of ids how many there are; of a length itself.
    """

    what: Literal["ones", "ids", "length", "image", "bits", "numbers"]
    most: int = 0


def make_inputs(model: Any, *, seed: int, dynamic_size: int, kind: str = NOISE) -> Inputs:
    """Return an array for every input of an OpenVINO model, by its name; see the rules above.

    kind: one of `KINDS`.

    A dynamic first dimension becomes 1, every other dynamic dimension `dynamic_size` within its bounds. What an input
    gets depends on the model, the seed and the kind alone.

    Raises:
        ModelError: of an input not even the rank is known, or it has a type of which numpy has no arrays.
    """
    shapes = {input_name(port): _concrete_shape(port, dynamic_size=dynamic_size) for port in model.inputs}
    longest = max((n for shape in shapes.values() if len(shape) < 4 for n in shape[1:]), default=1)
    inputs: Inputs = {}
    for place, port in enumerate(model.inputs):
        name = input_name(port)
        shape, dtype = shapes[name], _element_dtype(port)
        role = _input_role(port, shape, longest)
        array = _structured_input(role, shape, kind, np.random.default_rng([seed, place, KINDS.index(kind)]))
        if array is None:
            drawn = [seed, place, KINDS.index(SECOND)] if kind == SECOND else [seed, place]
            array = _draw_noise(role, shape, dtype, np.random.default_rng(drawn))
        inputs[name] = np.asarray(array, dtype)
    return inputs


def make_checks(model: Any, *, seed: int, dynamic_size: int, given: Inputs | None = None) -> dict[str, Inputs]:
    """Return by kind the inputs on which the outputs of a model are compared, the most telling kind first.

    A kind that changes nothing for this model is left out. given: arrays of a user; they are then the only kind.

    Raises:
        ModelError: see `make_inputs`.
    """
    if given is not None:
        return {GIVEN_KIND: given}
    checks: dict[str, Inputs] = {}
    for kind in KINDS:
        inputs = make_inputs(model, seed=seed, dynamic_size=dynamic_size, kind=kind)
        if not any(
            all(np.array_equal(array, other[name]) for name, array in inputs.items()) for other in checks.values()
        ):
            checks[kind] = inputs
    return checks


def draw_samples(model: Any, kinds: Iterable[str], *, seed: int, dynamic_size: int) -> Iterator[tuple[str, Inputs]]:
    """Yield further samples of kinds of inputs, the second of every kind first, each with its name, as "smooth #2".

    kinds: see `make_checks`, from the same seed.

    Raises:
        ModelError: see `make_inputs`.
    """
    for number in range(2, SAMPLES + 1):
        for kind in kinds:
            if kind in KINDS and kind != ZEROS:
                drawn = make_inputs(model, seed=seed + number - 1, dynamic_size=dynamic_size, kind=kind)
                yield f"{kind}{SAMPLE_MARK}{number}", drawn


def kind_of(sample: str) -> str:
    """Return the kind of which something is a sample.

    >>> kind_of("smooth #2"), kind_of("smooth")
    ('smooth', 'smooth')
    """
    return sample.partition(SAMPLE_MARK)[0]


def first_samples(kinds: Iterable[str]) -> list[str]:
    """Return the kinds without further samples of them, in order.

    >>> first_samples(["noise", "zeros", "noise #2"])
    ['noise', 'zeros']
    """
    return [kind for kind in kinds if kind_of(kind) == kind]


def describe_kinds(kinds: Iterable[str]) -> str:
    """Return kinds in words, with the number of samples where there are several.

    >>> describe_kinds(["noise", "smooth", "zeros", "noise #2", "smooth #2", "noise #3"])
    'noise (3 samples), smooth (2), zeros'
    """
    counts = Counter(map(kind_of, kinds))
    several = next((kind for kind, count in counts.items() if count > 1), "")
    return ", ".join(
        kind if count == 1 else f"{kind} ({count}{' samples' * (kind == several)})" for kind, count in counts.items()
    )


def _concrete_shape(port: Any, *, dynamic_size: int) -> tuple[int, ...]:
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        name = input_name(port)
        raise ModelError(
            f"The input {name!r} has no known rank.", f"Give it a shape, as in --shape '{name}=1x3x224x224'."
        )
    return tuple(concrete_shape(shape, dynamic_size))


def _element_dtype(port: Any) -> np.dtype[Any]:
    kind = port.get_element_type()
    found: np.dtype[Any] = np.dtype(kind.to_dtype())
    if kind.bitwidth < 8 * found.itemsize or kind.get_type_name() in WITHOUT_ARRAYS:
        raise ModelError(
            f"The input {input_name(port)!r} is {kind.get_type_name()}, of which there are no arrays.",
            "Let the model take f32 and convert it itself, as openvino.preprocess.PrePostProcessor adds it.",
        )
    return found


def _input_role(port: Any, shape: tuple[int, ...], longest: int) -> Role:
    """Return what an input is taken for; longest: the length of the longest sequence among the inputs."""
    dtype = _element_dtype(port)
    name = input_name(port).lower()
    if "mask" in name or dtype.kind == "b":
        return Role("ones")
    uses = list(_uses_of(port))
    if dtype.kind == "f":
        if not is_image(port):
            return Role("numbers")
        return Role("image", BYTES - 1 if any(_scales_bytes(op) for op, _ in uses) else 0)
    rows = [n for op, at in uses if (n := _table_rows(op, at))]
    if rows:
        return Role("ids", min(rows))
    lengths = [n for op, at in uses if (n := _sequence_steps(op, at))]
    if lengths or ("len" in name and len(shape) < 2):
        return Role("length", min(lengths, default=longest))
    if dtype == np.uint8 and len(shape) == 4:
        return Role("image", BYTES - 1)
    if uses and all(op.get_type_name() in COMPARED or (op.get_type_name() == "Subtract" and at) for op, at in uses):
        return Role("ones")
    return Role("bits")


def _draw_noise(
    role: Role, shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator
) -> npt.NDArray[np.generic]:
    """Return the noise that an input of a role gets."""
    match role.what:
        case "ones":
            return np.ones(shape, dtype)
        case "length":
            return np.full(shape, role.most, dtype)
        case "ids":
            return rng.integers(0, role.most, shape)
        case "bits":
            return rng.integers(0, 2, shape)
        case "image" if dtype.kind != "f":
            return rng.integers(0, role.most + 1, shape)
        case "image" if role.most:
            return rng.uniform(0, role.most, shape)
    return rng.standard_normal(shape)


def _structured_input(
    role: Role, shape: tuple[int, ...], kind: str, rng: np.random.Generator
) -> npt.NDArray[np.generic] | None:
    """Return what an input of a role gets of a kind that does not draw it; None where the kind does not change it."""
    if role.what in ("ones", "length"):
        return _padded_input(role, shape) if kind == PADDED else None
    match kind, role.what:
        case "zeros", _:
            return np.zeros(shape)
        case "smooth", "ids":
            return signals.rising_ids(shape, role.most, rng)
        case "text", "ids":
            return signals.text_ids(shape, role.most, rng)
        case "smooth", "image":
            return signals.draw_gradients(shape, rng, channels=CHANNELS) * (role.most or 1)
        case "edges", "image":
            boxes = signals.draw_rectangles(shape, rng, channels=CHANNELS)
            return boxes * role.most if role.most else 4 * boxes - 2
        case (("text" | "page"), "image"):
            return signals.draw_lines_of_letters(shape, rng, channels=CHANNELS) * (role.most or 1)
        case "second", "image":
            return signals.draw_grey_waves(shape, rng, channels=CHANNELS, most=role.most)
        case (("smooth" | "second"), "numbers"):
            longest = max(shape, default=1)
            if longest < LONG or np.prod(shape) > 2 * longest:
                return signals.draw_waves(shape, rng)
            return signals.draw_chord(shape, rng) if kind == SMOOTH else None
    return None


def _padded_input(role: Role, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Return a mask, or lengths, of sequences that end in padding."""
    if role.what == "length":
        return np.full(shape, role.most - role.most // PADDING)
    mask = np.ones(shape)
    if shape:
        mask[..., shape[-1] - shape[-1] // PADDING :] = 0
    return mask


def _uses_of(port: Any) -> Iterator[Use]:
    """Yield where the value of an output is taken, through operations that only pass it on."""
    for target in port.get_target_inputs():
        op = target.get_node()
        if op.get_type_name() in CARRIERS and target.get_index() == 0:
            yield from _uses_of(op.output(0))
        elif op.get_type_name() != "ShapeOf":
            yield op, target.get_index()


def _constant_at(op: Any, at: int) -> npt.NDArray[np.generic] | None:
    """Return the value of the constant that an operation takes at a port, None if it takes none there."""
    node = op.input_value(at).get_node()
    return np.asarray(node.get_data()) if node.get_type_name() == "Constant" else None


def _table_rows(op: Any, at: int) -> int:
    """Return how many rows the table has that an operation looks up by what it takes at a port; 0 for no table."""
    if op.get_type_name() == "Equal":  # to each of 0, 1, 2 ..: a OneHot
        classes = _constant_at(op, 1 - at)
        whole = classes is not None and classes.size > 1 and np.array_equal(classes.ravel(), np.arange(classes.size))
        return classes.size if classes is not None and whole else 0
    if TABLES.get(op.get_type_name()) != at:
        return 0
    if op.get_type_name() == "OneHot":
        depth = _constant_at(op, 1)
        return 0 if depth is None else int(depth)
    axis, shape = _constant_at(op, 2), op.get_input_partial_shape(0)
    if axis is None or shape.rank.is_dynamic or shape[int(axis)].is_dynamic:
        return 0
    return int(shape[int(axis)].get_length())


def _sequence_steps(op: Any, at: int) -> int:
    """Return how many steps the sequence has whose lengths an operation takes at a port; 0 for no sequence."""
    if SEQUENCES.get(op.get_type_name()) != at:
        return 0
    shape = op.get_input_partial_shape(0)
    return 0 if shape.rank.is_dynamic or shape[1].is_dynamic else int(shape[1].get_length())


def _scales_bytes(op: Any) -> bool:
    """Return whether an operation turns bytes into small numbers, by a constant."""
    kind = op.get_type_name()
    if kind not in ("Subtract", "Divide", "Multiply"):
        return False
    value = _constant_at(op, 1)
    if value is None or value.size == 0:
        return False
    largest = float(np.abs(value.astype(np.float64)).max())
    return 0 < largest < 1 / SCALED if kind == "Multiply" else largest > SCALED


def concrete_shape(shape: Any, *sizes: int, front: int = 0) -> list[int]:
    """Return an OpenVINO shape of known rank with every dynamic dimension set, within its bounds.

    sizes: of each but the one at `front`, which becomes 1; several are given in turn, as height and width.
    """
    numbers = []
    others = 0  # dynamic dimensions so far that are not at the front
    for axis, dimension in enumerate(shape):
        if dimension.is_static:
            numbers.append(dimension.get_length())
            continue
        wanted = 1 if axis == front else sizes[others % len(sizes)]
        others += axis != front
        numbers.append(bounded_size(dimension, wanted))
    return numbers


def bounded_size(dimension: Any, wanted: int) -> int:
    """Return the size of an OpenVINO dimension that is nearest to the one that is wanted."""
    upper = dimension.get_max_length()
    return int(max(dimension.get_min_length(), wanted if upper < 0 else min(wanted, upper)))
