"""What `neural_list` reaches beside `anneal`, the rules of thumb and the portfolio, on graphs it was not trained on.

python -m benchmarks.neural_list [part ...]

Parts: constructed (one pass, four passes, 16 and 256 samples, also on groups of the learned contraction; on the 18
cases of docs/methods/neural_list.md and on far families), families (the 18 cases, with local search, controls and the
portfolio as well), far, large, caps, pass, portfolio.
`families=DIR` takes weights of trainings that left families out: DIR/FAMILY/neural_list.safetensors. What is not there
is trained, or its training gone on with, as long as it takes. Without DIR weights are those that come along, which have
not learned from far families either.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import Figure, figure, median_s, say, silent
from pipeline.core.errors import DeviceError
from pipeline.core.problem import Budget
from pipeline.offline.curriculum import best_rule_s, limit_memory
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.offline.train import WEIGHTS, train, train_complement
from pipeline.settings.registry import build_implementation
from policy.place.learned.neural_list.complementing import Complementing
from policy.place.learned.neural_list.training import CrossEntropy
from runtime.zoo.workloads.placeto import FAMILIES, split

DEVICES = (4, 8)
GRAPHS = 3  # of each family
EVALUATIONS = 1000
ANNEALED = 10_000
SECONDS = 6.0
GENERATIONS, AFTER, ROUNDS = 60, 20, 1  # of trainings that leave families out
MANY = 10**6
FAR = {
    "tiled": ("chainmm", "ffnn", "llama-block", "llama-layer"),
    "moe": ("moe-block?fidelity=core",),
    "txl": ("txl2?fidelity=core&segments=2",),
    "rnnlm": ("rnnlm2?fidelity=core&steps=10",),
    "gnmt": ("gnmt2?fidelity=core&steps=5",),
    "inception": ("inception-v3-training?fidelity=core&training=false",),
}
NEW = ("txl", "rnnlm", "gnmt", "inception")  # of these, what the contraction has not learned from, either
LARGE = (  # graphs of 900 to 25,000 operations
    *(("txl8", 4), ("rnnlm8?fidelity=core", 4), ("gnmt4?fidelity=core", 8), ("txl2", 8), ("nmt?steps=8", 8)),
    *(("gnmt2?fidelity=core&steps=8", 4), ("bert-base-training?layers=4", 4), ("inception-v3-training", 4)),
)
PASS: Mapping[str, Any] = {"samples": 0, "improve": False}
CONSTRUCTED: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "pass": (MANY, {**PASS, "passes": 1}),
    "passes": (MANY, PASS),
    "best_of_16": (MANY, {"samples": 16, "improve": False}),
    "best_of_256": (MANY, {"samples": 256, "improve": False}),
    "pass.contracted": (MANY, {**PASS, "passes": 1, "contracted": True}),
    "best_of_16.contracted": (MANY, {"samples": 16, "improve": False, "contracted": True}),
    "best_of_256.contracted": (MANY, {"samples": 256, "improve": False, "contracted": True}),
}
IMPROVED: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "improved": (EVALUATIONS, {}),
    "improved.untrained": (EVALUATIONS, {"scores": "untrained"}),
    "improved.uniform": (EVALUATIONS, {"scores": "uniform"}),
}
TARGETS = {"pass": 0.95, "best_of_16": 0.88, "improved": 0.82}


def constructed(_: Path | None) -> Iterator[Figure]:
    """Yield what is reached without local search, on Placeto's families and on far ones."""
    yield from _on_families(CONSTRUCTED, None)
    yield from far(None)


def families(weights: Path | None) -> Iterator[Figure]:
    """Yield times over those of `anneal` with 10,000, all weights shipped, or of trainings that left the family out."""
    yield from _on_families({**CONSTRUCTED, **IMPROVED}, weights)


