"""The open benchmark: what is on file holds by the independent verifier, which agrees with the simulators."""

from __future__ import annotations

import ast
import copy
import gzip
import json
import math
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import make_instances
from benchmarks.instances import verify
from benchmarks.suites.open_benchmark import known as on_file
from benchmarks.suites.open_benchmark import solve
from benchmarks.suites.open_benchmark.board import facts
from benchmarks.suites.open_benchmark.known import (
    INSTANCES,
    SUBMISSIONS,
    Standing,
    SubmissionDocument,
    read_index,
    read_submission,
    scores,
    standings,
    submission_files,
    write_submission,
)
from pipeline.cli.main import run_command_line
from pipeline.offline.scenario import load

VERIFIER = INSTANCES / "verify.py"
INDEX = read_index()
OURS = read_submission(SUBMISSIONS / solve.FILE)
EVERY = 5  # of the instances, one in so many is looked at where all take long
SAMPLE = [name for i, name in enumerate(INDEX) if i % EVERY == 0]
MOST_BYTES = 10 * 10**6
FLOATS = 1e-9


def test_the_verifier_is_one_short_file_that_imports_nothing_of_placewright() -> None:
    text = VERIFIER.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name.name if isinstance(node, ast.Import) else node.module or "" for node in imported for name in node.names
    }
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "numpy"}


def test_every_best_known_placement_passes_the_verifier_on_its_own(tmp_path: Path) -> None:
    files = submission_files(SUBMISSIONS)
    assert files
    ran = subprocess.run(
        [sys.executable, "-I", str(VERIFIER), *map(str, files)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1].endswith("instances answered, 0 faults")


def test_there_are_300_instances_in_10_megabytes_of_all_rules_sizes_and_sets() -> None:
    assert len(INDEX) >= 300
    assert sum(path.stat().st_size for path in INSTANCES.rglob("*") if path.is_file()) <= MOST_BYTES
    entries = [each.entry for each in INDEX.values()]
    assert {each["set"] for each in entries} == {"train", "validation", "test"}
    assert {each["rules"]["evaluator"] for each in entries} == {"listsched", "sequential", "pipelined", "latency"}
    assert {each["rules"].get("level") for each in entries} >= {"T0", "T1", "T1-bare", "T2"}
    assert {each["rules"].get("contiguity") for each in entries} >= {"free", "convex", "ordered"}
    devices = {each["tags"]["devices"] for each in entries}
    assert (min(devices), max(devices)) == (2, 16)
    assert any(each["rules"].get("calls", 1) > 1 for each in entries)


def test_a_graph_is_in_one_set_and_what_nobody_has_seen_is_for_testing() -> None:
    sets: dict[str, set[str]] = {}
    for each in INDEX.values():
        made_by = each.entry["made_by"]
        sets.setdefault(f"{made_by['graph']} {made_by['seed']}", set()).add(each.entry["set"])
        assert each.tags["seen_by"] or each.entry["set"] == "test"
    assert all(len(each) == 1 for each in sets.values())


@pytest.mark.parametrize("name", SAMPLE[::8])
def test_instances_are_made_again_byte_for_byte(name: str) -> None:
    (recipe,) = (each for each in make_instances.recipes() if each.name == name)
    made = make_instances.make(recipe)
    data, digest = make_instances.compressed(make_instances.graph_document(made))
    entry = INDEX[name].entry
    assert digest == entry["sha256"]
    assert data == (INSTANCES / entry["graph"]).read_bytes()
    assert make_instances.tags_of(recipe, made) == entry["tags"]
    assert make_instances.set_of(recipe) == entry["set"]


@pytest.mark.parametrize("name", SAMPLE)
def test_the_verifier_says_of_drawn_placements_what_the_simulators_say(name: str) -> None:
    check_agreement(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in INDEX if name not in SAMPLE])
def test_the_verifier_says_of_drawn_placements_what_the_simulators_say_on_all(name: str) -> None:
    check_agreement(name)


