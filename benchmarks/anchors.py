"""What the portfolio finds on the latency inputs of Tarnawski et al., against the best values known.

The files (MIT licence) are not part of the project: PLACEWRIGHT_MSR names the folder that holds `latency-inputs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import ROOT, Figure, figure, say
from pipeline.offline.scenario import Scenario
from pipeline.offline.search import Effort, search

FOLDER = Path(os.environ.get("PLACEWRIGHT_MSR", ROOT.parent / "shared" / "data" / "msr")) / "latency-inputs"
BUDGET_S = 20.0
SLACK = 1.0001  # the values are printed with four digits

# file, whether placements carry priorities, milliseconds of the best value known, whether that is known to be optimal
KNOWN = (
    ("LayerGraphs/bert24_inference", False, 92.41, True),
    ("LayerGraphs/resnet50_inference", False, 201.45, True),
    ("OperatorGraphs/bert_l-3_inference", False, 48.88, False),
    ("OperatorGraphs/bert_l-3_inference", True, 48.88, False),
    ("OperatorGraphs/resnet50_inference", False, 308.7, False),
    ("OperatorGraphs/resnet50_inference", True, 289.86, True),
)


def figures() -> Iterator[Figure]:
    """Yield the value, its gap and whether it is proven, for every file."""
    for name, ordered, known_ms, optimal in KNOWN:
        label = f"anchors.{name.split('/')[0][:1]}.{name.split('/')[1]}.{'order' if ordered else 'placement'}"
        path = FOLDER / f"{name}.json"
        if not path.is_file():
            yield figure(label, None, "ms", f"no file {path.name}: set PLACEWRIGHT_MSR")
            continue
        scenario = Scenario(str(path), "equal:4", level="T1-bare", memory=False, ties=False, ordered=ordered)
        found = search(scenario, Effort("portfolio", BUDGET_S))
        how = (
            f"portfolio, {BUDGET_S:g} s, 4 equal accelerators, T1-bare, no memory limits, no colocation; best known "
            f"{known_ms} ms; found by {found['found_by']} after {found['evaluations']} evaluations"
        )
        yield figure(label, found["value_s"] * 1e3, "ms", how, target=known_ms * SLACK)
        yield figure(f"{label}.seconds", found["seconds"], "s", "until proven, or the budget", target=BUDGET_S + 1)
        how = f"bound {found['lower_bound_s'] * 1e3:.6g} ms by {found['bound_by']}, proven: {found['proven']}"
        yield figure(f"{label}.gap", found["gap"], "", how, target=1e-4 if optimal else None)


if __name__ == "__main__":
    say(figures())
