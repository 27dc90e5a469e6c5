"""The command line from a model file to a result: stage by stage and at once, again, changed, damaged."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from coarsen.reading.model.read import save_model
from pipeline import tune
from pipeline.cli.main import COMMANDS, run_command_line
from pipeline.core.deadline import Deadline
from pipeline.placing.records import SearchRecord
from pipeline.result.result import Result, write_placed
from pipeline.settings import registry
from pipeline.settings.config import SECTIONS, Settings
from pipeline.shared.payload import from_json
from pipeline.store.store import Store
from runtime.measuring.contest.hetero import Hetero
from tests.e2e.conftest import QUICK, Warm, damage, options, snapshot
from tests.e2e.test_calibrate import Lazy
from tests.models import two_towers
from tests.open_models import any_frames

pytestmark = pytest.mark.usefixtures("read_here")

Ran = Callable[..., Any]
STAGES = ["read", "kernels", "coarsen", "profile", "embed", "group", "place", "measure"]
RESULT_KEYS = {
    "": {"schema", "model", "devices", "fingerprint", "versions", "seed", "stages", "candidates", "best", "verdict"}
    | {"speedup_over_best_single", "files"},
    "model": {"path", "sha256"},
    "stages": {"stage", "name", "key", "ran", "why", "seconds"},
    "candidates": {"name", "placer", "baseline", "devices_used", "subgraphs", "latency_s", "samples_s", "failed"},
    "latency_s": {"median", "low", "high", "fastest", "slowest"},
    "speedup_over_best_single": {"ratio", "low", "high", "starts"},
}


def stages(document: Any) -> dict[str, Any]:
    return {s["stage"]: s for s in document["stages"]}


def test_tune_gives_the_keys_and_artifacts_of_the_five_stages_and_runs_nothing_again(
    warm: Warm, tmp_path: Path, ran: Ran
) -> None:
    chain = json.loads((warm.run / "manifest.json").read_text(encoding="utf-8"))["stages"]
    before = snapshot(warm.store)
    document = ran("tune", str(warm.model), "--run", str(tmp_path / "tuned"), *options(warm.store))
    tuned = stages(document)
    assert list(tuned) == STAGES
    assert {s: r["key"] for s, r in tuned.items()} == {s: r["key"] for s, r in chain.items()}
    assert {(s["ran"], s["why"]) for s in tuned.values()} == {(False, "in the store")}
    assert {k: v for k, v in snapshot(warm.store).items() if v is not None} == {
        k: v for k, v in before.items() if v is not None
    }
    for name in ("placed.xml", "placed.bin", "placement.json"):
        assert (tmp_path / "tuned" / name).read_bytes() == (warm.run / name).read_bytes()


def test_the_first_run_says_of_every_stage_that_it_never_ran(warm: Warm) -> None:
    store = Store(warm.store)
    found = [store.find(key) for key in store.list_keys()]
    why = {e.parts["stage"]: e.provenance["why"] for e in found if e is not None}
    assert why["read"] == why["profile"] == why["measure"] == "never run before"


def test_the_result_has_the_documented_keys_and_is_what_json_prints(warm: Warm, ran: Ran) -> None:
    document = ran("tune", str(warm.model), "--run", str(warm.run), *options(warm.store))
    assert document == json.loads((warm.run / "result.json").read_text(encoding="utf-8"))
    assert document["schema"] == "placewright.result/1"
    assert RESULT_KEYS[""] <= set(document)
    assert set(document["model"]) == RESULT_KEYS["model"]
    assert all(set(s) == RESULT_KEYS["stages"] for s in document["stages"])
    assert all(set(c) >= RESULT_KEYS["candidates"] for c in document["candidates"])
    assert all(set(c["latency_s"]) == RESULT_KEYS["latency_s"] for c in document["candidates"] if not c["failed"])
    assert set(document["speedup_over_best_single"]) == RESULT_KEYS["speedup_over_best_single"]
    assert document["best"] in [c["name"] for c in document["candidates"]]
    assert {c["name"] for c in document["candidates"] if c["baseline"]} == {"A", "B"}
    assert all((warm.run / name).is_file() for name in document["files"].values())


def test_the_result_goes_to_standard_output_and_what_ran_to_standard_error(
    warm: Warm, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["tune", str(warm.model), "--run", str(warm.run), *options(warm.store)]) == 0
    out, err = capfd.readouterr()
    assert "candidate" in out
    assert f"Written to {warm.run}" in out
    assert "not needed" not in out
    assert all("not needed" in line for line in err.splitlines())
    assert run_command_line(["tune", str(warm.model), "--run", str(warm.run), *options(warm.store), "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["best"]
    assert all("not needed" in line for line in err.splitlines())


def test_the_table_says_of_every_search_what_it_came_to(warm: Warm, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["tune", str(warm.model), "--run", str(warm.run), *options(warm.store), "--verbose"]) == 0
    number = r"[0-9.]+"
    said = capsys.readouterr().out
    assert re.search(r"greedy simulated \d+ placements, of which .* measured\. ", said)
    assert re.search(rf"The best, .*, (took|is predicted to take) {number} ms", said)
    assert re.search(rf"greedy 1 +{number} +[AB] \d+ %, [AB] \d+ %", said)


def test_the_verdict_comes_before_a_few_notes(
    warm: Warm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cli.stages.MOST_NOTES", 1)
    told = []
    for more in ((), ("--verbose",)):
        assert run_command_line(["tune", str(warm.model), "--run", str(warm.run), *options(warm.store), *more]) == 0
        lines = capsys.readouterr().out.replace("\n  ", " ").splitlines()
        verdict = next(i for i, line in enumerate(lines) if line.startswith(Result.load(warm.run).record.verdict[:40]))
        told.append([line for line in lines if line.startswith("- ")])
        assert all(lines.index(note) > verdict for note in told[-1])
    assert told[0][:1] == told[1][:1]
    assert told[0][1:] == [f"- {len(told[1]) - 1} more notes: --verbose, or in result.json, report.html."]


def test_stage_commands_print_tables_and_sentences_and_the_same_as_json(
    warm: Warm, ran: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--run", str(warm.run), "--store", str(warm.store)]
    words = {
        "coarsen": r"after +nodes +edges\s+─+\s+raw +\d+ +\d+",
        "embed": r"\d+ nodes with \d+ features and an embedding of width \d+ each\.",
        "group": r"The nodes form \d+ groups\.",
        "place": r"greedy 1 +[0-9.]+ +(measured|predicted) +A \d+",
    }
    for stage, pattern in words.items():
        arguments = [stage, str(warm.model), *options(warm.store), *at[:2]] if stage == "coarsen" else [stage, *at]
        assert run_command_line(arguments) == 0
        out, err = capsys.readouterr()
        assert re.search(pattern, out), out
        assert not re.search(pattern, err), err
        assert "[{" not in out
        assert "': " not in out
        assert ran(*arguments)["stage"] == stage


def left_by_place(warm: Warm, name: str) -> list[dict[str, Any]]:
    """Return the rows of a file that the place stage of the run directory left."""
    key = json.loads((warm.run / "manifest.json").read_text(encoding="utf-8"))["stages"]["place"]["key"]
    entry = Store(warm.store).find(key)
    assert entry is not None
    found: list[dict[str, Any]] = json.loads(entry.path(name).read_text(encoding="utf-8"))
    return found


def test_every_reward_asks_whom_it_says(copy: Warm, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Lazy()
    monkeypatch.setattr(Hetero, "bind", lambda _, subject: devices.bind(subject))
    arguments = ["place", "--run", str(copy.run), "--store", str(copy.store), "--set", "measure.use=hetero"]
    arguments += ["--set", "place.measurements=5", "--set", "place.rounds=2"]

    ran(*arguments, "--reward", "simulated")
    assert devices.asked == []
    assert [(r["reward"], r["measurements"], r["measured_s"]) for r in left_by_place(copy, "searches.json")] == [
        ("simulated", 0, None)
    ]

    document = ran(*arguments, "--reward", "hybrid")
    (row,) = left_by_place(copy, "searches.json")
    assert len(devices.asked) == len(set(devices.asked)) == sum(r["measurements"] for r in row["rounds"]) == 5
    assert row["used"] == 5 - sum(r["failed"] for r in row["rounds"])
    assert row["refused"] == "refused: gone"
    assert row["evaluations"] <= 20
    assert from_json(SearchRecord, row) == row
    values = [c["value_s"] for c in document["candidates"]]
    assert values[: row["used"]] == sorted(values[: row["used"]])
    assert not ran(*arguments, "--reward", "hybrid")["ran"]

    del devices.asked[:]
    ran(*arguments, "--reward", "measured", "--set", "place.evaluations=7")
    (row,) = left_by_place(copy, "searches.json")
    assert 0 < row["evaluations"] == row["measurements"] <= 7
    assert row["measured_s"] == row["value_s"]
    assert len(devices.asked) == len(set(devices.asked)) <= 7


def test_a_placer_with_a_recipe_of_its_own_places_the_same_operations(copy: Warm, ran: Ran) -> None:
    operations = frozenset(Result.load(copy.run).placement)
    arguments = ["place", "--run", str(copy.run), "--store", str(copy.store), "--reward", "simulated"]
    ran(*arguments, "--set", "place.use=[greedy,hsdag_paper]", "--set", "place.evaluations=6")
    rows = left_by_place(copy, "candidates.json")
    assert {row["placer"] for row in rows} == {"greedy", "hsdag_paper"}
    assert {frozenset(row["placement"]) for row in rows} == {operations}


@pytest.mark.usefixtures("made_up_profile")
def test_another_number_of_parts_runs_again_only_what_depends_on_it(copy: Warm, ran: Ran) -> None:
    arguments = ["tune", str(copy.model), "--run", str(copy.run)]
    ran(*arguments, *options(copy.store, coarsen__use="metis", coarsen__metis__parts=2))
    document = ran(*arguments, *options(copy.store, coarsen__use="metis", coarsen__metis__parts=3))
    again = {s for s, row in stages(document).items() if row["ran"]}
    assert again == {"coarsen", "embed", "group", "place", "measure"}
    why = {s: row["why"] for s, row in stages(document).items()}
    assert re.match(r"changed: params\.use: .*'parts': 2.* -> .*'parts': 3", why["coarsen"])
    assert why["embed"] == "changed: new coarsen"
    assert why["read"] == why["profile"] == "in the store"


def test_another_seed_changes_every_key_but_of_what_holds_for_all_seeds(warm: Warm, ran: Ran) -> None:
    rows = ran("tune", str(warm.model), "--run", str(warm.run), "--dry-run", "--seed", "1", *options(warm.store))
    stay = {row["stage"] for row in rows if not row["would_run"]}
    assert stay == {"read", "kernels", "coarsen", "profile"} & {row["stage"] for row in rows}
    assert all(row["why"].startswith("changed: seed: 0 -> 1") for row in rows if row["would_run"])


def test_a_copy_of_the_model_elsewhere_runs_nothing_again(warm: Warm, tmp_path: Path, ran: Ran) -> None:
    for suffix in (".xml", ".bin"):
        shutil.copy(warm.model.with_suffix(suffix), tmp_path / f"renamed{suffix}")
    rows = ran("tune", str(tmp_path / "renamed.xml"), "--run", str(tmp_path / "r"), "--dry-run", *options(warm.store))
    assert not any(row["would_run"] for row in rows)


@pytest.mark.parametrize("named", ["MODEL", "zoo:resnet50"])
def test_a_dry_run_writes_nothing_at_all(model: Path, tmp_path: Path, ran: Ran, named: str) -> None:
    named = str(model) if named == "MODEL" else named
    rows = ran("tune", named, "--run", str(tmp_path / "run"), "--dry-run", *options(tmp_path / "store"))
    assert [row["stage"] for row in rows] == STAGES
    assert {(row["would_run"], row["why"]) for row in rows} == {(True, "never run before")}
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_artifact_is_made_again_and_both_forecast_and_run_say_so(copy: Warm, ran: Ran) -> None:
    key = stages(json.loads((copy.run / "result.json").read_text(encoding="utf-8")))["coarsen"]["key"]
    damage(copy.store, key, "grouping.npz")
    row = ran("cache", "why", "coarsen", "--run", str(copy.run), "--store", str(copy.store))
    assert row["would_run"]
    assert row["why"].startswith("the store entry is damaged: grouping.npz of store entry")
    document = ran("tune", str(copy.model), "--run", str(copy.run), *options(copy.store))
    assert [s for s, r in stages(document).items() if r["ran"]] == ["coarsen"]
    assert stages(document)["coarsen"]["why"] == row["why"]
    assert not ran("cache", "why", "coarsen", "--run", str(copy.run), "--store", str(copy.store))["would_run"]


def test_cache_why_speaks_in_one_line(warm: Warm, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["cache", "why", "place", "--run", str(warm.run), "--store", str(warm.store)]) == 0
    assert re.fullmatch(r"place [0-9a-f]{12}: would not run; in the store\n", capsys.readouterr().out)


def test_cache_why_and_a_dry_run_name_the_package_that_was_upgraded(
    warm: Warm, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: metadata.version(name) for name in ("openvino", "onnxruntime", "onnx", "placewright")}
    monkeypatch.setattr(metadata, "version", {**known, "openvino": "2099.1"}.__getitem__)
    asked = ["--run", str(warm.run), "--store", str(warm.store)]
    row = ran("cache", "why", "read", *asked)
    rows = ran("tune", str(warm.model), "--dry-run", *asked)
    assert row == rows[0]
    assert (row["would_run"], row["why"]) == (True, f"changed: openvino {known['openvino']} -> 2099.1")


def test_the_store_is_listed_and_swept_by_age(copy: Warm, ran: Ran) -> None:
    listed = ran("cache", "ls", "--store", str(copy.store))
    assert sorted(r["stage"] for r in listed) == sorted(STAGES)
    young = ran("cache", "gc", "--store", str(copy.store))
    assert young["removed"] == []
    would = ran("cache", "gc", "--store", str(copy.store), "--older-than", "0", "--dry-run")
    assert sorted(would["removed"]) == sorted(r["key"] for r in listed)
    assert would["bytes"] == sum(r["bytes"] for r in listed)
    assert ran("cache", "ls", "--store", str(copy.store)) == listed
    assert ran("cache", "gc", "--store", str(copy.store), "--older-than", "0")["removed"] == would["removed"]
    assert ran("cache", "ls", "--store", str(copy.store)) == []


def coarse(ran: Ran, warm: Warm, folder: Path, *more: str) -> list[dict[str, Any]]:
    document = ran("coarsen", str(warm.model), "--run", str(folder), "--store", str(warm.store), *more)
    found: list[dict[str, Any]] = document["nodes"]
    return found


def test_a_chain_of_coarseners_runs_in_the_order_given(copy: Warm, tmp_path: Path, ran: Ran) -> None:
    chain = ["--set", "coarsen.use=[fold,colocate,metis]", "--set", "coarsen.metis.parts=2"]
    counts = coarse(ran, copy, tmp_path / "chain", *chain)
    assert [c["name"] for c in counts] == ["raw", "fold", "colocate", "metis"]
    assert counts[-1]["nodes"] == 2
    nodes = [c["nodes"] for c in counts]
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[1] == nodes[0] - 4  # four weights, each into the product that reads it


def test_raw_keeps_weights_as_operations(copy: Warm, tmp_path: Path, ran: Ran) -> None:
    identity = ["--set", "coarsen.use=identity"]
    folded = coarse(ran, copy, tmp_path / "folded", *identity)
    raw = coarse(ran, copy, tmp_path / "raw", *identity, "--raw")
    assert [c["name"] for c in raw] == ["raw", "identity"]
    assert raw[-1]["nodes"] == raw[0]["nodes"]
    assert folded[-1]["nodes"] == raw[-1]["nodes"] - 4


def split(warm: Warm, folder: Path) -> Result:
    """Write into `folder` the result of a run that places one tower on either device."""
    result = Result.load(warm.run)
    read = Store(warm.store).find(stages(result.document)["read"]["key"])
    assert read is not None
    names = list(result.placement)
    folder.mkdir()
    row = {
        "name": "split",
        "target": "HETERO:" + ",".join(d["openvino_name"] for d in result.document["devices"]),
        "properties": {"EXCLUSIVE_ASYNC_REQUESTS": "NO"},
        "devices": result.document["devices"],
        "placement": {name: "B" if name.startswith("left") else "A" for name in names},
    }
    write_placed(folder, read, names, row, "0" * 64)
    return Result(folder, result.record)


def plain_openvino(folder: Path) -> ov.CompiledModel:
    """Return the placed model compiled as the README says, by OpenVINO alone."""
    core, document = ov.Core(), json.loads((folder / "placement.json").read_text(encoding="utf-8"))
    for device in document["devices"].values():
        if device["openvino_name"] != device["plugin"]:
            plugin = device["plugin"].split(".")[0].lower()
            core.register_plugin(f"openvino_intel_{plugin}_plugin", device["openvino_name"])
        core.set_property(device["openvino_name"], device["properties"])
    model = core.read_model(folder / "placed.xml")
    if document["placement"] and document["target"].startswith("HETERO"):
        for operation in model.get_ops():
            device = document["devices"][document["placement"][operation.get_friendly_name()]]
            operation.get_rt_info()["affinity"] = device["openvino_name"]
    return core.compile_model(model, document["target"], document["properties"])


def test_a_placed_model_gives_the_reference_outputs_in_plain_openvino_and_by_compile(
    warm: Warm, tmp_path: Path
) -> None:
    x = np.linspace(-1.0, 1.0, 16, dtype=np.float32)[None]
    core = ov.Core()
    reference = core.compile_model(core.read_model(warm.model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x])[0]
    result = split(warm, tmp_path / "split")
    for compiled in (plain_openvino(result.path), result.compile()):
        assert sorted(compiled.get_property("EXECUTION_DEVICES")) == ["CPU_A", "CPU_B"]
        assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") > 1
        # One f32 product of 16 terms may be summed in another order.
        np.testing.assert_allclose(compiled([x])[0], reference, rtol=1e-5, atol=1e-6)


def test_a_placement_that_does_not_name_every_operation_is_refused(warm: Warm, tmp_path: Path) -> None:
    result = split(warm, tmp_path / "split")
    document = json.loads((result.path / "placement.json").read_text(encoding="utf-8"))
    del document["placement"]["sum"]
    (result.path / "placement.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match="sum"):
        result.compile()


def test_the_python_function_finds_what_the_command_line_left_in_the_store(warm: Warm, tmp_path: Path) -> None:
    devices = [options(warm.store)[1]]
    result = tune(warm.model, devices=devices, out=tmp_path / "run", store=warm.store, settings=QUICK)
    assert not any(s["ran"] for s in result.document["stages"])
    assert result.best.name == result.document["best"]
    assert set(result.placement.values()) <= {"A", "B"}


def test_every_part_is_explained_and_every_key_it_names_can_be_set(ran: Ran) -> None:
    parts = [*SECTIONS, *(f"{s}.{n}" for s in registry.STAGES for n in registry.implementation_table(s))]
    for part in parts:
        document = ran("explain", part)
        assert document["text"], part
        if part.partition(".")[0] in SECTIONS:
            Settings().updated({p["key"]: p["default"] for p in document["parameters"]}, part)


@pytest.mark.parametrize("command", ["devices", "zoo list", "list", "list coarsen", "doctor"])
def test_looking_around_works_for_people_and_for_programs(
    command: str, ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store"))
    assert ran(*command.split())
    assert run_command_line(command.split()) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([*command.split(), "--help"]) == 0
    assert "Usage: placewright" in capsys.readouterr().out


def test_a_budget_that_is_used_up_before_anything_is_compared_still_gets_an_answer(
    copy: Warm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Clock:
        after = staticmethod(lambda seconds: Deadline(time.monotonic()))

    where = ["--run", str(copy.run), "--store", str(copy.store), "--set", "measure.use=hetero"]
    where += ["--set", "place.reward=simulated"]
    assert run_command_line(["place", *where]) == 0
    monkeypatch.setattr("pipeline.api.Deadline", Clock)
    monkeypatch.setattr("runtime.measuring.profile.precisions.check_fits", lambda *_, **more: None)
    assert run_command_line(["measure", *where]) == 0
    result = json.loads((copy.run / "result.json").read_text(encoding="utf-8"))
    assert f"No time was left to compare candidates with {result['best']}" in result["verdict"]
    assert (copy.run / result["files"]["model"]).exists()
    assert result["verdict"].endswith("Accuracy was checked on generated inputs; pass your own with --input.")
    best = next(c for c in result["candidates"] if c["name"] == result["best"])
    assert best["accuracy"]["why_not"] == ""
    assert best["difference"] <= best["accuracy"]["limits"]["output"]
    said = capsys.readouterr().out
    assert "precision   outputs differ by" in said
    assert f"{best['name']}, {best['precision']}: outputs differ by" in said


@pytest.mark.usefixtures("made_up_profile")
@pytest.mark.parametrize(
    ("options_given", "verdict", "placed", "note"),
    [
        ([], "Assumed sizes: --shape 'x=128x20'; pass your own that way. ", "[128,20]", "(usual)"),
        (["--shape-range", "x=8|64*3x20"], "N", "[8..64,20]", "x=8x20 (25 %), x=64x20 (75 %)"),
    ],
)
def test_a_verdict_begins_with_the_sizes_that_nobody_gave(
    options_given: list[str], verdict: str, placed: str, note: str, tmp_path: Path, ran: Ran
) -> None:
    model, out = any_frames(tmp_path, {}), tmp_path / "run"
    document = ran("tune", str(model), "--out", str(out), *options_given, *options(tmp_path / "store"))
    assert document["verdict"].startswith(verdict)
    assert note in " ".join(document["notes"])
    assert str(ov.Core().read_model(out / "placed.xml").inputs[0].get_partial_shape()) == placed


@pytest.mark.parametrize(
    "option", ["x=1x[9..2]", "x=[2..9]x21", "y=[2..9]x20", "x=[2..9]x20x1", "x=20", "x=[2..9]x2|4x20"]
)
def test_a_range_that_does_not_fit_is_one_line_of_cause_and_one_of_remedy(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = any_frames(tmp_path, {})
    arguments = ["tune", str(model), "--shape-range", option, "--out", str(tmp_path / "run")]
    assert run_command_line([*arguments, *options(tmp_path / "store")]) == 2
    cause, remedy = capsys.readouterr().err.strip().splitlines()[-2:]
    assert cause.startswith("error: ")
    assert remedy.startswith("  fix: ")


@pytest.mark.parametrize("command", ["", "zoo", "cache"])
def test_a_group_without_a_command_lists_its_commands_whole(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(command.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Usage: placewright")
    assert "\nCommands:\n" in said.err
    assert "..." not in said.err.partition("\nCommands:\n")[2], "a sentence is cut off"


def test_brackets_and_colons_in_names_are_shown_as_they_stand(
    tmp_path: Path, made_up_profile: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = "[/x][bold]:cat:"  # the slash makes a folder of it
    model = two_towers(1)
    next(o for o in model.get_ordered_ops() if o.get_friendly_name() == "sum").set_friendly_name(f"sum{odd}")
    save_model(model, Path(f"{odd}.xml"))
    names = [o.get_friendly_name() for o in model.get_ordered_ops()]
    refusal = {"kind": "refused", "message": f"no kernel for sum{odd}"}
    answers: dict[str, Any] = {"A": {"samples_s": [0.1, 0.1]}, "B": {"failed": refusal}}
    records = [{"placement": dict.fromkeys(names, device), **answer} for device, answer in answers.items()]
    Path("records.json").write_text(json.dumps({"records": records}), encoding="utf-8")
    Path("jobs.toml").write_text(f'[[jobs]]\nmodels = ["none{odd}.xml"]\n', encoding="utf-8")
    chosen = {"measure__use": "replay", "measure__replay__path": "records.json", "place__use": "single"}
    store = ["--store", str(tmp_path / f"store{odd}")]

    def said(code: int, *arguments: str) -> str:
        assert run_command_line(list(arguments)) == code
        return "".join(capsys.readouterr().out.split())

    light = {"coarsen__use": "identity", "place__reward": "simulated", **chosen}
    told = said(0, "tune", f"{odd}.xml", "--run", f"run{odd}", *options(Path(store[1]), **light))
    assert f"refused:nokernelforsum{odd}" in told
    assert f"Writtentorun{odd}:" in told
    assert f"store{odd}" in said(0, "cache", "ls", *store)
    assert f"none{odd}.xml" in said(3, "batch", "jobs.toml", "--out", f"out{odd}", *store)


@pytest.mark.parametrize("how", ["option", "environment"])
def test_every_path_may_be_relative(
    how: str, model: Path, tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(model, "m.xml")
    shutil.copy(model.with_suffix(".bin"), "m.bin")
    arguments = ["coarsen", "m.xml", "--run", "run", "--devices", "CPU"]  # `fuse` asks a measuring process
    if how == "option":
        arguments += ["--store", "store"]
    else:
        monkeypatch.setenv("PLACEWRIGHT_STORE", "store")
    assert ran(*arguments)["ran"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.bin", "m.xml", "run", "store"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    listing = "import sys; from pipeline.cli.main import main; sys.argv = ['placewright', 'list']; main()"
    with subprocess.Popen([sys.executable, "-c", listing], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")
