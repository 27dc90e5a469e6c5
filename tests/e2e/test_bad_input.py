"""What is wrong with the input is said in one line of cause and one of remedy, with the right exit code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import runtime.measuring.profile.profile
from coarsen.reading import read_in_process as read_apart
from coarsen.reading.model.read import save_model
from pipeline import api
from pipeline.cli.main import run_command_line
from pipeline.core.errors import MeasurementError
from tests.e2e.conftest import QUICK, Warm, options, snapshot
from tests.models import broadcast_model, two_towers

pytestmark = pytest.mark.usefixtures("read_here")

Fails = Callable[..., tuple[str, str]]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Return a function that runs a command, which must fail with a code, and gives the lines of cause and remedy."""

    def command(code: int, *arguments: str) -> tuple[str, str]:
        capsys.readouterr()
        found = run_command_line(list(arguments))
        out, err = capsys.readouterr()
        assert found == code, err
        assert out == ""
        cause, fix = [line for line in err.splitlines() if line.strip()][-2:]
        assert cause.startswith("error: ")
        assert fix.startswith("  fix: ")
        assert err.count("error:") == 1
        assert "Traceback" not in err
        return cause, fix

    return command


def broken_model(kind: str, good: Path, folder: Path) -> Path:
    """Return the path of a model that cannot be read."""
    path = folder / "broken.xml"
    if kind == "no IR":
        path.write_text("<html><body>not found</body></html>", encoding="utf-8")
    elif kind == "no XML":
        path.write_text("PK\x03\x04", encoding="utf-8")
    elif kind == "truncated weights":
        path.write_bytes(good.read_bytes())
        weights = good.with_suffix(".bin").read_bytes()
        path.with_suffix(".bin").write_bytes(weights[: len(weights) // 2])
    elif kind == "no weights":
        path.write_bytes(good.read_bytes())
    elif kind == "nothing to place":
        x = op.parameter([1, 4], name="x")
        ov.save_model(ov.Model([op.result(x)], [x], "empty"), path)
    elif kind == "empty file":
        path = folder / "broken.onnx"
        path.write_bytes(b"")
    return path


BROKEN = {
    "missing": "File not found",
    "no IR": "is not OpenVINO IR",
    "no XML": "is not OpenVINO IR",
    "truncated weights": "is truncated",
    "no weights": "is missing",
    "nothing to place": "has no operations to place",
    "empty file": "cannot read",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_model_that_cannot_be_read_ends_with_3(kind: str, model: Path, tmp_path: Path, fails: Fails) -> None:
    path = broken_model(kind, model, tmp_path)
    before = snapshot(tmp_path)
    places = ["--run", str(tmp_path / "runs" / "a"), "--tensorboard", str(tmp_path / "events")]
    cause, _ = fails(3, "tune", str(path), *places, *options(tmp_path / "stores" / "mine"))
    assert BROKEN[kind] in cause
    assert "broken" in cause
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("command", ["tune", "calibrate", "batch"])
def test_a_model_that_cannot_be_read_changes_nothing_that_was_there(
    command: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken_model("no IR", model, tmp_path)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(f"[[jobs]]\nmodels = [{json.dumps(str(path))}]\ndevices = ['CPU']\n", encoding="utf-8")
    out, store = tmp_path / "out", tmp_path / "store"
    (out / "notes").mkdir(parents=True)
    store.mkdir()
    before = snapshot(tmp_path)
    given = str(jobs) if command == "batch" else str(path)
    code = run_command_line([command, given, "--out", str(out), "--store", str(store)])
    assert code == 3, capsys.readouterr().err
    if command == "batch":  # its table and page tell of the failed job; a worker has locked an entry of the store
        assert sorted(p.name for p in out.iterdir()) == ["batch.html", "jobs.json", "notes", "table.csv", "table.jsonl"]
    else:
        assert snapshot(tmp_path) == before


def test_a_calibration_of_a_model_that_cannot_be_read_leaves_no_folder(
    model: Path, tmp_path: Path, fails: Fails
) -> None:
    path = broken_model("no IR", model, tmp_path)
    before = snapshot(tmp_path)
    fails(3, "calibrate", str(path), "--out", str(tmp_path / "out"), "--store", str(tmp_path / "store"))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("command", ["coarsen", "search"])
def test_a_model_that_is_exported_anew_while_it_is_read_leaves_nothing_in_the_store(
    command: str, model: Path, tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*given: Any) -> dict[str, Any]:
        answer: dict[str, Any] = original(*given)
        save_model(two_towers(), path)
        return answer

    path, original = tmp_path / "model.xml", read_apart._run_command
    for suffix in (".xml", ".bin"):
        shutil.copy(model.with_suffix(suffix), path.with_suffix(suffix))
    monkeypatch.setattr(read_apart, "_run_command", ask)
    arguments = {"coarsen": ["--run", str(tmp_path / "run"), "--store", str(tmp_path / "store")]}
    cause, fix = fails(3, command, str(path), *arguments.get(command, ["--topology", "equal:2"]))
    assert "model.xml changed while it was being read" in cause
    assert "Run again" in fix
    assert {p.name for p in tmp_path.iterdir()} == {"model.xml", "model.bin"}


@pytest.mark.parametrize("command", ["coarsen", "search"])
def test_a_small_file_of_huge_constants_ends_with_3(command: str, tmp_path: Path, fails: Fails) -> None:
    path = tmp_path / "bomb.xml"
    save_model(broadcast_model(12000), path)
    arguments = {"coarsen": ["--run", str(tmp_path / "run"), "--store", str(tmp_path / "store")]}
    cause, fix = fails(3, command, str(path), *arguments.get(command, ["--topology", "equal:2"]))
    assert "576 MB" in cause
    assert "coarsen.growth_bytes" in fix


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": np.zeros((1, 16), np.float32)}, "y is no input; no array for x"),
        ({"x": np.zeros((1, 16))}, "x is float32, the array is float64"),
        ({"x": np.zeros((1, 15), np.float32)}, "x has the shape [1,16], the array [1,15]"),
    ],
)
def test_arrays_that_fit_no_input_end_with_2(
    arrays: dict[str, Any], words: str, model: Path, tmp_path: Path, fails: Fails
) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, **arrays)
    places = ["--run", str(tmp_path / "run"), "--store", str(tmp_path / "store")]
    cause, fix = fails(2, "coarsen", str(model), "--input", str(data), *places)
    assert words in cause
    assert "Its inputs: x float32 [1,16]" in cause
    assert "numpy.savez" in fix
    assert list(tmp_path.iterdir()) == [data]


def test_a_model_that_was_mended_is_run_in_the_same_directory(copy: Warm, tmp_path: Path, fails: Fails) -> None:
    path = broken_model("truncated weights", copy.model, tmp_path)
    arguments = ["coarsen", str(path), "--run", str(tmp_path / "again"), *options(copy.store)]
    fails(3, *arguments)
    path.with_suffix(".bin").write_bytes(copy.model.with_suffix(".bin").read_bytes())
    assert run_command_line(arguments) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "cause", "fix"),
    [
        (["--devices", "TPU"], 4, "Unknown device TPU", "This machine has"),
        (["--devices", "CPU,,!"], 2, "'!' is not a valid device", "Write"),
        (["--devices", "CPU,CPU"], 2, "named twice: CPU", "NAME=CPU"),
        (["--devices", "A=CPU{INFERENCE_NUM_THREAD=1}"], 2, "INFERENCE_NUM_THREAD", "INFERENCE_NUM_THREADS"),
        (["--devices", "none.toml"], 2, "none.toml does not exist", ""),
        (["--budget", "0"], 2, "must be above 0 s", "60s"),
        (["--budget", "soon"], 2, "is not a duration", "120s"),
        (["--set", "coarsen.metis.part=3"], 2, "'coarsen.metis.part'", "Did you mean 'coarsen.metis.parts'?"),
        (["--set", "coarsen.mtis.parts=3"], 2, "'mtis'", "Did you mean 'metis'?"),
        (["--set", "coarsen.use=[metis,fuze]"], 2, "'fuze'", "Did you mean 'fuse'?"),
        (["--set", "coarsen.use=[]", "--set", "coarsen.raw=true"], 2, "coarsen.use is empty", "Name at least one"),
        (["--set", "place.use=[]"], 2, "place.use is empty", "Name at least one"),
        (["--set", "place.evaluations=0"], 2, "place.evaluations = 0", ""),
        (["--set", "coarsen.metis.parts"], 2, "is not key=value", "--set"),
        (["--set", "coarsen.use=metis", "--set", "coarsen.metis.parts=0"], 2, "0 parts", ""),
        (["--config", "none.toml"], 2, "none.toml cannot be read", "TOML"),
        (["--input", "none.npz"], 2, "none.npz cannot be read", "--input"),
        (["--devics", "CPU"], 2, "--devices", "--help"),
        (["--seed", "x"], 2, "'x' is not a valid integer", "--help"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(
    arguments: list[str], code: int, cause: str, fix: str, model: Path, tmp_path: Path, fails: Fails
) -> None:
    store, folder = tmp_path / "store", tmp_path / "run"
    said = fails(code, "tune", str(model), "--run", str(folder), "--store", str(store), *arguments)
    assert cause in said[0]
    assert fix in said[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["tunes", "m.xml"], "Did you mean 'tune'?"),
        (["xyzzy"], "Unknown command 'xyzzy'"),
        (["explain", "coarsen.mtis"], "Unknown coarsen implementation 'mtis'"),
        (["explain", "coarsn"], "Unknown part 'coarsn'"),
        (["list", "coarsn"], "Unknown stage 'coarsn'"),
        (["zoo", "export", "resnet5", "-o", "x.xml"], "Unknown model 'resnet5'"),
        (["tune"], "Missing argument 'MODEL'"),
        (["embed"], "Missing option '--run'"),
        (["embed", "--run", "nowhere"], "nowhere is not a run directory"),
        (["cache", "why", "coarsen", "--run", "nowhere"], "nowhere is not a run directory"),
        (["batch", "nowhere.toml"], "nowhere.toml cannot be read"),
    ],
)
def test_a_wrong_command_or_name_ends_with_2(
    arguments: list[str], cause: str, fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = fails(2, *arguments)
    assert cause in said[0]
    assert list(tmp_path.iterdir()) == []


def test_all_wrong_keys_of_a_command_are_named_at_once(model: Path, tmp_path: Path, fails: Fails) -> None:
    wrong = ["--set", "place.evaluation=1", "--set", "embd.use=gcn"]
    cause, _ = fails(2, "tune", str(model), "--store", str(tmp_path / "s"), "--run", str(tmp_path / "r"), *wrong)
    assert "Did you mean 'place.evaluations'?" in cause
    assert "Did you mean 'embed.use'?" in cause


@pytest.mark.parametrize("what", ["run", "store"])
def test_a_folder_that_cannot_be_written_ends_with_2(what: str, model: Path, tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    places = {"run": tmp_path / "run", "store": tmp_path / "store"} | {what: tmp_path / "file" / "below"}
    cause, fix = fails(2, "coarsen", str(model), "--run", str(places["run"]), *options(places["store"]))
    assert f"{places[what]}" in cause
    assert "cannot be written" in cause
    assert "hoose" in fix or "use another" in fix
    assert not (tmp_path / "run").exists()


def test_the_run_directory_of_another_model_is_refused_and_left_alone(copy: Warm, tmp_path: Path, fails: Fails) -> None:
    other = tmp_path / "other.xml"
    x = op.parameter([1, 4], name="x")
    ov.save_model(ov.Model([op.result(op.relu(x))], [x], "other"), other)
    before = (copy.run / "manifest.json").read_bytes()
    cause, _ = fails(2, "tune", str(other), "--run", str(copy.run), *options(copy.store))
    assert "is a run of another model" in cause
    assert (copy.run / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("manifest", "cause"),
    [
        ('{"schema": 99}', "schema 99"),
        ('{"schema": 1}', "is damaged"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("", "is damaged"),
    ],
)
@pytest.mark.parametrize("command", ["tune", "embed"])
def test_a_run_directory_of_another_schema_or_damaged_is_refused(
    manifest: str, cause: str, command: str, copy: Warm, fails: Fails
) -> None:
    (copy.run / "manifest.json").write_text(manifest, encoding="utf-8")
    model = [str(copy.model)] if command == "tune" else []
    said, fix = fails(2, command, *model, "--run", str(copy.run), *options(copy.store))
    assert cause in said
    assert "another" in fix
    assert (copy.run / "manifest.json").read_text(encoding="utf-8") == manifest


def test_a_run_that_fails_leaves_no_result_of_another_beside_its_manifest(
    copy: Warm, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["tune", str(copy.model), "--run", str(copy.run), *options(copy.store)]
    (copy.run / "notes.txt").write_text("mine", encoding="utf-8")
    before = snapshot(copy.run)
    fails(4, *arguments, "--devices", "TPU")
    assert snapshot(copy.run) == before
    monkeypatch.setattr(
        runtime.measuring.profile.profile, "_refused_by_device", lambda model, device, settings: ("sum",)
    )
    fails(4, *arguments, "--devices", "CPU,B=CPU{INFERENCE_NUM_THREADS=1}")
    manifest = json.loads((copy.run / "manifest.json").read_text(encoding="utf-8"))
    assert [d["name"] for d in manifest["machine"]["devices"]] == ["CPU", "B"]
    assert sorted(snapshot(copy.run)) == ["manifest.json", "notes.txt"]
    monkeypatch.undo()
    assert run_command_line(arguments) == 0
    assert set(snapshot(copy.run)) == set(before)


def test_stages_run_again_alone_leave_their_result(copy: Warm) -> None:
    before = set(snapshot(copy.run))
    assert run_command_line(["coarsen", str(copy.model), "--run", str(copy.run), *options(copy.store)]) == 0
    assert set(snapshot(copy.run)) == before
    assert (
        run_command_line(["coarsen", str(copy.model), "--run", str(copy.run), *options(copy.store, measure__starts=2)])
        == 0
    )
    assert set(snapshot(copy.run)) == {"manifest.json"}


def test_operations_that_no_device_runs_end_with_4_and_are_all_listed(
    copy: Warm, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"A": ("left0", "left1", "sum"), "B": ("left1", "sum", "right0")}
    monkeypatch.setattr(
        runtime.measuring.profile.profile, "_refused_by_device", lambda model, device, settings: answers[device.name]
    )
    unlike = ",".join(f"{name}=CPU{{INFERENCE_NUM_THREADS={n}}}" for name, n in (("A", 1), ("B", 2)))
    arguments = [*options(copy.store, profile__inferences=4), "--devices", unlike]
    cause, fix = fails(4, "tune", str(copy.model), "--run", str(copy.run), *arguments)
    assert "2 operation(s) run on none of A, B: left1, sum." in cause
    assert "Add a device" in fix
    assert not list((copy.store / "tmp").iterdir())


@pytest.mark.parametrize(
    ("kind", "code", "cause"),
    [("wrong_output", 6, "No candidate gives the reference outputs"), ("timeout", 5, "No candidate could be measured")],
)
def test_no_valid_measurement_ends_with_6_or_5(
    kind: str, code: int, cause: str, copy: Warm, tmp_path: Path, fails: Fails
) -> None:
    placement = json.loads((copy.run / "placement.json").read_text(encoding="utf-8"))["placement"]
    failure = {"kind": kind, "message": "output_0 is off"}
    records = [{"placement": dict.fromkeys(placement, d), "failed": failure} for d in "AB"]
    (tmp_path / "records.json").write_text(json.dumps({"records": records}), encoding="utf-8")
    replayed = {"measure__use": "replay", "measure__replay__path": tmp_path / "records.json", "place__use": "single"}
    arguments = ["tune", str(copy.model), "--run", str(tmp_path / "new"), *options(copy.store, **replayed)]
    said, _ = fails(code, *arguments)
    assert cause in said
    assert "output_0 is off" in said
    assert not (tmp_path / "new" / "result.json").exists()


DEPLOYING = {"emit": ["--to", "python"], "where": [], "compare": []}


def on_run(command: str, folder: Path, other: Path) -> list[str]:
    """Return the arguments of a command after a run that take a folder for one; compare takes another run before it."""
    before = {"where": ["--run"], "compare": [str(other)]}.get(command, [])
    return [command, *before, str(folder), *DEPLOYING[command]]


@pytest.mark.parametrize("command", DEPLOYING)
def test_a_folder_that_is_no_run_ends_with_2(command: str, warm: Warm, tmp_path: Path, fails: Fails) -> None:
    cause, fix = fails(2, *on_run(command, tmp_path / "nowhere", warm.run))
    assert any(f"{tmp_path / 'nowhere'} {words}" in cause for words in ("is not a run directory", "has no result"))
    assert "tune" in fix
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", DEPLOYING)
def test_a_run_that_is_not_finished_ends_with_2(command: str, copy: Warm, fails: Fails) -> None:
    for name in ("result.json", "placement.json", "placed.xml"):
        (copy.run / name).unlink()
    before = snapshot(copy.run)
    _, fix = fails(2, *on_run(command, copy.run, copy.run))
    assert "placewright measure" in fix
    assert snapshot(copy.run) == before


@pytest.mark.parametrize(
    ("arguments", "code", "cause", "fix"),
    [
        (["emit", "RUN", "--to", "pyton"], 2, "Unknown target 'pyton'", "Did you mean 'python'?"),
        (["emit", "RUN"], 2, "Missing option '--to'", "--help"),
        (["emit", "RUN", "--to", "cpp", "--out", "MODEL/out"], 2, "cannot be written", "--out"),
        (["where"], 2, "No model and no run given", "where MODEL"),
        (["where", "MODEL", "--device", "CPPU"], 4, "Unknown device CPPU", "This machine has CPU"),
        (["where", "MODEL", "--device", "cpu"], 2, "'cpu' is not a valid device", "Write CPU"),
        (["where", "MODEL", "--device", "AUTO:GPU,CPU"], 4, "Unknown device GPU", "This machine has CPU"),
        (["where", "MODEL", "--device", "A=CPU{NUM_STREAM=1}"], 2, "'NUM_STREAM'", "NUM_STREAMS"),
        (["where", "MODEL", "--shape", "y=1x2"], 2, "'y=1x2'", ""),
        (["where", "nowhere.xml"], 3, "File not found", ""),
        (["where", "--run", "RUN", "--device", "CPU"], 2, "A run already determines", "Remove"),
        (["measure", "--run", "RUN", "--p99", "fast"], 2, "--p99 'fast' is not a duration", "20ms"),
        (["measure", "--run", "RUN", "--max-memory", "2XB"], 2, "'2XB' is not a size", "2GB"),
        (["measure", "--run", "RUN", "--objective", "speed"], 2, "'speed' is not one of", ""),
        (["measure", "--run", "RUN", "--set", "measure.percentile=101"], 2, "at most 100", ""),
        (["compare", "RUN", "RUN", "--least", "two"], 2, "'two' is not a percentage or share", "such as 2%"),
        (["compare", "RUN"], 2, "Missing argument 'RUN_B'", "--help"),
    ],
)
def test_what_is_wrong_after_a_run_is_said_in_one_line(
    arguments: list[str], code: int, cause: str, fix: str, warm: Warm, fails: Fails
) -> None:
    before = snapshot(warm.run)
    names = {"RUN": str(warm.run), "MODEL": str(warm.model)}
    given = [names.get(a, a.replace("MODEL/", f"{warm.model}/")) for a in arguments]
    said = fails(code, *given)
    assert cause in said[0]
    assert fix in said[1]
    assert snapshot(warm.run) == before


@pytest.mark.parametrize("kind", ["no IR", "truncated weights", "empty file"])
def test_where_cannot_tell_of_a_model_that_cannot_be_read(kind: str, model: Path, tmp_path: Path, fails: Fails) -> None:
    cause, _ = fails(3, "where", str(broken_model(kind, model, tmp_path)))
    assert BROKEN[kind] in cause


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let every run end in an error."""

    def advance(*_: Any, **__: Any) -> api.Advance:
        raise error

    monkeypatch.setattr(api, "advance_run", advance)


def test_what_nobody_foresaw_is_called_a_bug_and_shows_its_traceback_only_on_demand(
    warm: Warm, fails: Fails, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, KeyError("two\nlines"))
    arguments = ["tune", str(warm.model), "--run", str(warm.run), *options(warm.store)]
    cause, fix = fails(1, *arguments)
    assert "This is a bug in placewright: KeyError" in cause
    assert "--debug" in fix
    assert run_command_line([*arguments, "--debug"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_cause_of_several_lines_is_said_in_one(warm: Warm, fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, MeasurementError("the device\n  said this", "Do\nthat."))
    arguments = ["tune", str(warm.model), "--run", str(warm.run), *options(warm.store)]
    assert fails(5, *arguments) == ("error: the device said this", "  fix: Do that.")


def test_an_interruption_ends_with_130_and_says_how_to_go_on(
    warm: Warm, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    cause, fix = fails(130, "tune", str(warm.model), "--run", str(warm.run), *options(warm.store))
    assert "Interrupted" in cause
    assert "same command again" in fix


def test_the_quick_settings_of_these_tests_are_real_keys() -> None:
    from pipeline.settings.config import Settings

    Settings().updated(QUICK, "the tests")


ABSENT = "absent.onnx"
READING = {
    "tune": ["tune", ABSENT, "--out", "run"],
    "tune --dry-run": ["tune", ABSENT, "--out", "run", "--dry-run"],
    "coarsen": ["coarsen", ABSENT, "--out", "run"],
    "batch": ["batch", "jobs.toml"],
    "batch of processes": ["batch", "damaged.toml"],
    "calibrate": ["calibrate", ABSENT, "--out", "fit"],
    "search": ["search", ABSENT, "--topology", "equal:2", "--evaluations", "4"],
    "search of a graph": ["search", "absent.json", "--topology", "equal:2", "--evaluations", "4"],
    "simulate": ["simulate", ABSENT, "--topology", "equal:2", "--placement", "placement.json"],
    "bound": ["bound", ABSENT, "--topology", "equal:2"],
    "split": ["split", ABSENT, "--placement", "placement.json", "--devices", "CPU", "--out", "split"],
    "where": ["where", ABSENT],
    "bench hsdag": ["bench", "hsdag", "--quick", "--models", ABSENT, "--out", "bench"],
    "bench hsdag of a folder": ["bench", "hsdag", "--quick", "--models", "absent/", "--out", "bench"],
    "bench league": ["bench", "league", "--quick", "--instances", "absent.json", "--out", "bench"],
    "bench league of a model": ["bench", "league", "--quick", "--instances", "damaged.xml", "--out", "bench"],
}


@pytest.mark.parametrize("name", READING)
def test_every_command_ends_with_3_where_its_model_cannot_be_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store"))
    Path("placement.json").write_text('{"a": "CPU"}', encoding="utf-8")
    Path("damaged.xml").write_text("no model", encoding="utf-8")
    Path("jobs.toml").write_text(f'[[jobs]]\nmodels = ["{ABSENT}"]\n', encoding="utf-8")
    Path("damaged.toml").write_text('[[jobs]]\nmodels = ["damaged.xml"]\ndevices = ["CPU"]\n', encoding="utf-8")
    assert run_command_line(READING[name]) == 3, capsys.readouterr().err


def test_a_batch_of_bad_models_and_other_failures_ends_with_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.toml").write_text(f'[[jobs]]\nmodels = ["{ABSENT}", "zoo:nothing"]\n', encoding="utf-8")
    assert run_command_line(["batch", "jobs.toml", "--store", str(tmp_path / "store")]) == 5
