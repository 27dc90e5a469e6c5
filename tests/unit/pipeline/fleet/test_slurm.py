"""The file of workers of a batch system, and what is said where none can be submitted."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.errors import UsageError
from pipeline.fleet.slurm import SlurmFile, become, read_slurm, submit_jobs
from pipeline.fleet.target import parse_target

HOST = 'host = "10.0.0.1"\n'


def written(folder: Path, text: str) -> Path:
    (folder / "farm.toml").write_text(text, encoding="utf-8")
    return folder / "farm.toml"


def test_a_file_says_how_many_workers_and_with_what(tmp_path: Path) -> None:
    text = 'workers = 4\nthreads = 2\nfolder = "said"\nwait = "2m"\n[parameters]\nslurm_partition = "x"\n'
    found = read_slurm(written(tmp_path, HOST + text))
    assert found == SlurmFile("10.0.0.1", tmp_path / "said", 4, 2, "slurm", 120.0, {"slurm_partition": "x"})
    assert read_slurm(written(tmp_path, HOST)) == SlurmFile("10.0.0.1", tmp_path / "farm-logs")
    assert parse_target("slurm:farm.toml") == ("slurm", "farm.toml")


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("", "the file needs host", 'host = "10.0.0.1"'),
        (HOST + "worker = 3", "unknown key 'worker' (did you mean 'workers'?)", "workers"),
        (HOST + "workers = 0", "workers is 0, but must be above 0", "workers = 4"),
        (HOST + "workers = true", "workers is True, but must be a whole number", "workers = 4"),
        (HOST + 'parameters = "x"', "parameters is 'x', but must be a table", "[parameters]"),
        ("host = 3", "host is 3, but must be text", 'host = "10.0.0.1"'),
        (HOST + 'wait = "soon"', "'soon' is not a duration", "10m"),
        ("[", "is not valid TOML", "Correct"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_right(text: str, cause: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read_slurm(written(tmp_path, text))
    assert cause in raised.value.cause
    assert remedy in raised.value.remedy


class Submitit:
    """Stands for submitit: notes what is submitted and cancelled."""

    def __init__(self, refuses: bool = False) -> None:
        self.parameters: dict[str, Any] = {}
        self.submitted: list[Any] = []
        self.cancelled = 0
        self.refuses = refuses

    def AutoExecutor(self, folder: Path, cluster: str) -> Submitit:  # noqa: N802  submitit's name
        self.parameters |= {"folder": folder, "cluster": cluster}
        return self

    def update_parameters(self, **parameters: Any) -> None:
        if self.refuses:
            raise ValueError("Unknown parameter(s): x")
        self.parameters |= parameters

    def submit(self, *asked: Any) -> Any:
        self.submitted.append(asked)
        return SimpleNamespace(cancel=self.cancel)

    def cancel(self, check: bool) -> None:
        assert not check  # a job that has ended is no error
        self.cancelled += 1


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Submitit:
    found = Submitit()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setitem(sys.modules, "submitit", found)
    return found


def test_every_job_becomes_a_worker_and_is_cancelled_in_the_end(tmp_path: Path, there: Submitit) -> None:
    file = SlurmFile("h", tmp_path, workers=2, parameters={"timeout_min": 3})
    with submit_jobs(file, [["a", "1"], ["a", "2"]]):
        assert there.submitted == [(become, ["a", "1"]), (become, ["a", "2"])]
        assert there.cancelled == 0
    assert there.cancelled == 2
    assert there.parameters == {"folder": tmp_path, "cluster": "slurm", "name": "placewright", "timeout_min": 3}


def test_what_submitit_refuses_is_said_in_words(tmp_path: Path, there: Submitit) -> None:
    there.refuses = True
    with (
        pytest.raises(UsageError, match="cannot submit to slurm: Unknown parameter"),
        submit_jobs(SlurmFile("h", tmp_path), []),
    ):
        pass


def test_where_submitit_is_not_installed_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs submitit") as raised, submit_jobs(SlurmFile("h", tmp_path), []):
        pass
    assert "placewright[slurm]" in raised.value.remedy