def _on_families(variants: Mapping[str, tuple[int, Mapping[str, Any]]], weights: Path | None) -> Iterator[Figure]:
    ratios: dict[str, list[float]] = {}
    for family in FAMILIES:
        given = {} if weights is None else {"weights": _trained(weights / family, family)}
        for index in split(family, seed=0)[2][:GRAPHS]:
            for devices in DEVICES:
                case = load(Scenario(f"zoo:{family}?index={index}", f"equal:{devices}"))
                annealed_s, rule_s = value_s(case, "anneal", {}, Budget(ANNEALED)), best_rule_s(case)
                found = {
                    name: value_s(case, "neural_list", {**values, **given}, Budget(evaluations))
                    for name, (evaluations, values) in variants.items()
                    if weights is None or "." not in name
                }
                if weights is None and "improved" in variants:
                    found["anneal"] = value_s(case, "anneal", {}, Budget(EVALUATIONS))
                    found["portfolio"] = value_s(case, "portfolio", {"solvable": 0}, Budget(EVALUATIONS))
                found["rules"] = rule_s
                for name, seconds in found.items():
                    for group in (name, f"{name}.{family}"):
                        ratios.setdefault(group, []).append(seconds / annealed_s)
                    ratios.setdefault(f"{name}.over_rules.{family}", []).append(seconds / rule_s)
    trained = "shipped weights" if weights is None else "weights of trainings that left the family out"
    label = "families" if weights is None else "left_out"
    for name, values in ratios.items():
        how = f"{len(values)} test graphs of Placeto's families, T2, over anneal with {ANNEALED}; {trained}"
        mean = statistics.geometric_mean(values)
        yield figure(f"neural_list.{label}.{name}", mean, "", how, target=TARGETS.get(name))


def _trained(folder: Path, family: str) -> str:
    """Return the file of weights in a folder; without one they are trained first, without a family and far ones."""
    without = (family, *FAR)
    if not (folder / WEIGHTS).exists():
        first, second = folder / "first", folder / "second"
        train(first, CrossEntropy(generations=GENERATIONS), left_out=without, say=silent)
        course = CrossEntropy.after(generations=AFTER, seed=0)
        train(second, course, after=first / WEIGHTS, left_out=without, say=silent)
        train_complement(folder, Complementing(rounds=ROUNDS), after=second / WEIGHTS, left_out=without, say=silent)
    return str(folder / WEIGHTS)


def far(_: Path | None) -> Iterator[Figure]:
    """Yield times over the best rule's on families far from the ones trained on."""
    trained = "shipped weights, which have not learned from them"
    every: dict[str, list[float]] = {}
    for family, graphs in FAR.items():
        ratios: dict[str, list[float]] = {}
        for graph in graphs:
            for devices in DEVICES:
                case = load(Scenario(f"zoo:{graph}", f"equal:{devices}"))
                for name, ratio in _over_rules(case, tuple(CONSTRUCTED)):
                    for group in (name, *([f"{name}.new"] if family in NEW else [])):
                        every.setdefault(group, []).append(ratio)
                    ratios.setdefault(name, []).append(ratio)
        for name, over in ratios.items():
            how = f"{len(over)} cases, over the best of ten rules; {trained}"
            yield figure(f"neural_list.far.{name}.{family}", statistics.geometric_mean(over), "", how)
    for name, over in every.items():
        which = f"{len(over)} of {NEW}" if name.endswith(".new") else "all of them"
        target = {"pass": 1.1, "pass.contracted.new": 1.0}.get(name)
        how = f"{which}; {trained}"
        yield figure(f"neural_list.far.{name}", statistics.geometric_mean(over), "", how, target=target)


