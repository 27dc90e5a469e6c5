"""A gate: all models on both sides, one after the other within one budget, and what may be said of the change."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Literal, get_args

from pydantic import TypeAdapter

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.sizes.given_inputs import load_inputs
from coarsen.reading.sizes.shapes import InputShapes, inputs_sha256
from pipeline.core.deadline import Deadline
from pipeline.core.errors import (
    MeasurementError,
    ModelError,
    OutputMismatchError,
    PlacewrightError,
    SlowerError,
    UsageError,
)
from pipeline.core.measurement import MeasurementFailed
from pipeline.gate.environments import Environment, look_at_environment
from pipeline.gate.first_look import FirstLook, look_at_sides
from pipeline.gate.gate_file import FIGURES, LEAST, OUTPUTS, RUNS, Figure, Gate, GatedModel, Side
from pipeline.gate.judge import LEVEL, FigureRecord, judge_all_figures, judge_figure
from pipeline.gate.starts import AFTER, BEFORE, GateSide, GateStart, MeasuredStarts, Mode, SideFailed, Starts, Which
from pipeline.shared.checks import CHECKS, ReferenceOrder, load_by_kind, save_by_kind
from pipeline.shared.model_inputs import GIVEN_KIND
from pipeline.store.store import file_digest, json_digest
from pipeline.system.json_lines import append_line, load_lines
from pipeline.system.machine_lock import measuring_alone
from pipeline.system.private_files import make_alike
from runtime.measuring.contest.statistics import Rules

JOURNAL = "starts.jsonl"
LOOK = 6  # starts after which a model that is decided has no more
MOST_STARTS = 40
LOCATE_SHARE = 0.2  # of a model's time, for finding which operation departs first
PROTOCOL = 1  # what starts are told apart by where their meaning changes
Verdict = Literal["broken", "unreadable", "differs", "slower", "undecided", "repaired", "faster", "same"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # the worst first
ERRORS: Mapping[Verdict, type[PlacewrightError]] = {
    "broken": MeasurementError,
    "unreadable": ModelError,
    "differs": OutputMismatchError,
    "slower": SlowerError,
}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One thing that was looked at: a figure, outputs or whether it runs. words: what was found.

    fails: the verdict that it makes; "" where it passes. accepted: by which exception it passes.
    """

    what: str
    words: str
    fails: Verdict | Literal[""] = ""
    accepted: str = ""


@dataclass(frozen=True, slots=True)
class GatedRecord:
    """A model of a gate. verdict: whatever is accepted. checks: its parts. starts: of how many."""

    model: str
    verdict: Verdict
    text: str
    passed: bool
    checks: Sequence[GateCheck]
    figures: Sequence[FigureRecord]
    look: FirstLook
    starts: int
    seconds: float
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GateSideRecord:
    """A side: as it was asked for, and what it has."""

    asked: str
    python: str
    python_version: str
    runtime: str
    version: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GateRecord:
    """gate.json."""

    schema: Literal["placewright.gate/1"]
    before: GateSideRecord
    after: GateSideRecord
    level: float
    models: Sequence[GatedRecord]
    verdict: Verdict
    passed: bool
    text: str
    notes: Sequence[str] = ()


@dataclass(slots=True)
class GateJournal:
    """What was measured of one model on two sides, in a file of JSON Lines; lines of others are left alone.

    ended: after how many starts earlier runs have judged them.
    """

    path: Path
    context: str
    look: FirstLook | None = None
    starts: list[GateStart] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    seconds: float = 0.0

    @classmethod
    def of(cls, path: Path, context: str) -> GateJournal:
        """Return what a file holds; a torn last line is left out."""
        journal = cls(path, context)
        for line in load_lines(path):
            if line.get("context") != context:
                continue
            if "look" in line:
                journal.look = TypeAdapter(FirstLook).validate_python(line["look"])
                journal.seconds += line["seconds"]
            elif "start" in line:
                journal.starts.append(TypeAdapter(GateStart).validate_python(line["start"]))
                journal.seconds += journal.starts[-1].seconds
            elif "ended" in line:
                journal.ended.add(line["ended"])
        return journal

    def add_look(self, look: FirstLook, seconds: float) -> None:
        """Keep what was seen; what may go better another time is not written down."""
        self.look, self.seconds = look, self.seconds + seconds
        if not any(MeasurementFailed(*fault).transient for fault in look.failed.values()):
            append_line(self.path, {"context": self.context, "look": asdict(look), "seconds": seconds})

    def add_start(self, start: GateStart) -> None:
        """Keep a start."""
        self.starts.append(start)
        self.seconds += start.seconds
        append_line(self.path, {"context": self.context, "start": asdict(start)})

    def end(self) -> int:
        """Note that the starts are judged now; return how often they are looked at in all, the early look included."""
        if len(self.starts) not in self.ended:
            self.ended.add(len(self.starts))
            append_line(self.path, {"context": self.context, "ended": len(self.starts)})
        return 1 + len(self.ended)


