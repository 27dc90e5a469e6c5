"""Outputs of a model by name, run by ONNX Runtime or by plain OpenVINO, and how far two sets of outputs lie apart.

Nothing here imports placewright: what judges it shares no code with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import openvino as ov
from onnx import numpy_helper

Array = npt.NDArray[np.generic]
Arrays = dict[str, Array]
Sizes = Mapping[str, Sequence[int]]

NOISE, SMOOTH, ZEROS, PADDED = "noise", "smooth", "zeros", "padded"
PAGE, NORMALISED = "page", "normalised page"  # within [0, 1], and as means and deviations of photographs leave it
KINDS = (NOISE, SMOOTH, ZEROS)
PAGES = (PAGE, NORMALISED)
VOCABULARY = 1000  # of ids, where a model says nothing of theirs
LAST_PLACES = 2.0**-21  # four of a number in f32, as a share of it: how far sums in another order lie apart
MOVES = 3  # seeds of weights and inputs that are moved
INDICES = 2.0  # times as many indices may differ as numbers may differ by (docs/outputs.md)
SMALL = 8  # numbers that are no weights: scales of Resize, its regions, bounds, epsilons
CHANNELS = (1, 3)  # of an image
GLYPH, LINE = (8, 6), 16  # pixels of a letter of a page, high and wide, and from line to line
QUIET = 0.1  # of its size over all kinds: an output is not taken to be smaller on one of them (docs/outputs.md)


@dataclass(frozen=True, slots=True)
class Port:
    """An input: its name, its type in numpy, and its shape, None where a dimension is open."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


def ports(path: Path) -> list[Port]:
    """Return the inputs of an ONNX file, or of what else OpenVINO reads."""
    if path.suffix != ".onnx":
        found = ov.Core().read_model(path).inputs
        return [Port(p.get_any_name(), np.dtype(p.get_element_type().to_dtype()), _open_shape(p)) for p in found]
    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}
    return [
        Port(
            value.name,
            np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
            tuple(d.dim_value or None for d in value.type.tensor_type.shape.dim),
        )
        for value in graph.input
        if value.name not in weights
    ]


def _open_shape(port: Any) -> tuple[int | None, ...]:
    return tuple(d.get_length() if d.is_static else None for d in port.get_partial_shape())


def arrays(inputs: Sequence[Port], sizes: Sizes, kind: str, *, seed: int = 0, vocabulary: int = VOCABULARY) -> Arrays:
    """Return an array per input: drawn, smooth, zeros, or drawn with the last third of every mask 0.

    sizes: shapes of inputs whose dimensions are open. Integers are ids below `vocabulary`, except where the name tells
    a mask (ones), types of tokens (zeros) or lengths (the longest sequence).
    """
    rng = np.random.default_rng(seed)
    shapes = {p.name: tuple(sizes.get(p.name) or [n or 1 for n in p.shape]) for p in inputs}
    longest = max((shape[1] for shape in shapes.values() if len(shape) in (2, 3)), default=1)
    return {p.name: _array(p, shapes[p.name], kind, (seed, vocabulary, longest), rng) for p in inputs}


