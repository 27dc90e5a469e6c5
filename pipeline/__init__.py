"""placewright: finds which device should run which operation of a neural network, by measuring it.

import pipeline
result = pipeline.tune("model.xml", devices=["CPU", "GPU"], budget_s=120)
compiled = result.compile()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from placewright_entry import check_packages

if TYPE_CHECKING:
    from pipeline.api import tune as tune
    from pipeline.api import tune_scenario as tune_scenario
    from pipeline.deploy.split import load as load
    from pipeline.offline.scenario import Scenario as Scenario
    from pipeline.offline.search import Effort as Effort
    from pipeline.offline.search import bound as bound
    from pipeline.offline.search import search as search
    from pipeline.offline.search import simulate as simulate
    from pipeline.result.result import Result as Result

PUBLIC = {
    "tune": "pipeline.api",
    "tune_scenario": "pipeline.api",
    "Result": "pipeline.result.result",
    "load": "pipeline.deploy.split",
    "Scenario": "pipeline.offline.scenario",
    "Effort": "pipeline.offline.search",
    "search": "pipeline.offline.search",
    "simulate": "pipeline.offline.search",
    "bound": "pipeline.offline.search",
}

check_packages()


def __getattr__(name: str) -> Any:
    """Import the public functions when they are first used: OpenVINO and torch take seconds."""
    if name in PUBLIC:
        return getattr(importlib.import_module(PUBLIC[name]), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
