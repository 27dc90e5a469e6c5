"""Whether outputs count as right: by how far they are from the reference's, or by a user's own measure of quality."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from runtime.measuring.outputs import Outputs, OutputsByKind, compare_outputs, difference_of, percent

Metric = Callable[[Outputs], float]


def accepted(
    actual: OutputsByKind, expected: OutputsByKind, precisions: Mapping[str, str], settings: MeasureSettings
) -> float | MeasurementFailed:
    """Return what outputs lose against the reference's on the worst kind of inputs, or why that is too much.

    It is their difference (see `outputs`), or with a metric the share by which quality falls; 0 if it does not.

    Raises:
        UsageError: the metric is not there, or fails.
    """
    if not settings.metric:
        tolerance = tolerance_for(precisions, settings)
        each = [compare_outputs(actual[kind], outputs, tolerance) for kind, outputs in expected.items()]
        return _worst(each)
    lost = loss(actual, expected, settings)
    if isinstance(lost, MeasurementFailed) or lost <= settings.metric_drop:
        return lost
    name = settings.metric.rpartition(":")[2]
    allowed = percent(settings.metric_drop)
    return MeasurementFailed("wrong_output", f"{name} falls by {percent(lost)} from f32 ({allowed} allowed)")


def loss(actual: OutputsByKind, expected: OutputsByKind, settings: MeasureSettings) -> float | MeasurementFailed:
    """Return what outputs lose against the reference's, whatever is allowed; see `accepted`."""
    return _worst([_loss(actual[kind], outputs, settings) for kind, outputs in expected.items()])


def _worst(each: Sequence[float | MeasurementFailed]) -> float | MeasurementFailed:
    """Return the first failure, or else the largest number."""
    numbers = list[float]()
    for one in each:
        if isinstance(one, MeasurementFailed):
            return one
        numbers.append(one)
    return max(numbers, default=0.0)


def _loss(actual: Outputs, expected: Outputs, settings: MeasureSettings) -> float | MeasurementFailed:
    apart = difference_of(actual, expected)
    if not settings.metric or isinstance(apart, MeasurementFailed):
        return apart
    metric = load_metric(settings.metric)
    whole, ours = (_asked(metric, outputs, settings.metric) for outputs in (expected, actual))
    if math.isnan(ours):
        return math.inf
    return max(0.0, whole - ours) / (abs(whole) or 1.0)


def most_allowed(settings: MeasureSettings) -> float:
    """Return the loss up to which outputs of a low precision count as right."""
    return settings.metric_drop if settings.metric else settings.low_tolerance


def tolerance_for(precisions: Mapping[str, str], settings: MeasureSettings) -> float:
    """Return the tolerance that fits the precisions a model really runs in."""
    return settings.tolerance if set(precisions.values()) <= {"f32"} else settings.low_tolerance


def load_metric(text: str) -> Metric:
    """Return the function that FILE.py:FUNCTION names.

    Raises:
        UsageError: it is not written so, or there is no such file or function.
    """
    name, _, function = text.rpartition(":")
    path = Path(name)
    if path.suffix != ".py" or not function:
        raise UsageError(f"{text!r} names no function.", "Write it as in --metric quality.py:top1.")
    if not path.is_file():
        raise UsageError(f"There is no file {name}.", "Write the metric as in --metric quality.py:top1.")
    spec = importlib.util.spec_from_file_location(f"placewright_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{name} cannot be loaded.", "Write the metric as in --metric quality.py:top1.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # what a user's file does when it is loaded, may be anything
        raise UsageError(f"{name} cannot be loaded: {_in_a_line(error)}.", "Correct the file.") from error
    metric = getattr(module, function, None)
    if not callable(metric):
        raise UsageError(f"{name} has no function {function}.", f"It has: {', '.join(_functions(module)) or 'none'}.")
    return metric  # type: ignore[no-any-return]


def metric_file(text: str) -> Path:
    """Return the file of a metric, which is loaded to see that it can be.

    Raises:
        UsageError: it cannot.
    """
    load_metric(text)
    return Path(text.rpartition(":")[0])


def _asked(metric: Metric, outputs: Outputs, text: str) -> float:
    try:
        return float(metric(dict(outputs)))
    except Exception as error:  # a user's function may raise anything
        raise UsageError(
            f"The metric {text} failed: {_in_a_line(error)}.",
            'It is given {"output_0": array, ...} and returns one number; the larger, the better.',
        ) from error


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())[:200]}".strip()


def _functions(module: Any) -> list[str]:
    return sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