def run_gate(gate: Gate, out: Path, *, today: date, say: Say, remeasure: bool = False) -> GateRecord:
    """Return what the change from one side to the other does to all models; starts are kept in the folder `out`.

    today: by which exceptions have expired. remeasure: forget what was measured before.

    Raises:
        UsageError: a side has no runtime that can be imported, or inputs do not fit.
    """
    environments = {
        side: look_at_environment(what.python, gate.runtime)
        for side, what in (("before", gate.before), ("after", gate.after))
    }
    try:
        make_alike(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror}.", "Choose another folder for --out.") from error
    if remeasure:
        (out / JOURNAL).unlink(missing_ok=True)
    claims = sum(len(model.limits) for model in gate.models)
    left_s = gate.budget_s
    rows: list[GatedRecord] = []
    with measuring_alone(say):
        for i, model in enumerate(gate.models):
            share_s = left_s / (len(gate.models) - i)
            row = _gate_model(gate, model, environments, out / JOURNAL, share_s, claims=claims, today=today, say=say)
            left_s = max(0.0, left_s - row.seconds)
            rows.append(row)
    return _summarise(gate, environments, rows)


def _gate_model(  # noqa: PLR0913  all of them by name
    gate: Gate,
    model: GatedModel,
    environments: Mapping[str, Environment],
    journal_path: Path,
    share_s: float,
    *,
    claims: int,
    today: date,
    say: Say,
) -> GatedRecord:
    begun = time.monotonic()
    sides: dict[Which, GateSide] = {
        BEFORE: _gate_side(gate, gate.before, environments[BEFORE], model.before),
        AFTER: _gate_side(gate, gate.after, environments[AFTER], model.after),
    }
    modes: tuple[Mode, ...] = ("latency", "throughput") if "throughput" in model.limits else ("latency",)
    with tempfile.TemporaryDirectory(prefix="placewright-gate-", ignore_cleanup_errors=True) as folder:
        inputs = Path(folder) / "inputs.npz"
        say(f"{model.name}: reading")
        try:
            journal = GateJournal.of(journal_path, _context(model, sides, modes, gate.accuracy))
            if journal.look is None or len(journal.starts) < MOST_STARTS:
                _write_inputs(model, inputs)
        except ModelError as error:  # of the OpenVINO that is here: whatever the sides do, nobody knows what it takes
            words = f"no inputs can be drawn without --input: {error.cause.rstrip('.')}"
            look = FirstLook({BEFORE: ("refused", words), AFTER: ("refused", words)})
            return _judge(gate, model, environments, GateJournal(journal_path, "", look), claims, today, "")
        if journal.look is None:
            say(f"{model.name}: comparing outputs and kernels")
            locate = Deadline.after(LOCATE_SHARE * share_s)
            look = look_at_sides(sides, inputs, Path(folder), gate.accuracy, locate)
            journal.add_look(look, time.monotonic() - begun)
        if journal.look is not None and not journal.look.failed:
            measured = MeasuredStarts(sides[BEFORE], sides[AFTER], inputs, modes)
            measure_starts(model, journal, measured, share_s, claims, say)
    enough = Rules().least_starts
    few = ""
    if len(journal.starts) < enough and not (journal.look and journal.look.failed):
        each_s = journal.starts[-1].seconds if journal.starts else share_s
        few = f"{len(journal.starts)} of at least {enough} starts; add {math.ceil(enough * each_s)} s to --budget"
    return _judge(gate, model, environments, journal, claims, today, few)


def measure_starts(
    model: GatedModel, journal: GateJournal, source: Starts, share_s: float, claims: int, say: Say
) -> None:
    """Add starts until they decide at the look, the time is used up, or a side fails twice in a row."""
    longest_s = 0.0
    failures = 0
    while len(journal.starts) < MOST_STARTS and journal.seconds + longest_s <= share_s:
        if (
            len(journal.starts) == LOOK
            and judge_all_figures(judge_figures(model, journal.starts, claims, 2)) != "undecided"
        ):
            return
        number = len(journal.starts) + 1
        say(f"{model.name}: start {number}, {max(0.0, share_s - journal.seconds):.0f} s left for it")
        begun = time.monotonic()
        found = source.start(number)
        if isinstance(found, SideFailed):
            failures += 1
            journal.seconds += time.monotonic() - begun
            if failures > found.failed.transient:
                journal.look = replace(
                    journal.look or FirstLook(), failed={found.side: (found.failed.kind, found.failed.message)}
                )
                return
            continue
        failures = 0
        journal.add_start(found)
        longest_s = max(longest_s, found.seconds)


