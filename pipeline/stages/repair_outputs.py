"""Reading a model so that what is measured computes what the user's file does.

The normalised model, its shapes concrete and its constants folded, is run on the CPU in f32, and its outputs are
compared with those of the source by an executor that shares as little as possible with it
(`coarsen.reading.reference`). Where they depart, what is known to help is tried in order: give zeros that are quantised
dynamically a scale, write quantisation as arithmetic, leave one dimension open, leave all open, do not fold constants,
make the first operation that departs an output of its own. The first way that gives the right outputs is used, and what
it costs is told; where none does, the model is refused with the first operation that departs.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.reading_options import ARITHMETIC, GUARDED, UNIT_BIAS, USUAL, Way
from coarsen.reading.read_in_process import locate_departure, read_in_process
from coarsen.reading.sizes.shapes import ChosenShape, InputShapes, describe_shapes
from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.errors import ModelError, OutputMismatchError, UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.shared.checks import (
    CHECKS,
    EVALUATED,
    FACTS,
    NORMALISED,
    REFERENCE,
    TIMING,
    ReferenceFacts,
    ReferenceOrder,
    load_by_kind,
    save_by_kind,
)
from pipeline.shared.measured_sizes import SIZES
from pipeline.shared.model_inputs import GIVEN, GIVEN_KIND
from pipeline.shared.payload import load_graph
from pipeline.stages.host import ModelFile
from runtime.measuring.outputs.outputs import OutputDifference, Reference, holds_nan, low_scores, output_differences
from runtime.measuring.outputs.quality import SAME, SAME_INDICES, compare_by_kind, reference_beside, same_within

SHAPES, GRAPH = "shapes.json", "graph.npz"
LOCAL_RESPONSE = "LRN"  # of whose biases OpenVINO's CPU device drops the fraction
QUANTISER = "FakeQuantize"  # what the runtime makes integer products of
RANGED = frozenset({"ReduceMax", "ReduceMin", "Round"})  # what OpenVINO reads DynamicQuantizeLinear as, among others
MOST_SIZES = 3  # assumed sizes of inputs with which a model is read
MOST_SINGLE = 6  # single dimensions of single inputs that are left open, one after another
UNSTABLE = 0.1  # distance beyond which a tiny change of the inputs leaves nothing to compare
REMEDY = (
    "That is a fault of the runtime: try another version of openvino, other sizes with --shape, or export the model "
    "otherwise. `placewright where --outputs` shows where two ways to run it depart."
)


@dataclass(frozen=True, slots=True)
class Departure:
    """An output of the normalised model that departs from the reference's, on one kind of inputs."""

    kind: str
    difference: OutputDifference

    def __str__(self) -> str:
        return f"{self.difference} off on the inputs {self.kind!r}"


@dataclass(frozen=True, slots=True)
class Source:
    """A model file that is read.

    read: reads it into a folder, in a way, with shapes; sizes to pass over come last, with what is wrong with them.
    locate: returns what departs first there, "" if nobody knows. deadline: after which nothing else is tried.
    """

    path: Path
    read: Callable[[Path, Way, InputShapes, ReferenceOrder, Mapping[str, str]], None]
    locate: Callable[[Path, Departure], str]
    deadline: Deadline = NEVER


