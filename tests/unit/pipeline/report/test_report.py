"""The page of a run, parsed as a browser parses it: what it says, and that nothing it shows can steer it."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.main import run_command_line
from pipeline.core.errors import StoreError
from pipeline.core.simulation import Timeline
from pipeline.report.comparison import FEW, DrawnComparison, interval_row
from pipeline.report.findings import candidate_cells
from pipeline.report.index import write_index
from pipeline.report.page import asset_text, render_page
from pipeline.report.plain_page import PlainPage
from pipeline.report.run import RunRecords
from pipeline.report.run_page import page_of, write_report
from pipeline.report.two_runs_page import side_by_side
from pipeline.result.result import Result
from pipeline.result.result_text import reader_warnings
from pipeline.settings.config import Settings, parse_assignment
from runtime.measuring.contest.statistics import TWIN
from tests.reports import HOSTILE, Page, finished, write

LIMIT = 1_000_000  # bytes of a page but for its data
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return finished(tmp_path / "run")


def page(folder: Path) -> Page:
    write_report(folder)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_answers_what_won_by_how_much_how_sure_where_and_what_to_do(folder: Path) -> None:
    text = page(folder).text
    assert "Use greedy 1: 1.500 times as fast as the best baseline, CPU default (1.400 to 1.600)." in text
    gain = "1.500 times as fast as CPU default, the best baseline (1.400 to 1.600), which has plug-in defaults."
    assert gain in text
    assert (
        "All intervals hold simultaneously (95 % confidence): 1 candidate, each started from scratch up to 3 times"
        in text
    )
    assert "A 62 % of the time, B 38 % of the time, in 2 sub-graphs" in text
    assert "core.register_plugin('openvino_intel_cpu_plugin', 'CPU_A')" in text
    assert f"placewright emit {folder} --to python" in text


def test_the_page_says_what_the_answer_changes_and_why_others_did_not_run(folder: Path) -> None:
    text = page(folder).text
    assert "latency 6.099 ms 4.099 ms -32.8 %" in text
    assert "memory of the process 104.9 MB 104.9 MB +0.0 %" in text
    assert "NPU refused: no driver" in text
    assert "A: INFERENCE_NUM_THREADS 1" in text


def test_the_page_carries_all_warnings_of_the_terminal_and_advises_what_fits_their_cause(folder: Path) -> None:
    document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    split, default, _ = document["candidates"]
    split["realtime"], default["waited_share"], default["log_ratios"] = True, 0.37, {}
    untried, alike = ({**default, "name": name, "latency_s": None, "samples_s": []} for name in ("later", "twice"))
    alike |= {"latency_s": default["latency_s"], "same_as": "CPU default"}
    sight = {**default, "name": "sight", "times_as_fast": 0.9, "rate": 77.7, "percentiles": {}, "about": "at first"}
    document["candidates"] += [untried, alike, sight]
    document["contest"]["starts"] = {"CPU default": {"starts": 6, "slow": 2, "times": 1.8}}
    document["notes"] = ["A note."]
    document["best"] = "CPU default"
    write(folder / "result.json", document)
    told = reader_warnings(Result.load(folder).record)
    assert len(told) == 6  # untried, alike, slow starts, real-time scheduling, the note, the disturbance
    text = page(folder).text
    for sentence in told:
        assert sentence in text
    assert "Leave the model on CPU default, and measure again while the machine is quiet." in text
    assert "77.7" not in text  # a first sight has no figures but its ratio
    assert "about 0.90" in text
    for candidate in document["candidates"]:
        candidate["waited_share"] = 0.0
    document["verdict"] += " "  # or the page is known to be of this result
    write(folder / "result.json", document)
    assert "a larger --budget compares the rest" in page(folder).text


def test_the_page_loads_nothing_and_says_so_in_its_policy(folder: Path) -> None:
    found = page(folder)
    policies = [a["content"] for tag, a in found.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [POLICY]
    assert not [a for tag, a in found.tags if "src" in a or a.get("href", "#")[:1] != "#"]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", found.source)
    assert not [name for _, a in found.tags for name in a if name.startswith("on")]


def test_the_page_without_its_data_is_small(folder: Path) -> None:
    found = page(folder)
    assert len(found.source.encode()) - len(json.dumps(found.data)) < LIMIT / 4


def test_every_reference_within_the_page_leads_somewhere_and_ids_are_unique(folder: Path) -> None:
    found = page(folder)
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    wanted = {a["href"][1:] for tag, a in found.tags if tag == "a"} | {
        a["data-copy"] for _, a in found.tags if "data-copy" in a
    }
    wanted |= {a["for"] for tag, a in found.tags if tag == "label"}
    assert wanted <= set(ids)
    assert all(a.get("role") == "img" for tag, a in found.tags if tag == "svg" and a.get("class") == "chart")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    found = page(finished(tmp_path / "run", ["in", *HOSTILE]))
    assert found.data["graph-data"]["names"] == ["in", *HOSTILE]  # a chain keeps its order
    assert [s.strip() for s in found.scripts] == [asset_text(name).strip() for name in ("page.js", "graph.js")]
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert "\u202e" not in found.source
    assert "taken" not in "".join(value for _, a in found.tags for value in a.values() if "<" in value)


def test_hostile_words_of_records_stay_text(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    clean = len(page(folder).tags)
    document["verdict"] = document["model"]["path"] = f"{HOSTILE[0]} {HOSTILE[1]} {{{{ 7 * 7 }}}}"
    write(folder / "result.json", document)
    found = page(folder)
    assert len(found.tags) == clean
    assert f"{HOSTILE[0]} a⟨U+202E⟩gnp.exe {{{{ 7 * 7 }}}}" in found.text


def test_a_page_of_the_same_records_is_left_and_one_of_others_is_made_anew(folder: Path) -> None:
    write_report(folder)
    path = folder / "report.html"
    marked = path.read_text(encoding="utf-8") + "<!-- mine -->"
    path.write_text(marked, encoding="utf-8")
    write_report(folder)
    assert path.read_text(encoding="utf-8") == marked
    write_report(folder, again=True)
    assert path.read_text(encoding="utf-8") == marked.removesuffix("<!-- mine -->")
    path.write_text(marked, encoding="utf-8")
    document = Result.load(folder).document | {"verdict": "Another."}
    write(folder / "result.json", document)
    write_report(folder)
    assert "Another." in path.read_text(encoding="utf-8")


def test_the_command_that_makes_a_run_again_gives_its_settings(folder: Path) -> None:
    words = shlex.split(RunRecords.load(folder).reproduce())
    assert words[:3] == ["placewright", "tune", "models/net.xml"]
    values = {a[2:]: b for a, b in zip(words[3::2], words[4::2], strict=True) if a in ("--budget", "--seed")}
    told = {"budget": values["budget"], "seed": int(values["seed"])}
    told |= dict(parse_assignment(b) for a, b in zip(words[3::2], words[4::2], strict=True) if a == "--set")
    document = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert Settings().updated(told, "the command") == Settings.from_json(document["settings"])


@pytest.mark.parametrize("gone", ["graph.npz", "profile.npz", "curve.jsonl", "samples.npz"])
def test_a_run_without_one_of_its_records_has_a_page_all_the_same(folder: Path, gone: str) -> None:
    (folder / gone).unlink()
    assert "Use greedy 1" in page(folder).text


def test_a_run_that_kept_no_graph_says_so(folder: Path) -> None:
    (folder / "graph.npz").unlink()
    found = page(folder)
    assert "did not store its graph" in found.text
    assert "graph-data" not in found.data


def test_a_damaged_record_is_one_line_of_cause_and_one_of_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "graph.npz").write_bytes(b"no archive")
    with pytest.raises(StoreError, match="is damaged"):
        write_report(folder)
    assert run_command_line(["report", str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_where_rates_were_compared_ratios_and_times_are_called_so(folder: Path) -> None:
    placement = json.loads((folder / "placement.json").read_text(encoding="utf-8"))
    write(folder / "placement.json", placement | {"objective": "throughput"})
    found = page(folder)
    assert "1.500 times as many inferences per second as CPU default, the best baseline (1.400 to 1.600)" in found.text
    assert "time per inference 6.099 ms 4.099 ms -32.8 %" in found.text
    assert "times as fast" not in found.text.replace("1.500 times as fast as the best baseline", "")


def test_an_answer_within_limits_claims_no_gain(folder: Path) -> None:
    none = {"ratio": 1.0, "low": 1.0, "high": 1.0}
    write(folder / "result.json", Result.load(folder).document | {"speedup_over_best_single": none})
    assert "No significant gain over CPU default." in page(folder).text


def test_what_had_no_turn_and_what_stands_for_noise_are_told_as_such(folder: Path) -> None:
    document = Result.load(folder).document
    split, default, refused = document["candidates"]
    more = [{**default, "name": TWIN}, {**refused, "name": "late", "failed": None}]
    write(folder / "result.json", document | {"candidates": [split, default, refused, *more]})
    text = page(folder).text
    assert "beside CPU default. 1 other not tried within the budget." in text
    assert "the baseline again, to measure noise" in text


def test_an_answer_that_is_the_baseline_changes_nothing(folder: Path) -> None:
    document = Result.load(folder).document
    write(
        folder / "result.json",
        document | {"best": "CPU default", "speedup_over_best_single": {"ratio": 1, "low": 1, "high": 1}},
    )
    text = page(folder).text
    assert "No significant gain: the answer is CPU default, the best baseline" in text
    assert "The answer is the best baseline: nothing changes" in text
    assert "Leave the model on CPU default" in text


def test_a_baseline_that_beats_the_plug_in_default_is_set_beside_it(folder: Path) -> None:
    document = Result.load(folder).document
    split, default, refused = document["candidates"]
    half = {**split, "name": "A", "single": True, "baseline": True, "kind": "device"}
    ratios = {"CPU default": {"ratio": 0.4, "low": 0.32, "high": 0.5, "starts": 3}}
    known = {"best": "A", "candidates": [half, default, refused]}
    known["contest"] = document["contest"] | {"control": "A", "claimed": [], "ratios": ratios}
    write(folder / "result.json", document | known)
    text = page(folder).text
    assert (
        "2.500 times as fast as CPU default, the plug-in defaults (2.000 to 3.125): the answer is A, the best" in text
    )
    assert "The answer beside CPU default" in text
    assert "nothing changes" not in text


def test_a_figure_of_a_single_start_is_about(folder: Path) -> None:
    run = RunRecords.load(folder)
    once = [replace(c, latency_s=c.latency_s and replace(c.latency_s, fastest=None)) for c in run.result.candidates]
    cells = candidate_cells(replace(run, result=replace(run.result, candidates=once)))
    assert [row["latency"].partition(" ")[0] for row in cells] == ["about", "about", ""]
    assert not any(row["latency"].startswith("about") for row in candidate_cells(run))


def test_an_answer_in_segments_is_loaded_as_such_and_predicted_to_overlap(folder: Path) -> None:
    run = RunRecords.load(folder)
    assert not run.in_segments
    one_after_another = run.timeline()
    segments = replace(run, placement=replace(run.placement, target="DATAFLOW:CPU_A,GPU"))
    assert segments.in_segments
    text = Page(page_of(segments)).text
    assert f"model = pipeline.load('{folder}')" in text
    assert "core.compile_model" not in text
    assert f"placewright report {folder} --measure" in text
    together = segments.timeline()
    assert isinstance(one_after_another, Timeline)
    assert isinstance(together, Timeline)
    assert together.value_s < one_after_another.value_s  # which counts two launches


def test_two_runs_side_by_side_say_how_many_times_as_fast_the_second_is(tmp_path: Path) -> None:
    a, b = finished(tmp_path / "a"), finished(tmp_path / "b", factor=0.5)
    found = Page(side_by_side(RunRecords.load(a), RunRecords.load(b)))
    assert f"{b} is faster: it takes 0.500 times as long" in found.text
    assert re.search(r"greedy 1 4.099 ms 2.05 ms 2.000 \(1\.\d+ to 2\.\d+\)", found.text)
    assert "latency 4.099 ms 2.05 ms -50.0 %" in found.text
    assert "graph-data" not in found.data


def test_a_template_that_names_what_is_not_there_is_refused() -> None:
    with pytest.raises(Exception, match="undefined"):
        render_page("run.html.j2", {"title": "x"})


def test_a_page_is_whole(folder: Path) -> None:
    found = Page(page_of(RunRecords.load(folder)))
    assert found.inside == []
    for heading in (
        "Candidates",
        "Latencies",
        "Throughput against latency",
        "The placed graph",
        "Timeline",
        "Provenance",
    ):
        assert heading in found.words


def columns(page: str) -> list[list[tuple[str, str]]]:
    """Return the columns of all sortable tables of a page, as (what a cell shows, what it is sorted by)."""
    found = []
    for table in re.findall(r'<table[^>]* class="sortable">.*?<tbody>(.*?)</tbody>', page, re.DOTALL):
        lines = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        rows = [re.findall(r"<td([^>]*)>(.*?)</td>", line, re.DOTALL) for line in lines]
        cells = [[(re.sub(r"<[^>]*>", "", text), attributes) for attributes, text in row] for row in rows]
        for column in zip(*cells, strict=True):
            keys = [re.search(r'data-value="([^"]*)"', attributes) for _, attributes in column]
            found.append([(text, key[1] if key else text) for (text, _), key in zip(column, keys, strict=True)])
    return found


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text or "0"))
    except ValueError:
        return False


def test_every_sortable_column_of_numbers_is_sorted_by_numbers(tmp_path: Path) -> None:
    for name, factor in (("slow", 3.0), ("quick", 0.5)):
        write_report(finished(tmp_path / name, factor=factor))
    write_index(tmp_path, tmp_path / "index.html")
    many = [interval_row(f"job{i}", (i / 7 + 1, i / 7 + 0.9, i / 7 + 1.1)) for i in range(FEW + 1)]
    section = DrawnComparison("a.svg", "jobs", "", "the best device", tuple(many)).section()
    (tmp_path / "batch.html").write_text(PlainPage("batch", sections=[section]).text(), encoding="utf-8")
    figures = re.compile(r"(about )?[0-9.,]+ ?(ns|us|µs|ms|s|B|kB|MB|GB|KiB|MiB|GiB|%)?( to .*| \(.*)?")
    pages = [tmp_path / "slow" / "report.html", tmp_path / "index.html", tmp_path / "batch.html"]
    looked = 0
    for page in pages:
        for column in columns(page.read_text(encoding="utf-8")):
            shown = [text for text, _ in column if text]
            if shown and all(figures.fullmatch(text) for text in shown):
                looked += 1
                assert all(is_number(key) for _, key in column), f"{page.name}: {column}"
    assert looked > 10