def _array(
    port: Port, shape: tuple[int, ...], kind: str, fixed: tuple[int, int, int], rng: np.random.Generator
) -> Array:
    seed, vocabulary, longest = fixed
    name, of = port.name.lower(), port.dtype
    if of.kind == "b" or "mask" in name:
        mask = np.ones(shape, of)
        if kind == PADDED:
            mask[..., shape[-1] * 2 // 3 :] = 0
        return mask
    if of.kind == "f":
        return _signal(shape, kind, seed, rng).astype(of)
    if "len" in name:
        return np.full(shape, longest, of)
    if kind == ZEROS or "type" in name:
        return np.zeros(shape, of)
    highest = min(vocabulary, np.iinfo(of).max)
    drawn = rng.integers(0, highest, shape)
    return ((np.arange(drawn.size) * 7 + seed).reshape(shape) % highest if kind == SMOOTH else drawn).astype(of)


def _signal(shape: tuple[int, ...], kind: str, seed: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return what a floating-point input gets: images in [0, 1], other signals of a standard deviation near 1."""
    if kind == ZEROS:
        return np.zeros(shape)
    if kind in PAGES and _is_image(shape):
        return _page(shape, rng) if kind == PAGE else 4 * _page(shape, rng) - 2
    if kind != SMOOTH or not shape:
        return rng.random(shape) if len(shape) == 4 else rng.standard_normal(shape)
    line = np.linspace(0, 1, shape[-1])
    wave = sum(np.sin(2 * np.pi * pitch * line + seed) / pitch for pitch in (1, 3, 9))
    if len(shape) > 1:
        wave = wave * np.cos(np.linspace(0, 3, shape[-2]))[:, None]
    return np.broadcast_to(wave, shape).copy()


def _page(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return lines of drawn letters, black on white: on the other kinds what finds text or edges answers nothing."""
    first = shape[1] in CHANNELS
    height, width = shape[2:] if first else shape[1:3]
    page = np.ones((height, width))
    for top in range(LINE // 2, height - LINE, LINE):
        for left in range(LINE, width - LINE, GLYPH[1] + 2):
            if rng.random() < 0.85:  # else a space
                dots = rng.random((GLYPH[0] // 2, GLYPH[1] // 2)) < 0.5
                page[top : top + GLYPH[0], left : left + GLYPH[1]] -= np.kron(dots, np.ones((2, 2)))
    return np.broadcast_to(page[None, None] if first else page[None, :, :, None], shape).copy()


def _is_image(shape: Sequence[int | None]) -> bool:
    """Return whether an input of this shape, open dimensions None, may be images."""
    if len(shape) != 4:
        return False
    sides = shape[2:] if shape[1] in CHANNELS else shape[1:3] if shape[3] in CHANNELS else ()
    return bool(sides) and all(side is None or side >= 2 * LINE for side in sides)


def kinds_of(inputs: Sequence[Port]) -> tuple[str, ...]:
    """Return the kinds of inputs that a model is tried with: padding too where it takes a mask, pages if an image."""
    padded = (PADDED,) if any("mask" in port.name.lower() for port in inputs) else ()
    pages = PAGES if any(port.dtype.kind == "f" and _is_image(port.shape) for port in inputs) else ()
    return (*KINDS, *padded, *pages)


def session(
    model: Path | bytes,
    *,
    threads: int = 1,
    optimised: bool = True,
    recorded: Mapping[str, str] = MappingProxyType({}),
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> onnxruntime.InferenceSession:
    """Return an ONNX Runtime session; threads 0: as many as it takes by itself.

    recorded: further options as placement.json has them: texts, those with a dot in their names of the configuration.

    Raises:
        Exception: ONNX Runtime does not take the model; its exceptions have no common class.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in recorded.items():
        if "." in name:
            options.add_session_config_entry(name, value)
        else:
            kind = type(getattr(options, name))
            setattr(options, name, getattr(kind, value) if hasattr(kind, "__members__") else kind(int(value)))
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=list(providers))


def by_onnxruntime(ready: onnxruntime.InferenceSession, given: Arrays) -> Arrays:
    """Return the outputs of an inference, by name."""
    names = [output.name for output in ready.get_outputs()]
    return dict(zip(names, (np.asarray(value) for value in ready.run(None, given)), strict=True))


def by_openvino(compiled: Any, given: Arrays, names: Sequence[str]) -> Arrays:
    """Return the outputs of these names of an inference of a compiled model; an input it folded away is left out.

    Raises:
        RuntimeError: it fails, or the model has no output of that name.
    """
    taken = {name: array for name, array in given.items() if any(name in port.get_names() for port in compiled.inputs)}
    found = compiled.create_infer_request().infer(taken)
    return {name: np.array(found[compiled.output(name)]) for name in names}


def moved(path: Path, seed: int = 0) -> bytes:
    """Return an ONNX model whose float weights are moved by a few units in the last place, drawn from a seed.

    How far its outputs move tells what "equal" can mean: where activations are rounded to 8 bits, a good deal.
    """
    model = onnx.load(path)
    rng = np.random.default_rng(seed)
    for weight in model.graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size > SMALL:
            weight.CopyFrom(numpy_helper.from_array(_nudged(values, rng), weight.name))
    return bytes(model.SerializeToString())


def nudged(given: Arrays, seed: int = 0) -> Arrays:
    """Return inputs whose numbers in f32 are moved in the same way."""
    rng = np.random.default_rng(seed)
    return {name: _nudged(array, rng) if array.dtype == np.float32 else array for name, array in given.items()}


def _nudged(values: Array, rng: np.random.Generator) -> Array:
    held = np.abs(values) < np.finfo(np.float32).max / 2  # masks' lowest number must not become infinite
    factors = np.where(held, 1 + LAST_PLACES * rng.standard_normal(values.shape), 1)
    return np.asarray(values * factors, values.dtype)


@dataclass(frozen=True, slots=True)
class Apart:
    """How far outputs lie from those of a reference.

    worst: the largest relative L2 norm of a difference; of integers the share that differs over `INDICES`. output: its
    name. channel: the largest of one channel of a floating-point output, relative to the output's mean channel. why: in
    words where they cannot be compared, then worst and channel are infinite.
    """

    worst: float
    output: str = ""
    channel: float = 0.0
    why: str = ""


def quiet_sizes(references: Iterable[Arrays]) -> dict[str, float]:
    """Return for each floating-point output the root mean square below which its size is not taken to be.

    references: outputs for each kind of inputs. On one kind alone a map may be all but zero: its relative difference
    then tells nothing of what it is used for.
    """
    sizes: dict[str, float] = {}
    for outputs in references:
        for name, array in outputs.items():
            if array.dtype.kind == "f" and array.size:
                finite = np.where(np.isfinite(array), array, 0).astype(np.float64)
                sizes[name] = max(sizes.get(name, 0.0), QUIET * float(np.sqrt(np.mean(finite**2))))
    return sizes


def apart(found: Arrays, reference: Arrays, quiet: Mapping[str, float] = MappingProxyType({})) -> Apart:
    """Return how far outputs lie from those of a reference, by name; quiet: of `quiet_sizes`."""
    worst, channel = Apart(0.0), 0.0
    for name, wanted in reference.items():
        here = _apart(found[name], wanted, name, quiet.get(name, 0.0))
        channel = max(channel, here.channel)
        if here.worst > worst.worst or here.why:
            worst = here
        if here.why:
            break
    return Apart(worst.worst, worst.output, channel, worst.why)


def _apart(found: Array, wanted: Array, name: str, quiet: float) -> Apart:
    endless = float("inf")
    if found.shape != wanted.shape:
        return Apart(endless, name, endless, f"{name} has the shape {found.shape}, not {wanted.shape}")
    if not wanted.size:
        return Apart(0.0, name)
    if wanted.dtype.kind != "f":
        return Apart(float(np.mean(found != wanted)) / INDICES, name)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return Apart(endless, name, endless, f"{name} is infinite or no number elsewhere")
    a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    norm = max(float(np.linalg.norm(b)), quiet * b.size**0.5)
    return Apart(_share(float(np.linalg.norm(a - b)), norm), name, _worst_channel(a, b))


def _worst_channel(found: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> float:
    """Return the largest difference of a channel: the second dimension of images, else the last one.

    It is relative to that channel's norm, or to the mean one where the channel is weaker than that.
    """
    if wanted.ndim < 2:
        return 0.0
    axis = 1 if wanted.ndim == 4 else wanted.ndim - 1
    others = tuple(i for i in range(wanted.ndim) if i != axis)
    norms = np.sqrt((wanted**2).sum(axis=others))
    gaps = np.sqrt(((found - wanted) ** 2).sum(axis=others))
    return float(max(_share(float(g), max(float(n), float(norms.mean()))) for g, n in zip(gaps, norms, strict=True)))


def _share(gap: float, norm: float) -> float:
    return gap / norm if norm else gap


def own_width(path: Path, given: Mapping[str, Arrays], wanted: Mapping[str, Arrays]) -> float:
    """Return how far the outputs of ONNX Runtime lie from themselves.

    That is without graph optimisation, and with weights and inputs moved by a few units in the last place.
    """
    plain = session(path, optimised=False)
    quiet = quiet_sizes(wanted.values())
    gaps = [apart(by_onnxruntime(plain, given[kind]), wanted[kind], quiet).worst for kind in given]
    for seed in range(MOVES):
        other = session(moved(path, seed))
        found = {kind: by_onnxruntime(other, nudged(given[kind], seed)) for kind in given}
        gaps += [apart(found[kind], wanted[kind], quiet).worst for kind in given]
    return max(gaps)
