"""One definition each of gap, share of the time, bytes, times as fast, and where a marked value stands on an axis."""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.suites.hsdag.methods import Optimum
from benchmarks.suites.hsdag.summary import rows_of
from pipeline.cli.main import run_command_line
from pipeline.core.figures import bytes_text, gap_of, gap_text, share_text, shares_of, times_as_fast
from pipeline.core.measurement import Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Progress
from pipeline.core.stages import Answer, Candidate
from pipeline.offline.scenario import Scenario
from pipeline.offline.search import Effort, search, simulate
from pipeline.progress.watchers import progress_text
from pipeline.report import charts, svg
from tests import ROOT

SEARCH = ("search", "zoo:chainmm", "--topology", "equal:2", "--placer", "etf", "--evaluations", "4", "--quiet")


def plain(page: str) -> str:
    """Return the text of a page as people read it."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)))


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, dict[str, Any]]:
    """Return what a search says on the terminal, on its page, and as JSON."""
    page = tmp_path_factory.mktemp("page") / "page.html"
    told = []
    for words in ([*SEARCH, "--report", str(page)], [*SEARCH, "--json"]):
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as shown:
            assert run_command_line(words) == 0
        told.append(shown.getvalue())
        told.append(said.getvalue())
    return told[0] + told[1], plain(page.read_text(encoding="utf-8")), json.loads(told[3])


def test_the_gap_is_one_number_on_the_terminal_on_the_page_and_in_json(
    answered: tuple[str, str, dict[str, Any]],
) -> None:
    terminal, page, document = answered
    assert document["gap"] == 1 - document["lower_bound_s"] / document["value_s"] > 0.01
    said = gap_text(document["gap"])
    assert f"gap at most {said}" in terminal
    assert f"gap at most {said}" in page
    assert f"gap {said}" in page  # among the provenance
    assert "above the optimum" not in terminal + page
    progress = Progress(1, None, document["value_s"], bound_s=document["lower_bound_s"])
    assert f"gap {said};" in progress_text("etf", progress)


def test_the_gap_of_a_benchmark_is_that_of_an_answer() -> None:
    best = Candidate(Placement.single(1, 0, ("A",)), Prediction(1.25), "x")
    assert Answer((best,), 1.0).gap == gap_of(1.25, 1.0) == pytest.approx(0.2)
    record = {"method": "x", "learned": False, "seed": 0, "failed": None, "value_s": 1.25, "ratio": 1.0}
    record |= {"curve": [], "evaluations": 1, "seconds": 1.0}
    (row,) = rows_of([record], Optimum(1.0, True, 0.0))  # type: ignore[list-item]
    assert row.gap == pytest.approx(0.2)


def test_a_devices_share_of_the_time_is_one_number_on_a_page(answered: tuple[str, str, dict[str, Any]]) -> None:
    _, page, document = answered
    legend = dict(re.findall(r"(\w+): ([\d.]+ %) of the time", page))
    assert set(legend) == set(document["busy_s"])
    for device, share in legend.items():
        assert re.search(rf"{device} {share} [\d.]+ \w+ [\d.]+ % ", page), device  # share, busy, utilization
    utilization = {d: share_text(s / document["value_s"]) for d, s in document["busy_s"].items()}
    assert all(utilization[device] != share for device, share in legend.items())  # two figures, two names


def test_shares_of_the_time_add_up_to_one() -> None:
    shares = shares_of({"A": 1.0, "B": 2.0, "C": 1.0})
    assert list(shares) == ["B", "A", "C"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares_of({"A": 0.0}) == {"A": 0.0}


def test_bytes_are_told_in_one_unit_on_the_terminal_and_on_the_page(
    answered: tuple[str, str, dict[str, Any]],
) -> None:
    terminal, page, document = answered
    assert document["cut_bytes"] > 0
    assert f"{bytes_text(document['cut_bytes'])} sent between devices" in terminal
    assert f"{bytes_text(document['cut_bytes'])} sent between devices" in page
    for peak in document["peak_bytes"].values():
        assert bytes_text(peak) in terminal
        assert bytes_text(peak) in page
    assert not re.search(r"[KMG]iB", terminal + page)


def test_nothing_that_is_told_counts_bytes_by_powers_of_1024() -> None:
    told = re.compile(r"""\d\s*[KMGT]iB|["'`{ ][KMGT]iB["'`} ]|>> ?[1-3]0\b|/ 2 ?\*\* ?[1-3]0|/ 1e[69]\S* ?[MG]B""")
    sources = [
        path
        for package in ("pipeline", "coarsen", "embed", "policy", "runtime")
        for suffix in ("*.py", "*.js", "*.j2")
        for path in (ROOT / package).rglob(suffix)
    ]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources
        for line in path.read_text(encoding="utf-8").splitlines()
        if told.search(line.partition("#")[0])
    ]
    reads = (
        "runtime/machines/topology_file.py",
        "pipeline/settings/config.py",
        "pipeline/core/figures.py",
    )  # what users write
    assert [line for line in found if not line.startswith(reads)] == []