def _over_rules(case: LoadedScenario, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield by name what CONSTRUCTED reaches over the best rule."""
    rule_s = best_rule_s(case)
    for name in names:
        evaluations, values = CONSTRUCTED[name]
        yield name, value_s(case, "neural_list", values, Budget(evaluations)) / rule_s


def large(_: Path | None) -> Iterator[Figure]:
    """Yield times of one pass over the best rule's on large graphs, with groups of the contraction and without."""
    ratios: dict[str, list[float]] = {}
    for graph, devices in LARGE:
        case = load(Scenario(f"zoo:{graph}", f"equal:{devices}"))
        for name, ratio in _over_rules(case, ("pass", "pass.contracted")):
            ratios.setdefault(name, []).append(ratio)
    for name, over in ratios.items():
        how = f"{len(over)} graphs of 900 to 25,000 operations, over the best of ten rules"
        yield figure(f"neural_list.large.{name}", statistics.geometric_mean(over), "", how, target=1.0)


def caps(_: Path | None) -> Iterator[Figure]:
    """Yield how many answers fit where devices hold little more than their share, and where the portfolio's does."""
    for share in (1.1, 1.5):
        fitting, known, count = 0, 0, 0
        for family in FAMILIES:
            for index in split(family, seed=0)[2][:GRAPHS]:
                case = limit_memory(load(Scenario(f"zoo:{family}?index={index}", "equal:4")), share)
                fitting += math.isfinite(value_s(case, "neural_list", {}, Budget(EVALUATIONS)))
                known += math.isfinite(value_s(case, "portfolio", {"solvable": 0}, Budget(EVALUATIONS)))
                count += 1
        how = f"of {count} graphs on 4 devices, {EVALUATIONS} evaluations; the portfolio: {known}"
        yield figure(f"neural_list.caps.{share:g}", fitting, "", how)


def one_pass(_: Path | None) -> Iterator[Figure]:
    """Yield the milliseconds of one pass over 2,000 operations and 8 devices, figures of the graph included."""
    for graph in ("layered?n=2000", "erdos-renyi?n=2000"):
        case = load(Scenario(f"zoo:{graph}", "equal:8"))
        for name, contracted in (("pass_ms", False), ("contracted_pass_ms", True)):

            def construct(case: LoadedScenario = case, contracted: bool = contracted) -> None:
                case.problem.forget()
                value_s(case, "neural_list", {**PASS, "passes": 1, "contracted": contracted}, Budget(MANY))

            how = "median of 20, one core, figures of the graph and devices alone included"
            target = None if contracted else 100.0
            yield figure(f"neural_list.{name}.{graph}", median_s(construct, 20) * 1e3, "ms", how, target=target)


def portfolio(_: Path | None) -> Iterator[Figure]:
    """Yield the portfolio's times with `neural_list` as a start over those without, at equal time and evaluations."""
    for label, budget in (("seconds", Budget(seconds=SECONDS)), ("evaluations", Budget(EVALUATIONS))):
        ratios = []
        for family in FAMILIES:
            for index in split(family, seed=0)[2][:GRAPHS]:
                for devices in DEVICES:
                    case = load(Scenario(f"zoo:{family}?index={index}", f"equal:{devices}"))
                    with_s, without_s = (
                        value_s(case, "portfolio", {"learned": learned}, budget) for learned in (True, False)
                    )
                    ratios.append(with_s / without_s)
        how = f"{len(ratios)} test graphs, {budget}, with over without"
        yield figure(f"neural_list.portfolio.{label}", statistics.geometric_mean(ratios), "", how, target=0.95)
        yield figure(f"neural_list.portfolio.{label}.worst", max(ratios), "", how, target=1.01)


def value_s(case: LoadedScenario, placer: str, values: Mapping[str, Any], budget: Budget, *, seed: int = 0) -> float:
    """Return the seconds of the best placement found; inf where none fits."""
    method = build_implementation("place", placer, values)
    try:
        answer = method.place(case.problem, case.simulator(), budget, seed=seed, progress=lambda _: None)
    except DeviceError:
        return math.inf
    seconds: float = answer.value_s
    return seconds


PARTS = {
    "constructed": constructed,
    "families": families,
    "far": far,
    "large": large,
    "caps": caps,
    "pass": one_pass,
    "portfolio": portfolio,
}


def figures(arguments: list[str]) -> Iterator[Figure]:
    """Yield the figures of the parts named, or of all but `constructed`, which is part of others."""
    for argument in arguments or [part for part in PARTS if part != "constructed"]:
        name, _, folder = argument.partition("=")
        yield from PARTS[name](Path(folder) if folder else None)


if __name__ == "__main__":
    say(figures(sys.argv[1:]))
