"""A gate: all models on both sides, one after the other within one budget, and what may be said of the change."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
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
from pipeline.core.errors import (
    MeasurementError,
    ModelError,
    OutputMismatchError,
    PlacewrightError,
    SlowerError,
    UsageError,
)
from pipeline.core.measurement import MeasurementFailed
from pipeline.gate.environments import Environment, look_at_environments
from pipeline.gate.first_look import FirstLook, look_at_sides
from pipeline.gate.gate_file import FIGURES, OUTPUTS, RUNS, Figure, Gate, GatedModel, Side
from pipeline.gate.judge import LEVEL, MOST_STARTS, FigureRecord, judge_all_figures, judge_figure
from pipeline.gate.starts import (
    AFTER,
    BEFORE,
    TAIL,
    GateSide,
    GateStart,
    MeasuredStarts,
    Mode,
    SideFailed,
    Starts,
    Which,
)
from pipeline.shared.checks import CHECKS, ReferenceOrder, load_by_kind, save_by_kind
from pipeline.shared.model_inputs import GIVEN_KIND
from pipeline.shared.runtime_words import refusal_in_words
from pipeline.store.store import file_digest, json_digest
from pipeline.system.json_lines import append_line, load_lines
from pipeline.system.machine_lock import measuring_alone
from pipeline.system.private_files import make_alike
from runtime.machines.devices import hardware_facts, hardware_fingerprint
from runtime.measuring.contest.statistics import Rules

JOURNAL = "starts.jsonl"
LOOK = 6  # starts after which a model that is decided has no more
EARLY = 4  # all looks together may be wrong by 5 %: of that the early look has a quarter, the first end a half ..
LOCATE_SHARE = 0.2  # of a model's time, for finding which operation departs first
PROTOCOL = 2  # what starts are told apart by where their meaning changes
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

    fails: the verdict that it makes; "" where it passes. accepted: by which exception it passes. told: whether it can
    be told.
    """

    what: str
    words: str
    fails: Verdict | Literal[""] = ""
    accepted: str = ""
    told: bool = True


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

    ended: after how many starts runs have judged them, one after the other. stopped: the side that failed twice in a
    row in a start of this run, which ended them.
    """

    path: Path
    context: str
    look: FirstLook | None = None
    starts: list[GateStart] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    seconds: float = 0.0
    stopped: SideFailed | None = None

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
                journal.ended.append(line["ended"])
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
        """Note that the starts are judged now; return one over this look's share of what all may be wrong by.

        That is a half the first time, an eighth the second time, and so on: with EARLY never more than all, however
        often a gate goes on.
        """
        if len(self.starts) not in self.ended:
            self.ended.append(len(self.starts))
            append_line(self.path, {"context": self.context, "ended": len(self.starts)})
        before = self.ended.index(len(self.starts))
        return 2 ** (before + 2) if before else 2


def run_gate(gate: Gate, out: Path, *, today: date, say: Say, remeasure: bool = False) -> GateRecord:
    """Return what the change from one side to the other does to all models; starts are kept in the folder `out`.

    today: by which exceptions have expired. remeasure: forget what was measured before.

    Raises:
        UsageError: a side has no runtime that can be imported, or inputs do not fit.
    """
    for path in dict.fromkeys(model.input for model in gate.models if model.input is not None):
        load_inputs(path, inputs_sha256(str(path)))
    found = look_at_environments(gate.before.python, gate.after.python, gate.runtime)
    environments: dict[Which, Environment] = dict(zip((BEFORE, AFTER), found, strict=True))
    for side, what in ((BEFORE, gate.before), (AFTER, gate.after)):
        environments[side].device(what.device or gate.device)
    machine = hardware_fingerprint(hardware_facts())
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
            row = _gate_model(
                gate, model, environments, machine, out / JOURNAL, share_s, claims=claims, today=today, say=say
            )
            left_s = max(0.0, left_s - row.seconds)
            rows.append(row)
    return _summarise(gate, environments, rows)


def _gate_model(  # noqa: PLR0913  all of them by name
    gate: Gate,
    model: GatedModel,
    environments: Mapping[Which, Environment],
    machine: str,
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
            journal = GateJournal.of(journal_path, _context(model, sides, modes, gate.accuracy, machine))
            if journal.look is None or len(journal.starts) < MOST_STARTS:
                _write_inputs(model, inputs)
        except ModelError as error:  # of the OpenVINO that is here: whatever the sides do, nobody knows what it takes
            words = f"no inputs can be drawn without --input: {error.cause.rstrip('.')}"
            look = FirstLook({BEFORE: ("refused", words), AFTER: ("refused", words)})
            return _judge(gate, model, environments, GateJournal(journal_path, "", look), claims, today, "")
        if journal.look is None:
            say(f"{model.name}: comparing outputs and kernels")
            look = look_at_sides(sides, inputs, Path(folder), gate.accuracy, LOCATE_SHARE * share_s)
            journal.add_look(look, time.monotonic() - begun)
        if journal.look is not None and not journal.look.failed:
            measured = MeasuredStarts(sides[BEFORE], sides[AFTER], inputs, modes)
            measure_starts(model, journal, measured, share_s, claims, say)
    enough = Rules().least_starts
    few = ""
    if len(journal.starts) < enough and not (journal.look and journal.look.failed):
        each_s = journal.starts[-1].seconds if journal.starts else share_s
        more = f"add {math.ceil(enough * each_s)} s to --budget" if journal.stopped is None else "then a side failed"
        few = f"{len(journal.starts)} of at least {enough} starts; {more}"
    return _judge(gate, model, environments, journal, claims, today, few)


def measure_starts(
    model: GatedModel, journal: GateJournal, source: Starts, share_s: float, claims: int, say: Say
) -> None:
    """Add starts until they decide at the look, the time is used up, or a side fails twice in a row.

    One that has failed is tried again however much time is left.
    """
    longest_s = max((start.seconds for start in journal.starts), default=0.0)
    failures: Counter[Which] = Counter()
    while len(journal.starts) < MOST_STARTS and (failures or journal.seconds + longest_s <= share_s):
        if _decided_early(model, journal, claims):
            return
        number = len(journal.starts) + 1
        say(f"{model.name}: start {number}, {max(0.0, share_s - journal.seconds):.0f} s left for it")
        begun = time.monotonic()
        found = source.start(number)
        if isinstance(found, SideFailed):
            journal.seconds += time.monotonic() - begun
            failures[found.side] += 1
            if failures[found.side] > 1:
                journal.stopped = found
                return
            continue
        failures.clear()
        journal.add_start(found)
        longest_s = max(longest_s, found.seconds)


def _decided_early(model: GatedModel, journal: GateJournal, claims: int) -> bool:
    """Return whether there are as many starts as the look is after, and they decide."""
    return (
        len(journal.starts) == LOOK
        and judge_all_figures(_judge_figures(model, journal.starts, claims, EARLY)) != "undecided"
    )


def _gate_side(gate: Gate, side: Side, environment: Environment, model: Path) -> GateSide:
    return GateSide(environment, model, environment.device(side.device or gate.device), side.settings)


def _context(
    model: GatedModel, sides: Mapping[Which, GateSide], modes: Sequence[str], accuracy: str, machine: str
) -> str:
    """Return what starts of a model depend on, as a digest."""
    told = [
        [model_sha256(s.model), asdict(replace(s.environment, there=(), providers=())), s.device, dict(s.settings)]
        for s in sides.values()
    ]
    data = file_digest(model.input) if model.input else ""
    return json_digest([PROTOCOL, machine, told, data, list(model.shapes), list(modes), accuracy])


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


def judge_journal(model: GatedModel, journal: GateJournal, claims: int) -> dict[Figure, FigureRecord]:
    """Return what the starts of a model say in the end, by the level of the look that they end with."""
    early = _decided_early(model, journal, claims)
    return _judge_figures(model, journal.starts, claims, EARLY if early or not journal.starts else journal.end())


def _judge_figures(
    model: GatedModel, starts: Sequence[GateStart], claims: int, looks: int
) -> dict[Figure, FigureRecord]:
    """Return what starts say of every figure that they have."""
    found = {f: judge_figure(starts, f, model.limits.get(f), claims=claims, looks=looks) for f in FIGURES}
    return {figure: record for figure, record in found.items() if record is not None}


def _judge(
    gate: Gate,
    model: GatedModel,
    environments: Mapping[Which, Environment],
    journal: GateJournal,
    claims: int,
    today: date,
    few: str,
) -> GatedRecord:
    """Return what is said of one model. few: why there are too few starts."""
    look = journal.look or FirstLook()
    figures = judge_journal(model, journal, claims)
    compared = not look.failed
    notes = list(look.notes)
    if (stopped := journal.stopped) is not None:
        kind, words = stopped.failed.kind, refusal_in_words(stopped.failed.message)
        if stopped.side == AFTER:
            look = replace(look, failed={AFTER: (kind, words)})
        else:
            failing = f"{environments[BEFORE]}, the side before, failed twice in start {len(journal.starts) + 1}"
            notes.append(f"{failing}: {words.rstrip('.')}. What is said rests on the starts before it.")
    checks = [_running_check(look, environments)]
    if compared:
        checks.append(_outputs_check(look))
        models = len(gate.models)
        checks += [_figure_check(f, figures.get(f), journal.starts, models) for f in FIGURES if f in model.limits]
    judged: list[GateCheck] = []
    for check in checks:
        known = gate.accepts(model.name, check.what)
        if known is None:
            judged.append(check)
        elif not check.fails:
            judged.append(check)
            if check.told:
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
    rest: Verdict = judge_all_figures(figures) if all(c.told for c in judged) else "undecided"
    verdict: Verdict = worst or ("repaired" if look.failed else rest)
    if any(f.disturbed for f in figures.values() if f.limit is not None):
        notes.append("Two processes of the side before differ: other processes disturb this machine.")
    telling = [c for c in judged if c.fails] or [c for c in judged if c.what in FIGURES or not c.told] or judged
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


def _running_check(look: FirstLook, environments: Mapping[Which, Environment]) -> GateCheck:
    said = {side: f"{environments[side]}: {look.failed[side][1]}" for side in (BEFORE, AFTER) if side in look.failed}
    if not said:
        return GateCheck(RUNS, "both run it")
    if len(said) == 2:
        both = look.failed[BEFORE][1] if look.failed[BEFORE] == look.failed[AFTER] else "; ".join(said.values())
        return GateCheck(RUNS, f"neither side runs it; {both}", "unreadable")
    if AFTER in said:
        return GateCheck(RUNS, f"the side before runs it, the side after does not; {said[AFTER]}", "broken")
    return GateCheck(RUNS, f"only the side after runs it; {said[BEFORE]}")


def _outputs_check(look: FirstLook) -> GateCheck:
    if not look.why_not:
        said = f"cannot tell: {look.not_compared}" if look.not_compared else "outputs agree"
        return GateCheck(OUTPUTS, said, told=not look.not_compared)
    first = f"; the first operation that departs is {look.first}" if look.first else ""
    return GateCheck(OUTPUTS, f"{look.why_not}{first}", "differs")


def _figure_check(name: Figure, figure: FigureRecord | None, starts: Sequence[GateStart], models: int) -> GateCheck:
    """Return what is said of a figure with a limit; figure: None where no start has it. models: that share a budget."""
    if figure is None or figure.ratio is None:
        lacking = f"no start has {TAIL} latencies" if name == "p99" else "this system does not tell"
        why = "no start" if not starts else "a single start" if figure else lacking
        return GateCheck(name, f"{name}: cannot tell, not measured: {why}", told=False)
    unit = "as much" if name.startswith("memory") else "as long"
    per = " per inference" if name == "throughput" else ""
    times = f"{figure.ratio.ratio:.3f} times {unit}{per} ({figure.ratio.low:.3f} to {figure.ratio.high:.3f})"
    budget_s = models * sum(start.seconds for start in starts) * (figure.times_to_tell or 0.0)
    more = f"; --budget {math.ceil(budget_s)}s or more would" * bool(budget_s)
    said = {
        "slower": f"worse, {times}",
        "faster": f"better, {times}",
        "same": f"no difference beyond {100 * (figure.limit or 0):g} %, {times}",
        "undecided": f"cannot tell, {times}{more}",
    }[figure.found]
    fails: Verdict | Literal[""] = "slower" if figure.found == "slower" else ""
    return GateCheck(name, f"{name}: {said}", fails, told=figure.found != "undecided")


def _extent(what: str, look: FirstLook, figures: Mapping[Figure, FigureRecord]) -> float:
    """Return by how much a check fails, as a share; infinite where that has no measure."""
    if what == OUTPUTS and look.difference is not None and look.values_alone:
        return look.difference
    ratio = next((f.ratio for f in figures.values() if f.figure == what), None)
    return ratio.ratio - 1 if ratio is not None else math.inf


def _summarise(gate: Gate, environments: Mapping[Which, Environment], rows: Sequence[GatedRecord]) -> GateRecord:
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
    fails = [(check.fails, row) for row in failing for check in row.checks if check.fails and not check.accepted]
    worst = next(v for v in ERRORS if any(fail == v for fail, _ in fails))
    told = [f"{row.model}: {row.text}" for fail, row in fails if fail == worst]
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