def source_of(
    model: ModelFile, limits: ReadLimits, *, locate_s: float, deadline: Deadline = NEVER, **how: Any
) -> Source:
    """Return a model file that is read in a process of its own.

    locate_s: seconds for what departs first. deadline: see `Source`. how: more of `read_in_process`.
    """

    def read(out: Path, way: Way, shapes: InputShapes, order: ReferenceOrder, unfit: Mapping[str, str]) -> None:
        alike: Mapping[str, Any] = {"source": model.sha256, "limits": limits, **how}
        read_in_process(model.path, out, shapes=shapes, way=way, reference=order, unfit=unfit, **alike)

    def locate(out: Path, departure: Departure) -> str:
        output = departure.difference.name
        return locate_departure(model.path, out, departure.kind, output, limits, seconds=locate_s)

    return Source(model.path, read, locate, deadline)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A way to read the model: in words, the way itself, and the shapes of its inputs."""

    words: str
    way: Way
    shapes: InputShapes


def read_faithfully(source: Source, out: Path, shapes: InputShapes, order: ReferenceOrder) -> None:
    """Read a model into a folder the first way that gives the outputs of its source; see the module.

    order: what is run for the comparison. `FACTS` says in "way" what was done, "" for nothing special.

    Raises:
        OutputMismatchError: none of the ways gives them, nor other sizes of inputs where these were assumed.
        PlacewrightError: whatever reading it the usual way raises.
    """
    unfit: dict[str, str] = {}
    faults = list[OutputMismatchError]()
    while True:
        try:
            source.read(out, USUAL, shapes, order, unfit)
            _mend_model(source, out, shapes, order)
        except OutputMismatchError as error:
            faults.append(error)
            chosen = [ChosenShape(**row) for row in json.loads((out / SHAPES).read_text(encoding="utf-8"))]
            if len(faults) == MOST_SIZES or source.deadline.passed or all(shape.given for shape in chosen):
                raise faults[0] from error
            unfit[describe_shapes(chosen)] = error.cause
            _clear_folder(out)
        except ModelError as error:
            if faults:  # no other size is left
                raise faults[0] from error
            raise
        else:
            return


def _clear_folder(out: Path) -> None:
    for path in out.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _mend_model(source: Source, out: Path, shapes: InputShapes, order: ReferenceOrder) -> None:
    """Compare a model that was read the usual way with its source, and read it in another way if it departs.

    Raises:
        OutputMismatchError: none gives the source's outputs.
    """
    if not (out / REFERENCE).exists():
        _write_conclusion(out, None, "")
        return
    _settle_reference(out)
    departed = find_departures(out)
    if not departed:
        _write_conclusion(out, None, "")
        return
    if _departs_from_nan(out, departed[0]):
        raise OutputMismatchError(
            f"On the generated inputs {_executor_name(out)} gives NaN in {departed[0].difference.name} of "
            f"{source.path}, and OpenVINO numbers: nothing can be compared.",
            "Pass inputs as the model is used with, --input.",
        )
    spare, located = out / "spare", list[str]()
    for attempt in _list_attempts(source, out, shapes, departed[0], located):
        if source.deadline.passed:
            break
        if _attempt_agrees(source, attempt, out, spare, order):
            _take_attempt(spare, out, attempt)
            _write_conclusion(out, departed[0], attempt.words)
            return
    late = source.deadline.passed
    where = f"; the first operation that departs is {located[0]}" if located else ""
    tried = "The budget ended before all workarounds were tried." if late else "The known workarounds do not help."
    raise OutputMismatchError(
        f"The outputs of {source.path} change when it is read: {departed[0]}, by {_executor_name(out)}{where}. {tried}",
        f"Raise --budget. {REMEDY}" if late else REMEDY,
    )


def find_departures(out: Path, candidate: Path | None = None) -> list[Departure]:
    """Return where the outputs of the normalised model depart from the reference's, the worst first.

    out: a folder with `REFERENCE`; candidate: one with `NORMALISED`, the same if None.

    Raises:
        OutputMismatchError: an output has another shape.
    """
    reference, found = reference_beside(out), load_by_kind((candidate or out) / NORMALISED)
    kinds = [kind for kind in reference.outputs if kind in found]  # of a slow way to read it some may be left out
    ours = {kind: {name: found[kind][name] for name in reference.outputs[kind]} for kind in kinds}  # one may be exposed
    compared = compare_by_kind(ours, reference, kinds)
    if isinstance(compared, MeasurementFailed):
        raise OutputMismatchError(f"Once it is read, the model has other outputs: {compared.message}.", REMEDY)
    strained = [(one.worst(same_within(SAME))[0], one) for one in compared]
    departed = sorted((pair for pair in strained if pair[0] > 1), key=lambda pair: -pair[0])
    return [Departure(one.kind, one.apart) for _, one in departed]


def _distance_of(difference: OutputDifference) -> float:
    return max(difference.difference, difference.unmatched)


def _departs_from_nan(out: Path, departure: Departure) -> bool:
    """Return whether there are numbers where the reference is NaN, which it is on all kinds of inputs then."""
    name, kind, apart = departure.difference.name, departure.kind, departure.difference.difference
    return kind != GIVEN_KIND and math.isinf(apart) and holds_nan(load_by_kind(out / REFERENCE)[kind][name])


def _unstable_outputs(reference: Reference) -> list[str]:
    """Return the outputs that change far on every kind of inputs where these change by as little as rounding does."""
    slack = reference.slack
    names = next(iter(slack.values()), {})
    return [name for name in names if min(_distance_of(each[name]) for each in slack.values()) > UNSTABLE]


def _settle_reference(out: Path) -> None:
    """Let OpenVINO's reference implementation be right where its CPU device departs from it on the source as read."""
    if not (out / EVALUATED).exists():
        return
    evaluated, read = load_by_kind(out / EVALUATED), load_by_kind(out / REFERENCE)
    each = [output_differences(read[kind], outputs, kind=kind) for kind, outputs in evaluated.items()]
    if any(
        isinstance(found, MeasurementFailed) or any(_distance_of(d) > SAME_INDICES for d in found) for found in each
    ):
        save_by_kind(out / REFERENCE, evaluated)
        _change_facts(out, executor="OpenVINO's reference implementation", kinds=list(evaluated), samples=0)


