"""Learning curves, event files and the line about a search that goes on."""

from __future__ import annotations

import importlib
import json
import math
import struct
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pipeline.cli.main import run_command_line
from pipeline.core.errors import StoreError, UsageError
from pipeline.core.problem import Progress
from pipeline.progress.curve import PLAIN_ROWS, Curve, Row, read_rows, write_curve
from pipeline.progress.events import EventFiles
from pipeline.progress.watchers import (
    open_watcher,
    progress_text,
    replay_searches,
    with_event_files,
    with_progress_line,
    write_training,
)
from pipeline.store.store import Store
from pipeline.store.task import Outcome, Task

SVG = "{http://www.w3.org/2000/svg}"


def ticking(step_s: float = 1.0) -> Callable[[], float]:
    """Return a clock that goes on by `step_s` whenever it is looked at, from 0."""
    now = -step_s

    def clock() -> float:
        nonlocal now
        now += step_s
        return now

    return clock


def learned(done: int, value_s: float, **details: float) -> Progress:
    return Progress(done, 100, value_s, single_s=0.5, bound_s=0.125, details=details)


def test_a_row_holds_what_is_known_and_null_for_what_is_not() -> None:
    curve = Curve(ticking())
    curve("hsdag", Progress(1, 100, math.inf))
    curve("hsdag", learned(2, 0.25, entropy=0.75, groups=4.0, loss=math.nan))
    first, second = curve.rows
    assert first == {"placer": "hsdag", "seconds": 1.0, "done": 1, "value_s": None, "single_s": None, "bound_s": None}
    assert second == {
        **{"placer": "hsdag", "seconds": 2.0, "done": 2, "value_s": 0.25, "single_s": 0.5, "bound_s": 0.125},
        **{"entropy": 0.75, "groups": 4.0, "loss": None},
    }


def test_the_seconds_of_a_placer_count_from_the_end_of_the_one_before() -> None:
    curve = Curve(ticking())
    for done in (1, 2, 3):
        curve("greedy", learned(done, 0.5))
    curve("hsdag", learned(1, 0.5))
    assert [(row["placer"], row["seconds"]) for row in curve.rows] == [
        *(("greedy", 1.0), ("greedy", 2.0), ("greedy", 3.0), ("hsdag", 1.0))
    ]


def test_the_evaluations_of_a_placer_that_searches_again_run_on() -> None:
    curve = Curve(ticking())
    for done, value_s in ((1, 0.5), (7, 0.25), (2, 0.75), (3, 0.5), (1, 1.0)):
        curve("hsdag", learned(done, value_s))
    assert [(row["done"], row["value_s"]) for row in curve.rows] == [
        (1, 0.5),
        (7, 0.25),
        (9, 0.75),
        (10, 0.5),
        (11, 1.0),
    ]


def test_what_is_better_in_a_later_search_is_kept_though_an_earlier_one_found_better() -> None:
    curve = Curve(ticking())
    curve("hsdag", learned(10, 0.001))
    for done in range(1, 3 * PLAIN_ROWS):
        curve("hsdag", learned(done, 1.0 if done < 4321 else 0.5))
    assert 10 + 4321 in [row["done"] for row in curve.rows]


def test_thinning_keeps_every_improvement_and_the_last() -> None:
    curve = Curve(ticking())
    total, best_s, bound_s = 50_000, 1.0, 0.0
    better = {1}
    for done in range(1, total + 1):
        if done % 777 == 0:
            best_s *= 0.99
            better.add(done)
        if done % 9_999 == 0:
            bound_s += 0.01
            better.add(done)
        curve("hsdag", Progress(done, total, best_s, bound_s=bound_s))
    left: list[int] = [row["done"] for row in curve.rows]
    assert left == sorted(set(left))
    assert {*better, total} <= set(left)
    assert PLAIN_ROWS / 2 <= len(left) - len(better) <= PLAIN_ROWS + 1
    gaps = [b - a for a, b in pairwise(left)]
    assert max(gaps) <= 2 * total / PLAIN_ROWS  # those left out are spread evenly


def test_rows_are_read_back_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    write_curve(path, rows())
    assert read_rows(path) == rows()
    for line in path.read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    for damaged in ("{", "[" * 2000, "[]"):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(StoreError, match="holds no curve"):
            read_rows(path)


def rows() -> list[Row]:
    curve = Curve(ticking())
    curve("greedy", Progress(1, 10, math.inf))
    for done, value_s in ((2, 0.5), (3, 0.4), (4, 0.4)):
        curve("greedy", learned(done, value_s))
    for done, value_s in ((1, 0.5), (5, 0.3), (9, 0.2)):
        curve("hsdag", learned(done, value_s, entropy=1.0 / done, groups=9.0))
    return list(curve.rows)


