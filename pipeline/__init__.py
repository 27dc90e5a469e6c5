"""placewright: finds which device should run which operation of a neural network, by measuring it.

import pipeline
result = pipeline.tune("model.xml", devices=["CPU", "GPU"], budget_s=120)
compiled = result.compile()

Everything public is here: `tune`, `tune_scenario`, `load` and `Result` for runs; `search`, `simulate` and `bound` of a
`Scenario`, with an `Effort`, without hardware; the types of their answers, `SearchDocument`, `SimulateRecord` and
`BoundRecord`; and `PlacewrightError`, which everything that is wrong with arguments, models or devices raises.
docs/search.md and docs/result.md say what answers hold.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from placewright_entry import check_packages

if TYPE_CHECKING:
    from pipeline.api import tune as tune
    from pipeline.api import tune_scenario as tune_scenario
    from pipeline.core.errors import PlacewrightError as PlacewrightError
    from pipeline.deploy.split import load as load
    from pipeline.offline.records import BoundRecord as BoundRecord
    from pipeline.offline.records import SearchDocument as SearchDocument
    from pipeline.offline.records import SimulateRecord as SimulateRecord
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
    "SearchDocument": "pipeline.offline.records",
    "SimulateRecord": "pipeline.offline.records",
    "BoundRecord": "pipeline.offline.records",
    "PlacewrightError": "pipeline.core.errors",
}
__all__ = [*PUBLIC]

check_packages()


def _with_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    from pipeline.core.errors import PlacewrightError, in_arguments

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except PlacewrightError as error:
            error.cause, error.remedy = in_arguments(error.cause), in_arguments(error.remedy)
            raise

    return call


def __getattr__(name: str) -> Any:
    """Import what is public when it is first used: OpenVINO and torch take seconds.

    Errors of functions speak of arguments; those of the command line, which calls the same, of its options.
    """
    if name in PUBLIC:
        public = getattr(importlib.import_module(PUBLIC[name]), name)
        return _with_arguments(public) if isinstance(public, FunctionType) else public
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, those that are not imported yet among them."""
    return sorted({*globals(), *PUBLIC})