def check_agreement(name: str) -> None:
    """Compare values, memory and refusals of a few drawn placements, and of the best known one moved by one step."""
    case, instance = load(INDEX[name].scenario), INDEX[name].checked()
    simulator, rng = case.simulator(), np.random.default_rng(0)
    groups, allowed = case.problem.grouping, case.problem.group_allowed(case.problem.grouping)
    weights = [np.where(row, 1.0, 0.0) / row.sum() for row in allowed]
    drawn = [np.array([rng.choice(row.size, p=row) for row in weights], np.int32)[groups.group] for _ in range(2)]
    drawn += [np.full(case.graph.n, d, np.int32) for d in range(case.topology.p) if case.problem.allowed[:, d].all()][
        :2
    ]
    if name in OURS["answers"]:
        best = OURS["answers"][name]["placement"]
        moved = np.array([case.topology.names.index(best[each]) for each in case.graph.names], np.int32)
        moved[groups.group == rng.integers(groups.k)] = rng.integers(case.topology.p)
        drawn.append(moved)
    for device in drawn:
        priority = rng.permutation(case.graph.n).astype(float) if instance.rules["order"] else None
        if instance.rules.get("calls", 1) > 1:
            priority = rng.uniform(0, instance.rules["calls"], case.graph.n)
        found = simulator.simulate(device[None], None if priority is None else priority[None])
        placed: dict[str, Any] = {
            "placement": {each: case.topology.names[d] for each, d in zip(case.graph.names, device, strict=True)},
            "priority": None if priority is None else dict(zip(case.graph.names, priority.tolist(), strict=True)),
        }
        if found.over_bytes[0] > 0 or math.isinf(found.value_s[0]):
            with pytest.raises(verify.RefusedError):
                instance.check(placed)
        else:
            assert instance.check(placed) == pytest.approx(found.value_s[0], rel=FLOATS)


def mutated(answer: dict[str, Any], instance: verify.Instance, fault: str) -> dict[str, Any]:
    """Return an answer with a fault."""
    wrong = copy.deepcopy(answer)
    first, placement = instance.names[0], wrong["placement"]
    if fault == "faster":
        wrong["value_s"] *= 1 - 1e-6
    elif fault == "missing":
        del placement[first]
    elif fault == "more":
        placement["nobody"] = instance.devices[0]
    elif fault == "nowhere":
        placement[first] = "nowhere"
    elif fault == "nan":
        wrong["value_s"] = math.nan
    elif fault == "order":
        wrong["priority"] = dict.fromkeys(instance.names[1:], 0.0)
    return wrong


@pytest.mark.parametrize("fault", ["faster", "missing", "more", "nowhere", "nan", "order"])
def test_a_mutated_best_known_placement_is_refused(fault: str) -> None:
    for name in [name for name in SAMPLE if name in OURS["answers"]][::3]:
        instance, answer = INDEX[name].checked(), dict(OURS["answers"][name])
        instance.check(answer)
        with pytest.raises(verify.RefusedError):
            instance.check(mutated(answer, instance, fault))


def test_every_move_of_an_operation_that_matters_changes_the_value_or_is_refused() -> None:
    changed = total = 0
    rng = np.random.default_rng(0)
    for name in [name for name in SAMPLE if name in OURS["answers"]]:
        instance, answer = INDEX[name].checked(), copy.deepcopy(dict(OURS["answers"][name]))
        costly = [each for i, each in enumerate(instance.names) if instance.op_s[i].max() > 0]
        each = costly[int(rng.integers(len(costly)))]
        placement: dict[str, str] = answer["placement"]
        placement[each] = next(d for d in instance.devices if d != placement[each])
        total += 1
        try:
            instance.check(answer)
        except verify.RefusedError:
            changed += 1
    assert total >= 40
    assert changed > 0.8 * total  # the rest ends when it did, for others take longer


def test_a_file_with_one_fault_and_a_bound_above_a_value_fail_the_verifier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(iter(OURS["answers"]))
    right = {"answers": {name: OURS["answers"][name]}, "bounds": {}}
    wrong = copy.deepcopy(right)
    wrong["answers"][name]["placement"].popitem()
    above = {"answers": {}, "bounds": {name: {"lower_bound_s": 1.001 * OURS["answers"][name]["value_s"]}}}
    for number, document in enumerate((right, wrong, above)):
        (tmp_path / f"{number}.json").write_text(json.dumps(document), encoding="utf-8")
    files = [str(tmp_path / f"{number}.json") for number in range(3)]
    assert verify.main(files[:1]) == 0
    assert verify.main(files[:2]) == 1
    assert verify.main([files[0], files[2]]) == 1
    assert "1.001" not in capsys.readouterr().err


def test_a_graph_that_is_not_the_one_of_the_index_is_refused(tmp_path: Path) -> None:
    entry = next(iter(INDEX.values())).entry
    for part in (entry["graph"], entry["machine"]):
        (tmp_path / part).parent.mkdir()
    text = gzip.decompress((INSTANCES / entry["graph"]).read_bytes()).replace(b"output_bytes", b"output_bytes ", 1)
    (tmp_path / entry["graph"]).write_bytes(gzip.compress(text))
    with pytest.raises(OSError, match="is not the graph of the index"):
        verify.Instance(entry, tmp_path)


