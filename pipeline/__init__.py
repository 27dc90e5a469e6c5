"""placewright: finds which device should run which operation of a neural network, by measuring it.

import pipeline
result = pipeline.tune("model.xml", devices=["CPU", "GPU"], budget_s=120)
compiled = result.compile()
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ShadowedPackageError

if TYPE_CHECKING:
    from pipeline.api import tune as tune
    from pipeline.offline.scenario import Scenario as Scenario
    from pipeline.offline.search import Effort as Effort
    from pipeline.offline.search import bound as bound
    from pipeline.offline.search import search as search
    from pipeline.offline.search import simulate as simulate
    from pipeline.runs.result import Result as Result
    from pipeline.runs.split import load as load

SIBLINGS = ("coarsen", "embed", "policy", "runtime")
PUBLIC = {
    "tune": "pipeline.api",
    "Result": "pipeline.runs.result",
    "load": "pipeline.runs.split",
    "Scenario": "pipeline.offline.scenario",
    "Effort": "pipeline.offline.search",
    "search": "pipeline.offline.search",
    "simulate": "pipeline.offline.search",
    "bound": "pipeline.offline.search",
}


def _check_siblings() -> None:
    """Raise ShadowedPackageError unless the packages we would import are the ones that lie beside this one."""
    home = Path(__file__).resolve().parent.parent
    for name in SIBLINGS:
        spec = importlib.util.find_spec(name)
        actual = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
        if actual != home / name:
            raise ShadowedPackageError(
                f"The package {name!r} of placewright lies in {home / name}, but Python finds {actual or 'none'}.",
                "Remove the other package, or install placewright into an environment of its own.",
            )


_check_siblings()


def __getattr__(name: str) -> Any:
    """Import the public functions when they are first used: OpenVINO and torch take seconds."""
    if name in PUBLIC:
        return getattr(importlib.import_module(PUBLIC[name]), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