def _list_attempts(
    source: Source, out: Path, shapes: InputShapes, departed: Departure, located: list[str]
) -> Iterator[Attempt]:
    """Yield what may help against wrong outputs, in order; located: gets the first operation that departs."""
    types = set(load_graph(out / GRAPH).type_names)  # these take less time than what open dimensions cost
    if types >= RANGED:
        yield Attempt("with dynamic quantisation of zeros guarded", Way(prepared=GUARDED), shapes)
    if QUANTISER in types:
        yield Attempt("with quantisation written as arithmetic", Way(prepared=ARITHMETIC), shapes)
    if LOCAL_RESPONSE in types:
        yield Attempt("with local responses of bias 1 and a factor", Way(prepared=UNIT_BIAS), shapes)
    yield from _open_attempts(out)
    yield Attempt("with constants not folded", Way(fold=False), shapes)
    name = source.locate(out, departed)
    if name:
        located.append(name)
        yield Attempt(f"with {name} as a further output", Way(exposed=name), shapes)


def _executor_name(out: Path) -> str:
    return str(json.loads((out / FACTS).read_text(encoding="utf-8"))["executor"])


def _open_attempts(out: Path) -> Iterator[Attempt]:
    """Yield ways that leave dimensions open: one of all inputs, then one of a single input, then all the file has open.

    Where the file leaves none open, all inputs are tried with one dimension open. What has several sizes stays open.
    """
    each_kind = [{name: list(a.shape) for name, a in inputs.items()} for inputs in load_by_kind(out / CHECKS).values()]
    sizes = each_kind[0]
    ranged = {
        name: [i for i in range(len(shape)) if any(other[name][i] != shape[i] for other in each_kind)]
        for name, shape in sizes.items()
    }
    declared = {row["name"]: row["declared"] for row in json.loads((out / SHAPES).read_text(encoding="utf-8"))}
    told = {name: _open_places(declared.get(name, ""), len(shape)) for name, shape in sizes.items()}
    free = told if any(told.values()) else {name: list(range(len(shape))) for name, shape in sizes.items()}
    places = sorted({place for each in free.values() for place in each})
    opened = [{name: [place] for name, each in free.items() if place in each} for place in places]
    opened += [{name: [place]} for place in places for name, each in free.items() if place in each][:MOST_SINGLE]
    opened += [told] if any(told.values()) else []
    for i, each in enumerate(opened):
        if each not in opened[:i]:
            words = ", ".join(_describe_dimensions(name, at) for name, at in each.items() if at)
            every = {name: [*each.get(name, []), *ranged[name]] for name in sizes}
            yield Attempt(f"with {words} left open", USUAL, _with_open(sizes, every))