def submission(by: str, day: int, **values: float) -> SubmissionDocument:
    return {
        "format": on_file.FORMAT,
        "by": by,
        "date": date(2026, 1, day),
        "answers": {name: {"value_s": value_s, "placement": {}} for name, value_s in values.items()},
        "bounds": {},
    }


def test_who_was_first_holds_a_value_and_points_count_what_is_missing() -> None:
    names = [name for name, each in INDEX.items() if each.entry["set"] == "test"][:2]
    index = {"a": INDEX[names[0]], "b": INDEX[names[1]]}
    first, second = submission("first", 1, a=2.0, b=4.0), submission("second", 2, a=1.0, b=4.0)
    late, few = submission("late", 3, a=1.0), submission("few", 4, b=8.0)
    few["bounds"] = {"a": {"lower_bound_s": 1.0, "bound_by": "proof"}}
    late["answers"]["a"]["within_s"] = 0.5
    told = standings(index, (few, late, second, first))
    assert told["a"].within_s == 0.5
    assert math.isnan(told["b"].within_s)
    assert facts(list(told.values()))["median_within_s"] == 0.5
    assert told["a"].holders == ("second", "late")
    assert told["b"].holders == ("first", "second")
    assert (told["a"].proven, told["a"].proven_by, told["b"].proven) == (True, "few", False)
    ranked = {score.by: score for score in scores(told, (first, second, late, few))}
    assert list(ranked) == ["second", "first", "late", "few"]
    assert [ranked[by].points for by in ranked] == [1.0, 0.75, 0.5, 0.25]
    assert (ranked["first"].best, ranked["first"].alone, ranked["second"].best) == (1, 0, 2)
    assert ranked["first"].ratio == pytest.approx(math.sqrt(2.0))


def kept(known: SubmissionDocument, name: str, found: solve.Found) -> tuple[SubmissionDocument, dict[str, int]]:
    counts = dict.fromkeys(("better", "bounds", "refused"), 0)
    return solve.keep_better(known, INDEX[name], found, 1.0, counts, []), counts


def test_what_is_on_file_is_only_ever_improved() -> None:
    name = next(name for name in INDEX if name in OURS["answers"] and name in OURS["bounds"])
    best, bound_s = OURS["answers"][name], OURS["bounds"][name]["lower_bound_s"]
    worse = solve.Found({**best, "value_s": 2 * best["value_s"]}, bound_s / 2, "weaker")
    after, counts = kept(OURS, name, worse)
    assert counts == {"better": 0, "bounds": 0, "refused": 0}
    assert after["answers"][name]["placement"] == best["placement"]
    assert after["bounds"] == OURS["bounds"]
    timed = solve.Found({**worse.answer, "within_s": 0.25}, 0.0, "")  # type: ignore[typeddict-item]
    after, _ = kept(OURS, name, timed)
    assert after["answers"][name] == {**best, "searched_s": best["searched_s"] + 1.0, "within_s": 0.25}
    boast = solve.Found({**best, "value_s": best["value_s"] / 2}, bound_s, "same")
    after, counts = kept(OURS, name, boast)
    assert counts == {"better": 0, "bounds": 0, "refused": 1}
    assert after["answers"][name]["value_s"] == best["value_s"]
    nothing: SubmissionDocument = {**OURS, "answers": {}, "bounds": {}}
    after, counts = kept(nothing, name, solve.Found(best, bound_s, "load"))
    assert counts == {"better": 1, "bounds": 1, "refused": 0}
    assert after["answers"][name]["value_s"] == pytest.approx(best["value_s"], rel=FLOATS)


def test_searching_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "open", "--out", str(tmp_path), "--instances", SAMPLE[0], "--json", "--quiet"]
    told = []
    for seconds in ("1", "1", "2"):  # enough for the best, on a busy machine too
        assert run_command_line([*words, "--seconds", seconds]) == 0
        told.append(json.loads(capsys.readouterr().out))
    first = read_submission(tmp_path / solve.FILE)
    assert 0 <= first["answers"][SAMPLE[0]]["within_s"] < 30.0  # the machine may be busy
    assert told[0]["better"] == 1
    assert [each["searched"] for each in told[1:]] in ([0, 0], [0, 1])  # 0 where it is proven
    assert first["answers"][SAMPLE[0]]["searched_s"] == pytest.approx(2.0 if told[2]["searched"] else 1.0)