def test_the_figure_shows_every_placer_the_single_device_the_bound_and_what_policies_tell(tmp_path: Path) -> None:
    write_curve(tmp_path / "curve.svg", rows())
    root = ElementTree.parse(tmp_path / "curve.svg").getroot()
    marks = {element.get("id") for element in root.iter(f"{SVG}g")}
    assert {"best-greedy", "best-hsdag", "single_s", "bound_s", "entropy-hsdag", "groups-hsdag"} <= marks
    assert not {"entropy-greedy", "groups-greedy"} & marks
    words = {"".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")}
    assert {"greedy: 400 ms", "hsdag: 200 ms", "best single device: 500 ms", "bound: 125 ms"} <= words
    assert {"evaluations", "best so far, ms", "entropy", "groups"} <= words


def test_a_figure_has_no_panels_nor_lines_for_what_nobody_told(tmp_path: Path) -> None:
    write_curve(tmp_path / "curve.svg", [{"placer": "p", "done": 1, "value_s": 0.1, "single_s": None, "bound_s": None}])
    root = ElementTree.parse(tmp_path / "curve.svg").getroot()
    marks = {element.get("id") for element in root.iter(f"{SVG}g")}
    assert {"best-p", "axes_1"} <= marks
    assert not {"single_s", "bound_s", "axes_2"} & marks
    write_curve(tmp_path / "empty.svg", [])
    ElementTree.parse(tmp_path / "empty.svg")


def test_equal_rows_give_equal_figures(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_curve(tmp_path / name, rows())
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_figure_may_be_a_png(tmp_path: Path) -> None:
    write_curve(tmp_path / "curve.PNG", rows())
    content = (tmp_path / "curve.PNG").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (1200, 990)


def test_watching_writes_the_curve_even_when_the_search_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"

    def search() -> None:
        with open_watcher(path) as watch:
            watch("hsdag", learned(1, 0.5))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search()
    assert [row["value_s"] for row in read_rows(path)] == [0.5]


def test_a_search_that_told_nothing_leaves_no_curve(tmp_path: Path) -> None:
    with pytest.raises(UsageError), open_watcher(tmp_path / "curve.svg"):
        raise UsageError("There is no such placer.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["curve.txt", "curve", "curve.json"])
def test_a_curve_of_no_known_format_is_refused_before_the_search(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no known format"), open_watcher(tmp_path / name):
        pytest.fail("the search began")


def test_a_curve_that_cannot_be_written_is_refused_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be written"), open_watcher(tmp_path / "file" / "curve.svg"):
        pytest.fail("the search began")
    with pytest.raises(UsageError, match="cannot be written"), open_watcher(tensorboard=tmp_path / "file"):
        pytest.fail("the search began")


Scalars = dict[str, list[tuple[int, float]]]


def scalars(folder: Path) -> Scalars:
    """Return tag -> [(evaluations, value)] of the one event file in a folder, in the order of the file.

    Source: the TFRecord format: length (8 bytes), its checksum (4), the event, its checksum (4).
    """
    event_of = importlib.import_module("tensorboardX.proto.event_pb2").Event.FromString
    (path,) = folder.iterdir()
    content, found = path.read_bytes(), Scalars()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = event_of(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_event_files_hold_a_run_per_placer_with_scalars_over_evaluations(tmp_path: Path) -> None:
    with open_watcher(tensorboard=tmp_path) as watch:
        watch("greedy", Progress(1, 10, math.inf))
        watch("greedy", learned(4, 0.5))
        watch("hsdag", learned(2, 0.25, entropy=0.75, groups=4.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["greedy", "hsdag"]
    assert [done for done, _ in scalars(tmp_path / "greedy").pop("seconds")] == [1, 4]
    found = scalars(tmp_path / "hsdag")
    assert [done for done, _ in found.pop("seconds")] == [2]
    assert found == {
        **{"value_s": [(2, 0.25)], "single_s": [(2, 0.5)], "bound_s": [(2, 0.125)]},
        **{"entropy": [(2, 0.75)], "groups": [(2, 4.0)]},
    }


def test_a_fast_placer_writes_what_is_better_and_the_last_and_else_twice_a_second(tmp_path: Path) -> None:
    curve, files = Curve(ticking(0.125)), EventFiles(tmp_path)
    for done in range(1, 14):
        files.note(curve("greedy", learned(done, 0.5 if done < 7 else 0.25)))
    files.close()
    assert [done for done, _ in scalars(tmp_path / "greedy")["value_s"]] == [1, 5, 7, 11, 13]


def test_search_writes_the_curve_and_the_event_files_it_is_asked_for(tmp_path: Path) -> None:
    graph, curve, events = (tmp_path / name for name in ("graph.json", "curve.jsonl", "events"))
    operations = [{"name": name, "time_s": 0.001, "output_bytes": 8} for name in "ab"]
    graph.write_text(json.dumps({"operations": operations, "edges": []}), encoding="utf-8")
    where = ["--curve", str(curve), "--tensorboard", str(events)]
    assert (
        run_command_line(
            ["search", str(graph), "--topology", "equal:2", "--placer", "greedy", "--evaluations", "20", *where]
        )
        == 0
    )
    last = read_rows(curve)[-1]
    assert (last["placer"], last["value_s"]) == ("greedy", pytest.approx(0.001))
    assert scalars(events / "greedy")["value_s"][-1] == pytest.approx((last["done"], 0.001))


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with (
        pytest.raises(UsageError, match=r"tensorboardX.*placewright\[tensorboard\]"),
        open_watcher(tensorboard=tmp_path),
    ):
        pytest.fail("the search began")


def test_a_run_directory_gets_the_figure_and_the_policies_and_event_files_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_curve(out / "curve.jsonl", rows())
    for name in ("policy.safetensors", "policy.json", "policy-b.safetensors", "candidates.json"):
        (out / name).write_text(name, encoding="utf-8")
    entry = Store(tmp_path / "store").add("ab" * 32, {}, {}, out)
    files = write_training(tmp_path / "run", entry)
    assert files == {
        **{"curve": "curve.svg", "policy": "policy.safetensors", "policy_facts": "policy.json"},
        **{"policy-b": "policy-b.safetensors"},
    }
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted(files.values())
    assert (tmp_path / "run" / "policy.safetensors").read_text(encoding="utf-8") == "policy.safetensors"
    task = Task("place", "hsdag", {}, {}, 0, {})
    for ran, folder in ((True, tmp_path / "events"), (False, None)):
        replay_searches(Outcome(task, entry, ran, "", 0.0), folder)
    assert not (tmp_path / "events").exists()
    replay_searches(Outcome(task, entry, ran=False, why="in the store", seconds=0.0), tmp_path / "events")
    found = scalars(tmp_path / "events" / "hsdag")
    assert found["value_s"] == [(1, 0.5), (5, pytest.approx(0.3)), (9, pytest.approx(0.2))]


def test_the_folder_of_event_files_reaches_the_place_stage_and_changes_no_key(tmp_path: Path) -> None:
    tasks = [Task(stage, stage, {}, {}, 0, {}, context={"model": "m.xml"}) for stage in ("read", "place")]
    assert with_event_files(tasks, None) == tasks
    read, place = with_event_files(tasks, tmp_path / "events")
    assert read == tasks[0]
    assert place.context == {"model": "m.xml", "tensorboard": str(tmp_path / "events")}
    assert place.key == tasks[1].key
    assert list((tmp_path / "events").iterdir()) == []


def test_an_artifact_without_a_curve_gives_no_files(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "candidates.json").write_text("[]", encoding="utf-8")
    entry = Store(tmp_path / "store").add("ab" * 32, {}, {}, tmp_path / "out")
    assert write_training(tmp_path / "run", entry) == {}


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(0, None, math.inf), "p: no feasible placement yet; 0 evaluations"),
        (Progress(1, None, 0.5), "p: best 500 ms; 1 evaluation"),
        (Progress(7, None, 0.5), "p: best 500 ms; 7 evaluations"),
        (Progress(7, 9, 0.5, left_s=35.4), "p: best 500 ms; 7 of 9 evaluations; 35 s left"),
        (Progress(7, 9, 0.5, left_s=-0.1), "p: best 500 ms; 7 of 9 evaluations; 0 s left"),
        (Progress(7, 9, 0.5, left_s=125.0), "p: best 500 ms; 7 of 9 evaluations; 2 min 05 s left"),
        (Progress(7, 9, 0.5, 1.0), "p: best 500 ms, 2.000x the best single device; 7 of 9 evaluations"),
        (
            Progress(7, 9, 0.5, 0.5, 0.4),
            "p: best 500 ms, 1.000x the best single device, gap 20.00 %; 7 of 9 evaluations",
        ),
        (Progress(7, 9, 0.5, bound_s=0.5), "p: best 500 ms, proven optimal; 7 of 9 evaluations"),
        (Progress(7, 9, math.inf, bound_s=0.5), "p: no feasible placement yet; 7 of 9 evaluations"),
        (
            Progress(7, 9, 0.5, details={"entropy": 0.7139, "groups": 40.0, "loss": 3.0}),
            "p: best 500 ms; 7 of 9 evaluations; entropy 0.714, 40 groups",
        ),
        (Progress(7, 9, 0.5, details={"groups": 39.5}), "p: best 500 ms; 7 of 9 evaluations; 40 groups"),
        (Progress(7, 9, 0.0), "p: best 0 ms; 7 of 9 evaluations"),
    ],
)
def test_the_line_about_a_search_says_what_is_known(progress: Progress, text: str) -> None:
    assert progress_text("p", progress) == text


def test_what_is_spoken_is_also_watched() -> None:
    said: list[str] = []
    watched: list[tuple[str, Progress]] = []
    tell = with_progress_line(said.append, lambda placer, progress: watched.append((placer, progress)))
    progress = learned(3, 0.25)
    tell("hsdag", progress)
    assert said == [progress_text("hsdag", progress)]
    assert watched == [("hsdag", progress)]