def _gate_side(gate: Gate, side: Side, environment: Environment, model: Path) -> GateSide:
    return GateSide(environment, model, side.device or gate.device, side.settings)


def _context(model: GatedModel, sides: Mapping[Which, GateSide], modes: Sequence[str], accuracy: str) -> str:
    """Return what starts of a model depend on, as a digest."""
    told = [[model_sha256(s.model), asdict(s.environment), s.device, dict(s.settings)] for s in sides.values()]
    data = file_digest(model.input) if model.input else ""
    return json_digest([PROTOCOL, told, data, list(model.shapes), list(modes), accuracy])


def _write_inputs(model: GatedModel, path: Path) -> None:
    """Write the inputs by kind: those that were given, or drawn as for a run of the model before.

    Raises:
        ModelError: the model cannot be read, so that nobody knows what it takes.
        UsageError: the arrays cannot be read, or shapes do not fit.
    """
    if model.input is not None:
        save_by_kind(path, {GIVEN_KIND: load_inputs(model.input, inputs_sha256(str(model.input)))})
        return
    with tempfile.TemporaryDirectory(prefix="placewright-gate-", ignore_cleanup_errors=True) as folder:
        limits = ReadLimits()
        read_in_process(
            model.before,
            Path(folder),
            source=model_sha256(model.before),
            limits=limits,
            shapes=InputShapes(model.shapes),
            reference=ReferenceOrder(source=False, seconds=0.0, limit_s=limits.timeout_s, inferences=1),
        )
        checks = Path(folder) / CHECKS
        if not checks.is_file():
            raise ModelError(f"No inputs could be drawn for {model.name}.", "Give them with --input DATA.npz.")
        save_by_kind(path, load_by_kind(checks))


def judge_figures(
    model: GatedModel, starts: Sequence[GateStart], claims: int, looks: int
) -> dict[Figure, FigureRecord]:
    """Return what starts say of every figure that they have."""
    found = {f: judge_figure(starts, f, model.limits.get(f), claims=claims, looks=looks) for f in FIGURES}
    return {figure: record for figure, record in found.items() if record is not None}


def _judge(
    gate: Gate,
    model: GatedModel,
    environments: Mapping[str, Environment],
    journal: GateJournal,
    claims: int,
    today: date,
    few: str,
) -> GatedRecord:
    """Return what is said of one model."""
    look = journal.look or FirstLook()
    figures = judge_figures(model, journal.starts, claims, journal.end() if journal.starts else 2)
    checks = [_running_check(look, environments)]
    if not look.failed:
        first = f"; the first operation that departs is {look.first}" if look.first else ""
        apart = f"{look.why_not}{first}" if look.why_not else "outputs agree"
        checks.append(GateCheck(OUTPUTS, apart, "differs" if look.why_not else ""))
        checks += [_figure_check(f) for f in figures.values() if f.limit is not None]
    notes: list[str] = []
    judged: list[GateCheck] = []
    for check in checks:
        known = gate.accepts(model.name, check.what)
        if known is None:
            judged.append(check)
        elif not check.fails:
            judged.append(check)
            if check.words and not few:
                notes.append(f"The exception for {check.what} ({known.reason}) has nothing to accept; remove it.")
        elif known.until < today:
            words = f"{check.words}; its exception ({known.reason}) expired on {known.until}"
            judged.append(replace(check, words=words))
        elif known.up_to is not None and _extent(check.what, look, figures) > known.up_to:
            words = f"{check.words}; {100 * known.up_to:g} % were accepted ({known.reason})"
            judged.append(replace(check, words=words))
        else:
            judged.append(replace(check, accepted=f"accepted until {known.until}: {known.reason}"))
    worst = next((v for v in ERRORS if any(c.fails == v for c in judged)), None)
    verdict: Verdict = worst or ("repaired" if look.failed else judge_all_figures(figures))
    if any(f.disturbed for f in figures.values() if f.limit is not None):
        notes.append("Two processes of the side before differ: other processes disturb this machine.")
    telling = [c for c in judged if c.fails] or [c for c in judged if c.what in figures or look.failed] or judged
    text = "; ".join(c.words + (f" ({c.accepted})" if c.accepted else "") for c in telling)
    return GatedRecord(
        model=model.name,
        verdict=verdict,
        text=few if few and verdict == "undecided" else text,
        passed=not any(c.fails and not c.accepted for c in judged),
        checks=judged,
        figures=list(figures.values()),
        look=look,
        starts=len(journal.starts),
        seconds=journal.seconds,
        notes=notes,
    )