def _describe_dimensions(name: str, places: list[int]) -> str:
    """Return dimensions of an input in words.

    >>> _describe_dimensions("ids", [0]), _describe_dimensions("x", [0, 2])
    ('dimension 0 of ids', 'dimensions 0 and 2 of x')
    """
    return f"dimension{'s' * (len(places) > 1)} {' and '.join(map(str, places))} of {name}"


def _open_places(declared: str, rank: int) -> list[int]:
    """Return which dimensions of an input the file leaves open.

    >>> _open_places("[?,3,1..,?]", 4), _open_places("[...]", 2), _open_places("", 2)
    ([0, 2, 3], [0, 1], [])
    """
    dimensions = declared.strip("[]").split(",") if declared else []
    if len(dimensions) != rank:
        return list(range(rank)) if declared else []
    return [i for i, text in enumerate(dimensions) if not text.isdigit()]


def _with_open(sizes: Mapping[str, list[int]], opened: Mapping[str, list[int]]) -> InputShapes:
    """Return the shapes of all inputs, some of their dimensions open."""
    texts = (
        f"{name}={'x'.join('?' if i in opened.get(name, []) else str(n) for i, n in enumerate(shape)) or 'scalar'}"
        for name, shape in sizes.items()
    )
    return InputShapes(tuple(texts))


def _attempt_agrees(source: Source, attempt: Attempt, out: Path, spare: Path, order: ReferenceOrder) -> bool:
    """Return whether a way of reading the model, into the folder `spare`, gives the reference's outputs."""
    shutil.rmtree(spare, ignore_errors=True)
    spare.mkdir()
    shutil.copyfile(out / CHECKS, spare / CHECKS)
    try:
        source.read(spare, attempt.way, attempt.shapes, replace(order, source=False), {})
    except (ModelError, UsageError):
        return False  # the model cannot be read that way
    return (spare / NORMALISED).exists() and not find_departures(out, spare)


def _take_attempt(spare: Path, out: Path, attempt: Attempt) -> None:
    """Put the model that was read into one folder in the place of that in another, with the inputs it is timed with."""
    seconds = [json.loads((folder / TIMING).read_text(encoding="utf-8"))["inference_s"] for folder in (spare, out)]
    for path in spare.iterdir():
        if path.name not in (CHECKS, SHAPES, TIMING):
            shutil.move(path, out / path.name)
    if not (out / GIVEN).exists() and attempt.way == USUAL:
        first = next(iter(load_by_kind(out / CHECKS).values()))
        np.savez(out / GIVEN, **first)  # type: ignore[arg-type]  # of open dimensions the sizes are told by what is measured with
    _change_facts(out, cost=seconds[0] / seconds[1])


def _write_conclusion(out: Path, departed: Departure | None, words: str) -> None:
    """Leave in the folder what later stages take, and in `FACTS` what was done."""
    shutil.rmtree(out / "spare", ignore_errors=True)
    if not ((out / REFERENCE).exists() or (out / SIZES).exists()):
        (out / CHECKS).unlink(missing_ok=True)
    for name in (EVALUATED, TIMING):
        (out / name).unlink(missing_ok=True)
    reference = reference_beside(out)
    found = {"unstable": _unstable_outputs(reference), "low": low_scores(reference.outputs)}
    _change_facts(out, way=words, departed=str(departed) if departed else "", **found)


def _change_facts(out: Path, **changes: Any) -> None:
    """Change what `FACTS` says."""
    path = out / FACTS
    facts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else asdict(ReferenceFacts())
    path.write_text(json.dumps(facts | changes), encoding="utf-8")
