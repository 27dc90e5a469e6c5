"""Which cells every part of the protocol wants: rounds of instances and a budget, and the cells of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.bench.cells import BenchCell, LearnedPolicy
from pipeline.bench.league.arena import load_arena
from pipeline.bench.league.entries import SOLVERS, LeagueEntry
from pipeline.bench.league.protocol import (
    CAPS,
    LARGE,
    LEVELS,
    QUICK_UNSEEN,
    REFERENCE,
    UNSEEN,
    WEIGHTLESS,
    LeagueBudget,
    LeagueEffort,
    LeagueInstance,
    brief,
    first_of_each,
)
from pipeline.core.errors import UnknownNameError

FURTHER = ("levels", "order", "memory", "unseen")  # fewer graphs, no controls; by `--quick` few families, one seed
MANY_MACHINES = "unseen"  # which stand in for seeds: there is one
TAUGHT, ELSEWHERE = "taught", "taught elsewhere"


@dataclass(frozen=True, slots=True)
class LeagueRound:
    """One table of a part: what is asked about, and what every placer may spend on each.

    taught: whether placers that keep policies also run with what they have learned before. controls: whether controls
    run as well. seeds: of placers that draw; control_seeds: of controls; slow_seeds: of published learners.
    published: the instances on which these run.
    """

    part: str
    title: str
    instances: tuple[LeagueInstance, ...]
    budget: LeagueBudget
    seeds: int
    control_seeds: int
    slow_seeds: int
    published: tuple[LeagueInstance, ...]
    taught: bool = False
    controls: bool = True


Instances = tuple[LeagueInstance, ...]
Policies = Mapping[tuple[str, str], LearnedPolicy]  # by placer and family left out, "" for none


def list_rounds(parts: Sequence[str], instances: Sequence[LeagueInstance], effort: LeagueEffort) -> list[LeagueRound]:
    """Return the rounds of the parts, in the order of the protocol.

    Raises:
        UnknownNameError: there is no part of that name.
    """
    for name in parts:
        if name not in PARTS:
            raise UnknownNameError("part of the league", name, PARTS)
    usual, large = (tuple(i for i in instances if (i.family == LARGE) == is_large) for is_large in (False, True))
    rounds: list[LeagueRound] = []
    for name, make in PARTS.items():
        if name in parts and name in FURTHER:
            few = first_of_each(brief(usual) if effort.quick else usual, effort.further)
            seeds = 1 if name == MANY_MACHINES else effort.further_seeds
            made = (replace(each, seeds=seeds, controls=False) for each in make(few, effort))
            rounds += [each if effort.slow is None else replace(each, published=()) for each in made]
        elif name in parts:
            rounds += make(large if name == LARGE else usual, effort)
    return [each for each in rounds if each.instances]


def _search_rounds(instances: Instances, effort: LeagueEffort) -> Iterator[LeagueRound]:
    equal, timed = LeagueBudget(effort.evaluations), LeagueBudget(seconds=effort.seconds)
    yield _equal_round("search", f"Equal evaluations: {equal.name}", instances, effort)
    few, title = first_of_each(instances, effort.further), f"Equal time: {timed.name}"
    published = few if effort.slow is None else ()
    seeds = effort.further_seeds, 1, effort.slow_seeds
    yield LeagueRound("search", title, few, timed, *seeds, published, controls=not effort.quick)


def _large_rounds(instances: Instances, effort: LeagueEffort) -> Iterator[LeagueRound]:
    timed = LeagueBudget(seconds=effort.large)
    title = f"More than 10,000 operations: {timed.name}"
    seeds = effort.further_seeds, effort.further_seeds, effort.slow_seeds
    yield LeagueRound("large", title, instances, timed, *seeds, (), controls=False)


def _levels_rounds(instances: Instances, effort: LeagueEffort) -> Iterator[LeagueRound]:
    for level in LEVELS:
        yield _equal_round("levels", f"Simulator {level}", (replace(i, level=level) for i in instances), effort)


def _order_rounds(instances: Instances, effort: LeagueEffort) -> Iterator[LeagueRound]:
    yield _equal_round("order", "Placements with an order", (replace(i, ordered=True) for i in instances), effort)


def _memory_rounds(instances: Instances, effort: LeagueEffort) -> Iterator[LeagueRound]:
    """Yield the instances on devices that hold little.

    Left out are those with machines of their own, and graphs without weights, of which nothing has to be divided.
    """
    heavy = [i for i in instances if i.topology and i.family not in WEIGHTLESS]
    for share in CAPS:
        title = f"Devices that hold {share:g} of an equal part"
        yield _equal_round("memory", title, (replace(i, share=share) for i in heavy), effort)


def _unseen_rounds(instances: Instances, effort: LeagueEffort) -> Iterator[LeagueRound]:
    """Yield the graphs of the instances on machines that no learner was trained on."""
    graphs = dict.fromkeys((i.family, i.graph) for i in instances if i.topology)
    for machine, links in QUICK_UNSEEN if effort.quick else UNSEEN:
        title = f"On {machine}" + (f" with {links:g} times the bandwidth" if links != 1 else "")
        members = (LeagueInstance(family, ref, topology=machine, links=links) for family, ref in graphs)
        yield _equal_round("unseen", title, members, effort)


def _transfer_rounds(instances: Instances, effort: LeagueEffort) -> Iterator[LeagueRound]:
    few, count = (brief(instances), 1) if effort.quick else (instances, effort.seeds)
    for budget in (LeagueBudget(1, per_device=1), LeagueBudget(16, per_device=1), LeagueBudget(effort.evaluations)):
        yield LeagueRound("transfer", budget.name, few, budget, count, count, count, few, taught=True, controls=False)


def _noise_rounds(instances: Instances, effort: LeagueEffort) -> Iterator[LeagueRound]:
    yield _equal_round("noise", "The placements of equal evaluations", instances, effort)


def _equal_round(part: str, title: str, instances: Iterable[LeagueInstance], effort: LeagueEffort) -> LeagueRound:
    """Return a round of equal evaluations."""
    asked, most = tuple(instances), effort.slow
    slow = asked if most is None else tuple(i for i in first_of_each(asked, 1) if load_arena(i).n <= most)
    seeds = effort.seeds, min(effort.seeds, effort.further_seeds), min(effort.seeds, effort.slow_seeds)
    return LeagueRound(part, title, asked, LeagueBudget(effort.evaluations), *seeds, slow)


PARTS: Mapping[str, Callable[[Instances, LeagueEffort], Iterator[LeagueRound]]] = {
    "search": _search_rounds,
    "large": _large_rounds,
    "levels": _levels_rounds,
    "order": _order_rounds,
    "memory": _memory_rounds,
    "unseen": _unseen_rounds,
    "noise": _noise_rounds,
    "transfer": _transfer_rounds,
}


@dataclass(frozen=True, slots=True, eq=False)
class LeagueCell:
    """A cell of the league: who, where, and in which folder of budgets its record lies."""

    entry: LeagueEntry
    instance: LeagueInstance
    budget: LeagueBudget
    cell: BenchCell

    @property
    def folder(self) -> Path:
        """Return the folder of the record, below that of all cells: one per budget."""
        return Path(self.budget.name.replace(" ", "-"))


def cells_of_round(
    asked: LeagueRound, entries: Sequence[LeagueEntry], effort: LeagueEffort, policies: Policies
) -> list[LeagueCell]:
    """Return the cells of a round, instance by instance, those of the reference at its own budget first."""
    cells = []
    for instance in asked.instances:
        reference = next(e for e in entries if e.name == REFERENCE)
        cells += _cells_per_seed(reference, instance, LeagueBudget(effort.reference), asked.seeds, effort)
        for entry in entries:
            if (entry.control_of and not asked.controls) or (entry.is_slow and instance not in asked.published):
                continue
            seeds = asked.slow_seeds if entry.is_slow else asked.control_seeds if entry.control_of else asked.seeds
            cells += _cells_per_seed(entry, instance, asked.budget, seeds, effort)
            if asked.taught and entry.keeps:
                for name, without in ((TAUGHT, ""), (ELSEWHERE, instance.family)):
                    # nothing was learned from a family that is far, so there is nothing to leave out
                    known = policies.get((entry.name, without), policies.get((entry.name, "")))
                    if known is not None:
                        cells += _cells_per_seed(
                            _taught_entry(entry, name), instance, asked.budget, asked.seeds, effort, known
                        )
    return cells


def _taught_entry(entry: LeagueEntry, name: str) -> LeagueEntry:
    method = replace(entry.method, name=f"{entry.name}: {name}")
    return replace(entry, method=method, control_of=entry.name)


def _cells_per_seed(
    entry: LeagueEntry,
    instance: LeagueInstance,
    budget: LeagueBudget,
    seeds: int,
    effort: LeagueEffort,
    known: LearnedPolicy | None = None,
) -> list[LeagueCell]:
    """Return a cell per seed; one alone for a placer that draws nothing."""
    case, placer = load_arena(instance).case, entry.method.build()
    seconds = budget.seconds
    if seconds is None:  # others divide what time they have, and would not be asked for equal evaluations
        seconds = effort.learning if entry.is_slow else effort.patience if entry.kind in SOLVERS else None
    evaluations = budget.allowed(len(case.devices))
    return [
        LeagueCell(
            entry,
            instance,
            budget,
            BenchCell(case, entry.method, placer, evaluations, seed, seconds=seconds, policy=known),
        )
        for seed in range(seeds if entry.method.seeded else 1)
    ]
