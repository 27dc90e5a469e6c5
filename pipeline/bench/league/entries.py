"""Who takes part: every registered placer, by what it declares, and the controls that learners offer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.bench.methods import BenchMethod
from pipeline.core.errors import MissingPackageError, UnknownNameError
from pipeline.core.stages import AblatedPlacer, ControlledPlacer, LearningPlacer
from pipeline.settings import registry
from pipeline.settings.declared import uses_seed

RULES = ("rules", "lists")  # kinds whose best answer is a baseline of its own
SOLVERS = ("exact",)  # kinds that may go on for ever on a number of evaluations
SLOW = ("published",)  # kinds that take minutes for a thousand
OTHER = "other"


@dataclass(frozen=True, slots=True)
class LeagueEntry:
    """A row of the league.

    kind: the folder of policy/place that the placer lives in, "other" for plug-ins. control_of: the entry whose claim
    it controls, or a part of which it leaves out, "" for none. keeps: whether it takes a policy that was learned
    elsewhere.
    """

    method: BenchMethod
    kind: str
    control_of: str = ""
    keeps: bool = False

    @property
    def name(self) -> str:
        """Return what tables call it."""
        return self.method.name

    @property
    def is_rule(self) -> bool:
        """Return whether it is a rule of thumb or a list scheduler."""
        return self.kind in RULES

    @property
    def is_slow(self) -> bool:
        """Return whether it is a published learner, or a control of one."""
        return self.kind in SLOW


def list_entries(names: Sequence[str] = ()) -> tuple[list[LeagueEntry], list[str]]:
    """Return the entries of these placers, of all if there are no names, each before its controls; and who is left out.

    A placer that cannot be built here (a package is missing) is left out, unless it is named.

    Raises:
        UnknownNameError: there is no placer of that name.
        MissingPackageError: a named placer needs a package that is not installed.
    """
    known = registry.implementation_table("place")
    for name in names:
        if name not in known:
            raise UnknownNameError("placer", name, known, "`placewright list place`")
    taking_part: list[LeagueEntry] = []
    left_out: list[str] = []
    for name in dict.fromkeys(names or known):
        try:
            taking_part += _entries_of(name, known[name])
        except MissingPackageError as error:
            if names:
                raise
            left_out.append(f"{name} does not take part: {error}")
    return taking_part, left_out


def _entries_of(name: str, target: str) -> Iterator[LeagueEntry]:
    """Yield a placer's entry and its controls."""
    placer = registry.build_implementation("place", name)
    learned = isinstance(placer, LearningPlacer)
    parts = target.partition(":")[0].split(".")
    kind = parts[2] if parts[:2] == ["policy", "place"] and len(parts) > 2 else OTHER
    keeps = isinstance(placer, LearningPlacer) and placer.keeps
    seeded = uses_seed(name)
    yield LeagueEntry(BenchMethod(name, name, coarsen=(), seeded=seeded, learned=learned), kind, keeps=keeps)
    if isinstance(placer, ControlledPlacer):
        ablations = placer.ablations if isinstance(placer, AblatedPlacer) else {}
        for control, values in {**placer.controls, **ablations}.items():
            method = BenchMethod(f"{name}: {control}", name, dict(values), coarsen=(), seeded=seeded, learned=learned)
            yield LeagueEntry(method, kind, control_of=name)
