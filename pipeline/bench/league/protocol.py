"""The protocol of the league as data: graphs and their splits, machines, budgets, and how much of it is run.

Source: the protocol follows C.1 to C.4 of our specification of Placeto and its peers: three levels of the simulator,
placements alone or with an order, instances to learn from and others to be asked about, equal evaluations and equal
seconds, memory caps, machines that nobody was trained on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from coarsen.reading.model.files import is_written_as_path
from pipeline.core.errors import ModelError, UnknownNameError, UsageError

REFERENCE = "anneal"  # the placer that all others are divided by
PARTS = ("search", "large", "levels", "order", "memory", "unseen", "noise", "transfer")
FULL_PARTS = PARTS[:-1]  # what teaching takes before its first cell is more than all other parts together
QUICK_PARTS = ("search", "memory", "unseen", "noise", "transfer")
DRAWN = ("layered", "erdos-renyi")  # families of random graphs that may be learned from
RANDOM_SIZES = (100, 50, 300)
RATIOS = (0.1, 1.0, 10.0)  # communication to computation
RANDOM_GRAPHS = 10


@dataclass(frozen=True, slots=True)
class GraphRef:
    """A graph of a family: what tables call it, what builds it ("zoo:" names without that prefix), and its seed."""

    label: str
    text: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GraphFamily:
    """Graphs of one kind, divided; far: nothing may be learned from them, nor from anything like them."""

    name: str
    train: tuple[GraphRef, ...]
    choose: tuple[GraphRef, ...]
    test: tuple[GraphRef, ...]

    @property
    def far(self) -> bool:
        """Return whether nothing may be learned from the family."""
        return not self.train


@dataclass(frozen=True, slots=True)
class LeagueInstance:
    """A graph on a machine, and by which rules it runs.

    share: what a device holds, over an equal part of what one device alone would hold; None leaves the machine as it
    is. links: factor on all bandwidths. ordered: whether placements may carry priorities.
    """

    family: str
    graph: GraphRef
    topology: str = "equal:4"
    level: str = "T2"
    share: float | None = None
    links: float = 1.0
    ordered: bool = False

    @property
    def name(self) -> str:
        """Return what tables and files call it: no two instances of the protocol share a name."""
        words = [self.graph.label, self.topology or "own", *([self.level] if self.level != "T2" else [])]
        words += [] if self.share is None else [f"memory{round(100 * self.share)}"]
        words += [f"links{round(100 * self.links)}"] if self.links != 1 else []
        words += ["order"] if self.ordered else []
        return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(words))


@dataclass(frozen=True, slots=True)
class LeagueBudget:
    """What every placer may spend on an instance: evaluations or seconds; per_device: evaluations for each besides."""

    evaluations: int | None = None
    seconds: float | None = None
    per_device: int = 0

    @property
    def name(self) -> str:
        """Return what tables call it."""
        if self.evaluations is None:
            return f"{self.seconds:g} s"
        return f"{self.evaluations} evaluations" if self.per_device == 0 else ONE_PASS[self.evaluations]

    def allowed(self, p: int) -> int | None:
        """Return the evaluations for p devices."""
        return None if self.evaluations is None else self.evaluations + self.per_device * p


# Every device alone is evaluated first, by all placers; then one placement, or the best of 16.
ONE_PASS: Mapping[int, str] = MappingProxyType({1: "one pass", 16: "best of 16"})


@dataclass(frozen=True, slots=True)
class LeagueEffort:
    """How much of the protocol is run.

    seeds: of placers that draw; further_seeds: of controls, where seconds are equal, on large graphs and in the further
    parts but `unseen`, which has one; slow_seeds: of published learners. evaluations, seconds: the two equal budgets of
    a search; large: seconds on large graphs. reference: evaluations of the reference. graphs: test graphs per family
    at most, the machines of the searches in turn; further: where seconds are equal, and in the further parts, without
    controls. slow: the most operations of a graph on which published learners run, first graphs of families alone,
    for a thousand evaluations take them minutes; None for any graph. lessons: graphs per family that learners learn
    from. draws: disturbed cost tables per placement. patience: seconds after which solvers end where evaluations are
    what is equal, for they ask for none while they think; learning: the same of published learners, None for as long as
    all their evaluations take. workers: cells of equal evaluations at a time; those of equal seconds run alone.
    """

    quick: bool = False
    seeds: int = 5
    further_seeds: int = 2
    slow_seeds: int = 1
    evaluations: int = 1000
    reference: int = 10_000
    seconds: float = 3.0
    large: float = 20.0
    graphs: int = 3
    further: int = 1
    machines: tuple[str, ...] = ("equal:4", "equal:8")
    slow: int | None = 200
    lessons: int = 4
    draws: int = 5
    patience: float = 10.0
    learning: float | None = None
    workers: int = 1
    parts: tuple[str, ...] = FULL_PARTS


FULL = LeagueEffort()
QUICK = LeagueEffort(
    quick=True,
    seeds=2,
    further_seeds=1,
    seconds=1.0,
    graphs=1,
    machines=("equal:4",),
    slow=None,
    lessons=1,
    draws=3,
    patience=2.0,
    learning=2.0,
    parts=QUICK_PARTS,
)
# Families that `--quick` searches, and those of its further parts; the others are left to the full league.
QUICK_FAMILIES = ("nas-cnn", "nas-nmt", "layered", "tiled")
BRIEF_FAMILIES = ("nas-cnn", "nas-nmt")

CAPS = (1.5, 1.1)
WEIGHTLESS = (*DRAWN, "stochastic-block", "watts-strogatz", "barabasi-albert", "series-parallel", "tiled")
UNSEEN: tuple[tuple[str, float], ...] = (  # machines that no learner was trained on: a preset, a factor on its links
    ("equal:3", 1.0),
    ("equal:6", 1.0),
    ("equal:16", 1.0),
    ("two-level:2x4", 1.0),
    ("ring:4", 1.0),
    ("unequal:6", 1.0),
    ("equal:4", 0.1),
    ("equal:4", 10.0),
)
QUICK_UNSEEN = (("unequal:6", 1.0), ("equal:4", 0.1))
LEVELS = ("T0", "T1")
NOISE = (0.1, 0.2)  # standard deviation of the logarithm of an operation's seconds

_FAR: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tiled": ("llama-block", "llama-layer", "ffnn", "chainmm"),
        "moe": ("moe-block?fidelity=core", "moe-block?fidelity=core&training=false"),
        "transformer": (
            "bert-base-training?layers=4&fidelity=core",
            "txl2?fidelity=core",
            "txl4?segments=2&fidelity=core",
        ),
        "translator": ("gnmt2?steps=8&fidelity=core", "nmt?steps=8&fidelity=core", "gnmt4?steps=4&fidelity=core"),
        "recurrent": (
            "rnnlm2?steps=10&fidelity=core",
            "wavenet2?fidelity=core&training=false",
            "rnnlm4?steps=5&fidelity=core",
        ),
        "image": (
            "inception-v3-training?fidelity=core&training=false",
            "resnet50-training?fidelity=core",
            "inception-v3-training?fidelity=core",
        ),
        "giph": tuple(f"giph?index={i}" for i in range(4)),
    }
)
LARGE = "large"  # the family of graphs that are searched in the part of that name alone
_LARGE = ("rnnlm8?fidelity=core", "gnmt4?fidelity=core", "txl8")  # 12,563, 16,139 and 10,196 operations
_OWN_MACHINE = ("giph",)  # families whose instances bring their devices along


def families() -> dict[str, GraphFamily]:
    """Return every family of the protocol by name."""
    from runtime.zoo.workloads.placeto import FAMILIES, split

    known_families = {}
    for name in FAMILIES:
        parts = (tuple(GraphRef(f"{name}-{i}", f"{name}?index={i}") for i in part) for part in split(name, seed=0))
        known_families[name] = GraphFamily(name, *parts)
    for name in ("layered", "erdos-renyi", "stochastic-block", "watts-strogatz", "barabasi-albert", "series-parallel"):
        drawn = tuple(_random_graph(name, i) for i in range(RANDOM_GRAPHS))
        train, choose = (drawn[0::2][:4], drawn[0::2][4:]) if name in DRAWN else ((), ())
        known_families[name] = GraphFamily(name, train, choose, drawn[1::2])
    for name, texts in {**_FAR, LARGE: _LARGE}.items():
        known_families[name] = GraphFamily(name, (), (), tuple(GraphRef(_graph_label(text), text) for text in texts))
    return known_families


def _random_graph(name: str, i: int) -> GraphRef:
    """Return the i-th random graph of a family: sizes take turns, and for each the ratios of communication."""
    n, ratio = RANDOM_SIZES[i // 2 % len(RANDOM_SIZES)], RATIOS[(i // 2 + i % 2) % len(RATIOS)]
    return GraphRef(f"{name}-{i}", f"{name}?n={n}&ccr={ratio:g}", seed=i)


def _graph_label(text: str) -> str:
    name, _, options = text.partition("?")
    told = [option for option in options.split("&") if option and option != "fidelity=core"]
    return "-".join([name, *(option.replace("training=false", "forward").replace("=", "") for option in told)])


def list_instances(effort: LeagueEffort, names: Sequence[str] = ()) -> list[LeagueInstance]:
    """Return the instances of the searches: test graphs of families on the machines of the effort.

    names: of families, of graphs, or files of graphs; none for those of the effort.

    Raises:
        UnknownNameError: there is no family or graph of that name.
        ModelError: there is no file of that name.
        UsageError: two graphs share one name.
    """
    known = families()
    chosen = names or (QUICK_FAMILIES if effort.quick else tuple(known))
    refs = [ref for name in chosen for ref in _named_graphs(name, known, effort.graphs)]
    distinct = list(dict.fromkeys(_on_machine(family, ref, _turn(known, family, ref), effort) for family, ref in refs))
    counts = Counter(instance.name for instance in distinct)
    alike = sorted({i.graph.text for i in distinct if counts[i.name] > 1})
    if alike:
        raise UsageError(
            f"Several graphs have the same name: {', '.join(alike)}.", "Rename files, or compare in two folders."
        )
    return distinct


def _named_graphs(name: str, known: Mapping[str, GraphFamily], most: int) -> Iterator[tuple[str, GraphRef]]:
    if name in known:
        yield from ((name, ref) for ref in known[name].test[:most])
        return
    graphs = {ref.label: (family.name, ref) for family in known.values() for ref in family.test}
    if name in graphs:
        yield graphs[name]
    elif not name.startswith("zoo:") and is_written_as_path(name.partition("?")[0]):
        if not Path(name).exists():
            raise ModelError(f"There is no file {name}.", "Check the path of the graph.")
        yield Path(name).stem, GraphRef(Path(name).stem, name)
    else:
        raise UnknownNameError("family, test graph or file of a graph", name, [*known, *graphs], "docs/league.md")


def _on_machine(family: str, ref: GraphRef, turn: int, effort: LeagueEffort) -> LeagueInstance:
    """Return a graph on its machine: one each, so that no two instances of an interval are of the same graph."""
    if family in _OWN_MACHINE:
        return LeagueInstance(family, ref, topology="")
    return LeagueInstance(family, ref, topology=effort.machines[turn % len(effort.machines)])


def _turn(known: Mapping[str, GraphFamily], family: str, ref: GraphRef) -> int:
    """Return a graph's place among the test graphs of its family, 0 for a user's own."""
    return known[family].test.index(ref) if family in known and ref in known[family].test else 0


def first_of_each(instances: Sequence[LeagueInstance], most: int) -> tuple[LeagueInstance, ...]:
    """Return the instances of the first graphs of each family, so many at most."""
    graphs: dict[str, dict[GraphRef, None]] = {}
    for i in instances:
        if len(known := graphs.setdefault(i.family, {})) < most:
            known[i.graph] = None
    return tuple(i for i in instances if i.graph in graphs[i.family])


def brief(instances: Sequence[LeagueInstance]) -> tuple[LeagueInstance, ...]:
    """Return the instances of parts that `--quick` cuts short: those of a few families, all if there are none."""
    return tuple(i for i in instances if i.family in BRIEF_FAMILIES) or tuple(instances)


def training_cases(effort: LeagueEffort, *, without: str = "") -> list[LeagueInstance]:
    """Return what learners learn from: train graphs of all families but one, on the machines of the effort."""
    known = [family for family in families().values() if not family.far and family.name != without]
    return [
        LeagueInstance(family.name, ref, topology=machine)
        for turn in range(effort.lessons)
        for family in known
        for ref in family.train[turn : turn + 1]
        for machine in effort.machines
    ]
