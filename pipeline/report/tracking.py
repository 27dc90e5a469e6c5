"""A run as an MLflow run: parameters, figures, curves and files."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.errors import StoreError, UsageError
from pipeline.report.run import RunRecords

EXPERIMENT = "placewright"
FILES = ("result.json", "placement.json", "manifest.json", "report.html")
LONGEST = 500  # characters of a parameter that MLflow's first servers take
KEPT = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. /")  # of a metric's name


def log_run(run: RunRecords, uri: str) -> str:
    """Log a run to the MLflow tracking server, or folder, at a URI; return the id it has there.

    Raises:
        UsageError: mlflow is not installed.
        StoreError: the server does not take it.
    """
    try:
        mlflow: Any = importlib.import_module("mlflow")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Logging to MLflow needs the package {error.name!r}, which is not installed.",
            "Install the extra: pip install placewright[mlflow].",
        ) from error
    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(EXPERIMENT)
        with mlflow.start_run(run_name=run.path.resolve().name) as begun:
            mlflow.log_params({key: str(value)[:LONGEST] for key, value in run_parameters(run).items()})
            mlflow.set_tags({"verdict": run.result.verdict, "fingerprint": run.result.fingerprint})
            mlflow.log_metrics(run_figures(run))
            for name, value, step in run_curves(run):
                mlflow.log_metric(name, value, step=step)
            for name in FILES:
                if (run.path / name).is_file():
                    mlflow.log_artifact(str(run.path / name))
            return str(begun.info.run_id)
    except (mlflow.MlflowException, OSError) as error:
        raise StoreError(
            f"MLflow at {uri} did not take the run: {' '.join(str(error).split())}.", "Check --mlflow."
        ) from error


def run_parameters(run: RunRecords) -> dict[str, Any]:
    """Return what the run was asked: settings in dotted keys, the model, devices, seed and versions."""
    asked = {
        "model": run.result.model.path,
        "model_sha256": run.result.model.sha256,
        "devices": " ".join(device.name for device in run.result.devices),
    }
    versions = {f"version.{name}": version for name, version in run.result.versions.items()}
    return {**_flatten(run.manifest["settings"]), **asked, "seed": run.result.seed, "best": run.result.best, **versions}


def run_figures(run: RunRecords) -> dict[str, float]:
    """Return what the run found: seconds and rate of the best candidate, and how it compares."""
    best, speedup = run.best, run.result.speedup_over_best_single
    metrics = {
        "best.median_s": best.latency_s.median if best.latency_s is not None else None,
        "best.rate": best.rate,
        "best.compile_s": best.compile_s,
        "best.peak_bytes": best.peak_bytes,
        "speedup_over_best_single": speedup.ratio,
        **{f"best.p{name}_s": value for name, value in best.percentiles.items()},
        **{
            f"candidate.{candidate.name}.median_s": candidate.latency_s.median
            for candidate in run.result.candidates
            if candidate.latency_s is not None
        },
    }
    return {
        _metric_name(name): float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    }


def run_curves(run: RunRecords) -> Iterator[tuple[str, float, int]]:
    """Yield (name, value, evaluations) of the learning curves."""
    for row in run.curve:
        for key in ("value_s", "bound_s", "entropy"):
            if row.get(key) is not None and math.isfinite(row[key]):
                yield _metric_name(f"{row['placer']}.{key}"), float(row[key]), int(row["done"])


def _metric_name(name: str) -> str:
    return "".join(c if c in KEPT else "_" for c in name)


def _flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
