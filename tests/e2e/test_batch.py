"""Many jobs over one store: what they share is made once, and one that fails harms no other."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import save_model
from pipeline.cli.main import run_command_line
from pipeline.core.errors import UsageError
from pipeline.fleet import pool
from pipeline.fleet.batch import COLUMNS
from pipeline.fleet.jobs import read_jobs
from pipeline.stages import worker as carry
from pipeline.system.start import PACKAGES
from pipeline.system.workers import Answer, Workers
from tests.e2e.conftest import F32, QUICK
from tests.e2e.test_resume import recorded, stop_when
from tests.engines import answer_here
from tests.models import chain, two_towers

pytestmark = pytest.mark.usefixtures("read_here")

LIGHT = {
    **QUICK,
    "coarsen.use": "identity",
    "embed.use": "identity",
    "embed.blocks": ["types", "degrees"],
    "group.use": "identity",
    "place.use": "single",
}
SETS = [f"A=CPU{{{F32}}}", f"A=CPU{{{F32}}},B=CPU{{{F32}}}"]


def jobs_file(folder: Path, *models: str, devices: list[str] | None = None, defaults: str = "") -> Path:
    """Write two tiny models and the jobs over `models`, and return the path of the jobs file."""
    save_model(two_towers(1), folder / "towers.xml")
    save_model(chain(3), folder / "chain.xml")
    settings = "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in LIGHT.items())
    jobs = f"[[jobs]]\nmodels = {json.dumps(models)}\ndevices = {json.dumps(devices or SETS)}\n"
    path = folder / "jobs.toml"
    path.write_text(f"[defaults]\n{defaults}{settings}\n{jobs}", encoding="utf-8")
    return path


class InProcess(Workers):
    """Workers that are this very process: a command is carried out when it is handed over."""

    started_stages: ClassVar[list[str]] = []

    def __init__(self, most: int, module: str) -> None:
        super().__init__(most, module)
        self.done: list[tuple[str, Answer]] = []

    def ask(self, name: str, command: Mapping[str, Any]) -> None:
        InProcess.started_stages += [task["stage"] for task in command["tasks"]]
        self.done.append((name, answer_here(carry.execute_tasks, command)))

    def wait(self) -> list[tuple[str, Answer]]:
        return [self.done.pop(0)]


def test_arrays_are_named_from_the_folder_of_the_jobs_file(tmp_path: Path) -> None:
    path = jobs_file(tmp_path, "chain.xml", devices=SETS[:1], defaults='"coarsen.input" = "data.npz"\n')
    (job,) = read_jobs(path)
    assert job.settings.coarsen.input == str(tmp_path / "data.npz")


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, made_up_profile: None) -> list[str]:
    """Carry tasks out in this process instead of workers, and return the list of stages that were started."""
    monkeypatch.setattr(pool, "Workers", InProcess)
    monkeypatch.setattr(InProcess, "started_stages", [])
    return InProcess.started_stages


Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Rows:
    """Return a function that runs a batch, which must end with a code, and gives the rows it prints."""

    def command(jobs: Path, code: int = 0, *more: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        folders = ["--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
        found = run_command_line(["batch", str(jobs), *folders, *more, "--json"])
        out, err = capsys.readouterr()
        assert found == code, err
        document: list[dict[str, Any]] = json.loads(out)
        return document

    return command


def test_two_models_on_two_sets_of_devices_share_what_they_have_in_common(
    tmp_path: Path, in_process: list[str], rows: Rows
) -> None:
    jobs = jobs_file(tmp_path, "towers.xml", "chain.xml")
    table = rows(jobs)
    assert [r["job"] for r in table] == [f"{m}-devices{d}" for m in ("towers", "chain") for d in (1, 2)]
    assert all(r["best"] and not r["failed"] and r["median_s"] > 0 for r in table)
    per_model = {"read": 2, "coarsen": 2, "embed": 2, "group": 2}
    assert Counter(in_process) == {**per_model, "profile": 4, "place": 4, "measure": 4}
    for row in table:
        left = {p.name for p in (tmp_path / "out" / row["job"]).iterdir()}
        assert {"result.json", "placement.json", "placed.xml"} <= left
    lines = (tmp_path / "out" / "table.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == table
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as cells:
        found = list(csv.DictReader(cells))
    assert [tuple(r) for r in found] == [COLUMNS] * 4
    assert [r["job"] for r in found] == [r["job"] for r in table]
    drawn = {p.name for p in (tmp_path / "out").glob("*.svg")}
    assert drawn == {"intervals-towers.svg", "intervals-chain.svg"}
    assert run_command_line(["report", str(tmp_path / "out")]) == 0
    assert "towers: jobs" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    in_process.clear()
    assert rows(jobs) == table
    assert in_process == []


def test_in_a_pipe_a_batch_tells_what_became_of_jobs_and_nothing_on_the_way(
    tmp_path: Path, in_process: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = str(jobs_file(tmp_path, "chain.xml", devices=SETS[:1]))
    assert run_command_line(["batch", jobs, "--store", str(tmp_path / "store1"), "--out", str(tmp_path / "1")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("chain: done: ")
    assert not [line for line in lines if "jobs are done" in line]
    monkeypatch.setenv("PLACEWRIGHT_PROGRESS", "lines")
    assert run_command_line(["batch", jobs, "--store", str(tmp_path / "store2"), "--out", str(tmp_path / "2")]) == 0
    assert capsys.readouterr().err.splitlines()[0] == "0 of 1 jobs are done; chain: read, coarsen"


def test_a_batch_holds_the_machine_from_the_first_stage_that_measures_to_its_end(
    tmp_path: Path, in_process: list[str], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def alone(_: object) -> Iterator[float]:
        log.append("hold")
        yield 0.0
        log.append("release")

    ask = InProcess.ask

    def asked(own: InProcess, name: str, command: Mapping[str, Any]) -> None:
        log.extend(f"{task['stage']}{' held' * command['alone']}" for task in command["tasks"])
        ask(own, name, command)

    monkeypatch.setattr(pool, "measuring_alone", alone)
    monkeypatch.setattr(InProcess, "ask", asked)
    rows(jobs_file(tmp_path, "towers.xml", devices=SETS[:1]))
    at = log.index("profile held")
    assert log.index("hold") == at - 1
    assert log.index("read") < at
    assert log[-2:] == ["measure", "release"]
    log.clear()
    rows(jobs_file(tmp_path, "towers.xml", devices=SETS[:1]))
    assert log == []


def test_a_batch_measures_again_what_it_is_told_to(tmp_path: Path, in_process: list[str], rows: Rows) -> None:
    jobs = jobs_file(tmp_path, "towers.xml")
    first = rows(jobs)
    in_process.clear()
    assert rows(jobs) == first
    assert in_process == []
    rows(jobs, 0, "--remeasure")
    assert set(in_process) == {"profile", "place", "measure"}
    assert in_process.count("profile") == len(SETS)


def test_a_job_that_fails_is_a_row_with_its_cause_and_the_others_finish(
    tmp_path: Path, in_process: list[str], rows: Rows
) -> None:
    (tmp_path / "broken.xml").write_text("<html/>", encoding="utf-8")
    table = rows(jobs_file(tmp_path, "gone.xml", "broken.xml", "chain.xml", devices=SETS[:1]), 3)
    assert [bool(r["failed"]) for r in table] == [True, True, False]
    assert "File not found" in table[0]["failed"]
    assert "is not OpenVINO IR" in table[1]["failed"]
    assert table[2]["best"] == "A"
    assert in_process[-1] == "measure"


def test_the_table_shows_a_cause_to_its_last_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[jobs]]\nmodels = ["zoo:resnet-50"]\n', encoding="utf-8")
    assert (
        run_command_line(["batch", str(jobs), "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]) == 5
    )
    _, _, table = capsys.readouterr().out.partition(" job ")
    assert "Unknown model 'resnet-50'. Did you mean 'resnet50'?" in " ".join(table.split())


def test_a_device_that_is_missing_is_a_row_with_its_cause(tmp_path: Path, in_process: list[str], rows: Rows) -> None:
    table = rows(jobs_file(tmp_path, "chain.xml", devices=["TPU", SETS[0]]), 5)
    assert "Unknown device TPU" in table[0]["failed"]
    assert table[1]["best"] == "A"


def test_a_process_that_dies_fails_its_job_with_its_last_words_and_no_other(
    tmp_path: Path, in_process: list[str], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(self: InProcess, name: str, command: Mapping[str, Any]) -> None:
        if command["tasks"][0]["params"].get("model_sha256") == model_sha256(tmp_path / "towers.xml"):
            cause = "The process was killed by SIGSEGV; it last said: Segmentation fault."
            self.done.append((name, {"error": {"cause": cause, "remedy": ""}}))
        else:
            answered(self, name, command)

    answered = InProcess.ask
    monkeypatch.setattr(InProcess, "ask", ask)
    table = rows(jobs_file(tmp_path, "towers.xml", "chain.xml", devices=SETS[:1]), 5)
    assert "Segmentation fault" in table[0]["failed"]
    assert table[1]["best"] == "A"


def test_a_batch_with_nothing_to_do_starts_no_process_and_imports_no_library_of_a_stage(
    tmp_path: Path, in_process: list[str], rows: Rows
) -> None:
    rows(jobs_file(tmp_path, "towers.xml", devices=SETS[:1]))
    arguments = [
        "batch",
        str(tmp_path / "jobs.toml"),
        "--out",
        str(tmp_path / "out"),
        "--store",
        str(tmp_path / "store"),
    ]
    script = (
        "import subprocess, sys\n"
        "from pipeline.cli.main import run_command_line\n"
        "started = []\n"
        "sys.addaudithook(lambda event, given: started.append(given) if event == 'subprocess.Popen' else None)\n"
        f"assert run_command_line({arguments!r}) == 0\n"
        "heavy = {'torch', 'ortools', 'sklearn', 'numba', 'scipy', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)), started)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[] []"


@pytest.mark.slow
def test_a_batch_that_was_killed_goes_on_where_it_stopped(tmp_path: Path, rows: Rows) -> None:
    jobs = jobs_file(tmp_path, "towers.xml", "chain.xml", devices=SETS[:1])
    out = tmp_path / "out"
    arguments = ["batch", str(jobs), "--out", str(out), "--store", str(tmp_path / "store"), "--workers", "2"]
    status, _ = stop_when(arguments, lambda: any("profile" in recorded(p) for p in out.glob("*")), signal.SIGKILL)
    assert status == -signal.SIGKILL
    before = {p.name: recorded(p) for p in out.iterdir() if p.is_dir()}
    table = rows(jobs)
    assert not any(r["failed"] for r in table)
    for job, stages in before.items():
        document = json.loads((out / job / "result.json").read_text(encoding="utf-8"))
        again = {s["stage"]: s for s in document["stages"]}
        assert all(not again[s]["ran"] and again[s]["key"] == record["key"] for s, record in stages.items())


def text(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "jobs.toml"
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[[job]]\nmodels = ["a.xml"]', "did you mean 'jobs'?"),
        ('[[jobs]]\nmodel = ["a.xml"]', "did you mean 'models'?"),
        ('[[jobs]]\nmodels = ["a.xml"]\nsettings = [{"place.evaluation" = 3}]', "Did you mean 'place.evaluations'?"),
        ('[defaults]\n"measure.start" = 3\n[[jobs]]\nmodels = ["a.xml"]', "Did you mean 'measure.starts'?"),
        ("[[jobs]]\nmodels = []", "models of job 1 is [], but must be a list of at least 1"),
        ("[[jobs]]\n", "job 1 needs models"),
        ("", "the file needs jobs"),
        ('jobs = "a.xml"', "jobs is 'a.xml', but must be a list"),
        ("jobs = [1]", "job 1 is 1, but must be a table"),
        ("[[jobs]", "is not valid TOML"),
        ("defaults = 3", "defaults is 3, but must be a table"),
        ('[[jobs]]\nmodels = "a.xml"', "models of job 1 is 'a.xml', but must be a list"),
        ('[[jobs]]\nmodels = ["a.xml"]\ndevices = "CPU"', "devices of job 1 is 'CPU', but must be a list"),
        ('[[jobs]]\nmodels = ["a.xml"]\ndevices = []', "devices of job 1 is [], but must be a list of at least 1"),
        ('[[jobs]]\nmodels = ["a.xml"]\nseeds = 3', "seeds of job 1 is 3, but must be a list"),
        ('[[jobs]]\nmodels = ["a.xml"]\nseeds = [true]', "seed 1 of job 1 is True, but must be a whole number"),
        ('[[jobs]]\nmodels = ["a.xml"]\nsettings = {"place.evaluations" = 3}', "settings of job 1 is {"),
        ('[[jobs]]\nmodels = ["a.xml"]\n[[jobs]]\nmodels = ["a.xml"]', "the same name: a"),
        ('[[jobs]]\nmodels = ["a.xml"]\n[[jobs]]\nmodels = ["A.xml"]', "the same name: A, a"),
    ],
)
def test_a_wrong_jobs_file_is_refused_with_what_is_wrong(content: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read_jobs(text(tmp_path, content))
    assert words in str(raised.value)
    assert raised.value.exit_code == 2
    assert raised.value.remedy


def test_jobs_are_the_product_of_models_devices_settings_and_seeds(tmp_path: Path) -> None:
    jobs = read_jobs(
        text(
            tmp_path,
            '[defaults]\nplace.evaluations = 5\n[[jobs]]\nname = "x"\nmodels = ["a.xml", "zoo:resnet50"]\n'
            'devices = ["CPU"]\nseeds = [0, 1]\nsettings = [{}, {"place.evaluations" = 7}]\n',
        )
    )
    assert [j.name for j in jobs] == [
        f"x-{m}-settings{s}-seed{seed}" for m in ("a", "resnet50") for s in (1, 2) for seed in (0, 1)
    ]
    assert [j.settings.place.evaluations for j in jobs[:4]] == [5, 5, 7, 7]
    assert [j.settings.seed for j in jobs[:4]] == [0, 1, 0, 1]
    assert jobs[0].model == str(tmp_path / "a.xml")
    assert jobs[-1].model == "zoo:resnet50"
    assert jobs[0].settings.devices == ("CPU",)


@pytest.mark.slow
def test_packages_of_our_names_where_a_batch_is_started_are_not_imported(
    tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"open({str(tmp_path / 'MARK')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    (row,) = rows(jobs_file(tmp_path, "towers.xml", devices=SETS[:1]))
    assert row["best"] == "A"
    assert not (tmp_path / "MARK").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../../up", "begins with a dot"),
        (".hidden", "begins with a dot"),
        ("a/../../up", "holds one of"),
        ("/tmp/absolute", "holds one of"),
        ("a\\b", "holds one of"),
        ("a:b", "holds one of"),
        ("a\0b", "cannot be printed"),
        ("two\nlines", "cannot be printed"),
        ("ü" * 101, "longer than 200 bytes"),
    ],
)
def test_a_name_that_is_no_folder_right_below_the_batch_is_refused(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    jobs = text(tmp_path / "in", f'[[jobs]]\nname = {json.dumps(name)}\nmodels = ["a.xml"]')
    assert run_command_line(["batch", str(jobs), "--store", str(tmp_path / "store")]) == 2
    cause, fix = capsys.readouterr().err.splitlines()
    assert "job 1 of" in cause
    assert words in cause
    assert "run directory" in fix
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "jobs.toml"]


@pytest.mark.parametrize(("model", "words"), [("..xml", "begins with a dot"), ("", "is empty")])
def test_a_model_whose_file_name_is_no_folder_name_needs_a_name(model: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        read_jobs(text(tmp_path, f'[[jobs]]\nmodels = ["{model}"]'))
    (job,) = read_jobs(text(tmp_path, f'[[jobs]]\nname = "größer 2"\nmodels = ["{model}"]'))
    assert job.name.startswith("größer 2")


def test_models_of_one_file_name_in_several_folders_get_names_of_their_own(tmp_path: Path) -> None:
    jobs = read_jobs(text(tmp_path, '[[jobs]]\nmodels = ["a/model.xml", "b/model.xml", "c.xml"]'))
    assert [j.name for j in jobs] == ["model1", "model2", "c"]
