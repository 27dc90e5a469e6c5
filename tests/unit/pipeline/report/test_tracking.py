"""A run as an MLflow run: what is logged, on a library that is made up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.errors import StoreError, UsageError
from pipeline.report.run import RunRecords
from pipeline.report.tracking import log_run, run_parameters
from tests.reports import finished


class Refused(Exception):  # noqa: N818  stands for MlflowException
    """What the library raises."""


class Library(SimpleNamespace):
    """Takes down what it is told, as mlflow's functions are called."""

    MlflowException = Refused

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__(told={}, metrics=[], files=[], refuses=refuses)

    def set_tracking_uri(self, uri: str) -> None:
        self.told["uri"] = uri

    def set_experiment(self, name: str) -> None:
        if self.refuses:
            raise Refused("the server\nis not there")
        self.told["experiment"] = name

    @contextmanager
    def start_run(self, run_name: str) -> Iterator[Any]:
        self.told["run"] = run_name
        yield SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_params(self, params: dict[str, str]) -> None:
        self.told["params"] = params

    def set_tags(self, tags: dict[str, str]) -> None:
        self.told["tags"] = tags

    def log_metrics(self, metrics: dict[str, float]) -> None:
        self.told["metrics"] = metrics

    def log_metric(self, name: str, value: float, step: int) -> None:
        self.metrics.append((name, value, step))

    def log_artifact(self, path: str) -> None:
        self.files.append(Path(path).name)


@pytest.fixture
def run(tmp_path: Path) -> RunRecords:
    return RunRecords.load(finished(tmp_path / "run"))


def use(library: object, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "mlflow", library)  # type: ignore[arg-type]


def test_a_run_is_logged_with_its_settings_figures_and_files(run: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    use(library, monkeypatch)
    assert log_run(run, "http://127.0.0.1:5000") == "abc"
    told, best = library.told, run.best
    assert (told["uri"], told["experiment"], told["run"]) == ("http://127.0.0.1:5000", "placewright", "run")
    assert told["params"].keys() == run_parameters(run).keys()
    assert told["params"]["best"] == run.result.best
    assert told["tags"]["verdict"] == run.result.verdict
    assert best.latency_s is not None
    assert told["metrics"]["best.median_s"] == best.latency_s.median
    assert told["metrics"]["speedup_over_best_single"] == run.result.speedup_over_best_single.ratio
    assert {"result.json", "placement.json"} <= set(library.files)
    assert len(library.metrics) > 0


def test_names_that_mlflow_refuses_are_changed(run: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    use(library, monkeypatch)
    first, *others = run.result.candidates
    named = [replace(first, name="CPU {f32} & more"), *others]
    log_run(replace(run, result=replace(run.result, candidates=[*named, first])), "folder")
    assert "candidate.CPU _f32_ _ more.median_s" in library.told["metrics"]


def test_without_mlflow_the_extra_is_named(run: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    use(None, monkeypatch)
    with pytest.raises(UsageError, match=r"pip install placewright\[mlflow\]"):
        log_run(run, "folder")


def test_what_the_server_says_is_one_line(run: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Library(refuses=True), monkeypatch)
    with pytest.raises(StoreError, match="MLflow at folder did not take the run: the server is not there"):
        log_run(run, "folder")