def _running_check(look: FirstLook, environments: Mapping[str, Environment]) -> GateCheck:
    said = {side: f"{environments[side]}: {words}" for side, (_, words) in look.failed.items()}
    if not said:
        return GateCheck(RUNS, "both run it")
    if len(said) == 2:
        both = look.failed[BEFORE][1] if look.failed[BEFORE] == look.failed[AFTER] else "; ".join(said.values())
        return GateCheck(RUNS, f"neither side runs it; {both}", "unreadable")
    if AFTER in said:
        return GateCheck(RUNS, f"the side before runs it, the side after does not; {said[AFTER]}", "broken")
    return GateCheck(RUNS, f"only the side after runs it; {said[BEFORE]}")


def _figure_check(figure: FigureRecord) -> GateCheck:
    """Return what is said of a figure with a limit."""
    limit = figure.limit or LEAST
    if figure.ratio is None:
        return GateCheck(figure.figure, f"{figure.figure}: a single start")
    unit = "as much" if figure.figure.startswith("memory") else "as long"
    per = " per inference" if figure.figure == "throughput" else ""
    times = f"{figure.ratio.ratio:.3f} times {unit}{per} ({figure.ratio.low:.3f} to {figure.ratio.high:.3f})"
    said = {
        "slower": f"worse, {times}",
        "faster": f"better, {times}",
        "same": f"no difference beyond {100 * limit:g} %, {times}",
        "undecided": f"cannot tell, {times}",
    }[figure.found]
    return GateCheck(figure.figure, f"{figure.figure}: {said}", "slower" if figure.found == "slower" else "")


def _extent(what: str, look: FirstLook, figures: Mapping[Figure, FigureRecord]) -> float:
    """Return by how much a check fails, as a share; infinite where that has no measure."""
    if what == OUTPUTS and look.difference is not None:
        return look.difference
    ratio = next((f.ratio for f in figures.values() if f.figure == what), None)
    return ratio.ratio - 1 if ratio is not None else math.inf


def _summarise(gate: Gate, environments: Mapping[str, Environment], rows: Sequence[GatedRecord]) -> GateRecord:
    failing = [row for row in rows if not row.passed]
    worst = next(v for v in VERDICTS if any(row.verdict == v for row in failing or rows))
    sides = {
        name: GateSideRecord(side.words, e.python, e.python_version, e.runtime, e.version, dict(side.settings))
        for name, side, e in ((BEFORE, gate.before, environments[BEFORE]), (AFTER, gate.after, environments[AFTER]))
    }
    counted = {v: sum(row.verdict == v for row in rows) for v in VERDICTS}
    words = {"same": "without a difference", "undecided": "not decided", "repaired": "runs only after"}
    text = ", ".join(f"{n} {words.get(v, v)}" for v, n in counted.items() if n)
    one, other = _side_names(sides[BEFORE], sides[AFTER])
    notes = [f"Both sides have {environments[BEFORE]}."] if one == sides[BEFORE].asked else []
    return GateRecord(
        schema="placewright.gate/1",
        before=sides[BEFORE],
        after=sides[AFTER],
        level=LEVEL,
        models=rows,
        verdict=worst,
        passed=not failing,
        text=f"{one} -> {other}: {text}, of {len(rows)} model{'' if len(rows) == 1 else 's'}.",
        notes=notes,
    )


def _side_names(before: GateSideRecord, after: GateSideRecord) -> tuple[str, str]:
    """Return what tells the sides apart: their runtimes and versions, or else what was asked for."""
    one, other = (f"{side.runtime} {side.version.partition('-')[0]}" for side in (before, after))
    return (one, other) if one != other else (before.asked, after.asked)


def refuse_change(record: GateRecord) -> None:
    """Raise what a gate that is not passed ends with.

    Raises:
        PlacewrightError: of the class whose exit code goes with the worst that was found.
    """
    failing = [row for row in record.models if not row.passed]
    if not failing:
        return
    worst = next(v for v in ERRORS if any(row.verdict == v for row in failing))
    told = [f"{row.model}: {row.text}" for row in failing if row.verdict == worst]
    more = f"; and {len(failing) - 1} more of {len(record.models)} models fail" if len(failing) > 1 else ""
    remedies: Mapping[Verdict, str] = {
        "unreadable": "Repair or replace the model; one that only these versions read needs --input DATA.npz.",
    }
    raise ERRORS[worst](
        f"With {_side_names(record.before, record.after)[1]}, {told[0]}{more}.",
        remedies.get(
            worst,
            "Stay with the side before, report the change, or accept it until a day with [[accept]] in gate.toml.",
        ),
    )