def test_a_search_from_scratch_is_made_once_of_what_is_proven_too() -> None:
    proven = next(name for name, each in standings(INDEX, [OURS]).items() if each.proven)
    answer = {k: v for k, v in OURS["answers"][proven].items() if k not in ("within_s", "scratch_s")}

    def left_s(seconds: float, **told: float) -> float:
        known = {**OURS, "answers": {proven: {**answer, **told}}}
        return solve._seconds_left(known, proven, seconds)  # type: ignore[arg-type]

    assert left_s(60.0) == solve.SCRATCH_S
    assert left_s(1.0) == 1.0
    assert left_s(60.0, scratch_s=1.0) == solve.SCRATCH_S
    assert left_s(60.0, scratch_s=solve.SCRATCH_S) == left_s(60.0, within_s=0.1) == left_s(1.0, scratch_s=1.0) == 0.0


def test_equal_submissions_are_equal_files(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_submission(tmp_path / name, OURS)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert read_submission(tmp_path / "a.json.gz") == OURS


def test_a_submission_is_checked_scored_and_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(gzip.decompress((SUBMISSIONS / solve.FILE).read_bytes())) | {"by": "copy", "bounds": {}}
    names = [name for name in document["answers"] if INDEX[name].entry["set"] == "test"][:20]
    document["answers"] = {name: document["answers"][name] for name in names}
    path = tmp_path / "copy.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert run_command_line(["bench", "submit", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["submitted"] == ["copy"]
    assert (told["improved"], told["bounds_raised"]) == ([], [])
    (mine,) = (row for row in told["ranking"] if row["by"] == "copy")
    assert (mine["answered"], mine["best"], mine["alone"], mine["ratio"]) == (20, 20, 0, pytest.approx(1.0))
    document["answers"][names[0]]["placement"].popitem()
    path.write_text(json.dumps(document), encoding="utf-8")
    assert run_command_line(["bench", "submit", str(path)]) == 2
    assert f"1 of 20 answers do not hold: {names[0]}: not exactly" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"by": ""}, "by: String should have at least 1 character"),
        ({"format": "other"}, "has the format 'other'"),
        ({"answers": {"x": {"value_s": -1.0, "placement": {}}}}, "answers.x.value_s"),
        ({"date": "yesterday"}, "date"),
    ],
)
def test_what_is_no_submission_is_said_in_one_line(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"format": on_file.FORMAT, "by": "x", "date": "2026-01-01", "answers": {}} | change
    (tmp_path / "x.json").write_text(json.dumps(document), encoding="utf-8")
    assert run_command_line(["bench", "submit", str(tmp_path / "x.json")]) == 2
    error, remedy = capsys.readouterr().err.strip().splitlines()
    assert message in error
    assert remedy.startswith("  fix: ")


def test_a_bound_above_a_value_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(iter(OURS["answers"]))
    document = submission("boaster", 1)
    document["bounds"] = {name: {"lower_bound_s": 2 * OURS["answers"][name]["value_s"], "bound_by": "faith"}}
    write_submission(tmp_path / "boaster.json.gz", document)
    assert run_command_line(["bench", "submit", str(tmp_path / "boaster.json.gz")]) == 2
    assert f"above values that are known: {name}" in capsys.readouterr().err


def test_the_board_tells_the_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["bench", "board", "--out", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    known = standings(INDEX, [read_submission(file) for file in submission_files(SUBMISSIONS)])
    assert told["instances"] == len(INDEX)
    assert told["proven"] == sum(each.proven for each in known.values())
    assert sum(each["instances"] for each in told["by_family"].values()) == len(INDEX)
    page = (tmp_path / "board.html").read_text(encoding="utf-8")
    for title in ("By family", "By size in operations", "Methods that found the best known values"):
        assert title in page
    assert all(name in page for name in SAMPLE)
    assert OURS["date"].isoformat() in page
    assert OURS["method"] in page
    published = (INSTANCES.parents[1] / "docs" / "board.html").read_text(encoding="utf-8")
    assert published == page, "make it again: placewright bench board --out docs"


def test_an_instance_without_a_value_has_a_gap_of_all() -> None:
    assert Standing(next(iter(INDEX.values()))).gap == 1.0


@pytest.mark.parametrize("words", [["bench", "open"], ["bench", "board"], ["bench", "submit"]])
def test_what_is_missing_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"open": "--out DIR", "board": "--out DIR", "submit": "FILE"}[words[1]]
    assert run_command_line(words) == 2
    assert expected in capsys.readouterr().err


def test_a_name_that_is_no_instance_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["bench", "open", "--out", str(tmp_path), "--instances", "layred"]) == 2
    assert "Did you mean 'layered'?" in capsys.readouterr().err