def test_the_script_of_the_graph_writes_bytes_as_python_does() -> None:
    script = (ROOT / "pipeline/report/assets/graph.js").read_text(encoding="utf-8")
    units = re.findall(r'\[1e(\d+), "(\w+)"\]', script)
    assert units == [("12", "TB"), ("9", "GB"), ("6", "MB"), ("3", "kB")]
    assert [bytes_text(10 ** int(power)) for power, _ in units] == [f"1 {unit}" for _, unit in units]
    assert "toPrecision(4)" in script


def test_times_as_fast_is_more_where_it_is_better_and_called_so() -> None:
    assert times_as_fast(2.0, 3.0) == 1.5
    progress = Progress(1, None, 2.0, single_s=3.0)
    assert "1.500x the best single device" in progress_text("x", progress)
    for page in ("benchmarks/suites/hsdag/pages.py", "benchmarks/suites/hsdag/run.py", "pipeline/cli/jobs.py"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert not re.search(r'"ratio(?: to [^"]*)?",\n', text), page
        assert '"times as fast' in text


def places(monkeypatch: pytest.MonkeyPatch) -> list[svg.Scale]:
    """Return the list that the scales which are made from now on are put into."""
    made: list[svg.Scale] = []
    over = svg.scale_over

    def watched(*arguments: Any, **options: Any) -> svg.Scale:
        made.append(over(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(svg, "scale_over", watched)
    return made


def test_a_level_that_is_marked_stands_where_its_words_say(monkeypatch: pytest.MonkeyPatch) -> None:
    made = places(monkeypatch)
    rows = [
        {"placer": "x", "done": i, "seconds": 0.0, "value_s": 1e-3, "single_s": 0.5, "bound_s": 1e-5, "left_s": None}
        for i in range(1, 200)
    ]
    drawn = str(charts.draw_curves(rows))
    (y,) = made
    assert y.low <= 1e-5 < 0.5 <= y.high
    assert f'y1="{svg._attribute_value(y(0.5))}"' in drawn
    assert f'y1="{svg._attribute_value(y(1e-5))}"' in drawn


def test_a_percentile_that_is_marked_stands_where_its_words_say(monkeypatch: pytest.MonkeyPatch) -> None:
    made = places(monkeypatch)
    slow = np.r_[np.full(9_900, 1e-3), np.full(100, 1.0)]
    charts.draw_distributions({"many": np.full(1_000_000, 1e-3), "few": slow}, "many")
    (x,) = made
    assert x.low <= 1e-3 < 1.0 <= x.high


def test_simulating_an_answer_tells_its_figures_again(tmp_path: Path) -> None:
    scenario = Scenario("zoo:chainmm", topology="equal:2")
    found = search(scenario, Effort("etf", evaluations=4))
    (tmp_path / "placement.json").write_text(json.dumps(found["placement"]), encoding="utf-8")
    told = simulate(scenario, tmp_path / "placement.json")
    assert {k: told[k] for k in ("busy_s", "peak_bytes", "cut_bytes")} == {  # type: ignore[literal-required]
        k: found[k]
        for k in ("busy_s", "peak_bytes", "cut_bytes")  # type: ignore[literal-required]
    }
