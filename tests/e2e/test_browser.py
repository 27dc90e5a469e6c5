"""Pages in a real browser, without a network: nothing is loaded, nothing fails, the graph answers hand and keyboard.

Skipped where there is no Chromium (Debian's package `chromium`) or no Playwright (the extra `dev`).
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

import pipeline
from pipeline.report.index import write_index
from pipeline.report.plain_page import PlainPage, Section, number_cell
from pipeline.report.run_page import write_report
from pipeline.report.search_page import write_search_page
from pipeline.report.two_runs_page import write_side_by_side
from tests.reports import HOSTILE, finished

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")
MANY = 400  # operations: more than are shown at once
TIMEOUT_MS = 30_000.0

Opened = Callable[[Path], "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Give a browser without a window."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium; `apt-get install chromium` installs one")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright's client is not installed (extra: dev)")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=list(SWITCHES))
        yield found
        found.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Give a function that opens a page offline; at the end none may have failed, or asked for more than itself."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(TIMEOUT_MS)
    faults: list[str] = []
    asked: list[str] = []
    wanted: list[str] = []

    def open_page(path: Path) -> Page:
        page = context.new_page()
        page.on(
            "console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        wanted.append(path.as_uri())
        page.goto(wanted[-1])
        return page

    yield open_page
    context.close()
    assert faults == []
    assert asked == wanted


def boxes(page: Page) -> int:
    return page.locator(".graph-view .box").count()


def kept(page: Page, name: str) -> None:
    """Keep a picture of the page where CI collects them."""
    folder = os.environ.get("PLACEWRIGHT_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def report(folder: Path, *names: Any) -> Path:
    write_report(finished(folder, names) if names else finished(folder))
    return folder / "report.html"


def test_a_report_opens_and_its_graph_can_be_searched_and_opened(tmp_path: Path, opened: Opened) -> None:
    names = [f"net/block{i // 40}/conv{i}" for i in range(MANY)]
    page = opened(report(tmp_path / "run", *names))
    assert page.title() == "placewright: models/net.xml"
    folded = boxes(page)
    assert 1 < folded < 60
    page.fill("#graph-search", "block7/conv299")
    page.press("#graph-search", "Enter")
    assert page.locator("#graph-status").inner_text() != ""
    assert "net/block7/conv299" in page.locator(".graph-side").inner_text()
    assert "time on B" in page.locator(".graph-side").inner_text()
    assert page.locator(".box.chosen title").first.text_content() == "net/block7/conv299, Convolution, on B"
    assert boxes(page) > folded
    kept(page, "report")
    page.click("#graph-close")
    assert boxes(page) == folded


def test_boxes_open_and_close_by_keyboard(tmp_path: Path, opened: Opened) -> None:
    page = opened(report(tmp_path / "run", *[f"op{i}" for i in range(MANY)]))
    folded = boxes(page)
    first = page.locator(".box[aria-expanded=false]").first
    code = first.get_attribute("data-code")
    first.focus()
    page.keyboard.press("Enter")
    assert boxes(page) > folded
    focused = page.locator(":focus")
    assert (focused.get_attribute("data-code"), focused.get_attribute("aria-expanded")) == (code, "true")
    page.keyboard.press("Space")
    assert boxes(page) == folded


def test_hostile_names_are_shown_as_text(tmp_path: Path, opened: Opened) -> None:
    page = opened(report(tmp_path / "run", "in", *HOSTILE))
    assert page.title() == "placewright: models/net.xml"
    for name, shown in ((HOSTILE[0], HOSTILE[0]), ("gnp.exe", "a⟨U+202E⟩gnp.exe"), ("x" * 50, "x" * 10_000)):
        page.fill("#graph-search", name)
        page.locator("#graph-hits button").last.click()
        assert shown in page.locator(".graph-side").inner_text()
    assert page.locator("img").count() == 0
    assert page.title() == "placewright: models/net.xml"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    kept(page, "hostile")


def test_the_index_sorts_and_filters(tmp_path: Path, opened: Opened) -> None:
    for name, factor in (("slow", 3.0), ("quick", 0.5), ("middle", 1.0)):
        finished(tmp_path / name, factor=factor)
    write_index(tmp_path, tmp_path / "index.html")
    page = opened(tmp_path / "index.html")
    names = page.locator("tbody tr:visible td:first-child")
    page.click("th:has-text('latency') button")
    assert names.all_inner_texts() == ["quick", "middle", "slow"]
    page.click("th:has-text('latency') button")
    assert names.all_inner_texts() == ["slow", "middle", "quick"]
    page.fill("input[type=search]", "dle")
    assert names.all_inner_texts() == ["middle"]
    assert page.locator("[role=status]").inner_text() == "1 of 3 rows"


def test_candidates_are_sorted_by_how_long_they_take(tmp_path: Path, opened: Opened) -> None:
    write_report(finished(tmp_path / "run", factor=2.0))  # 8.2 ms, and 12.2 ms, which as text come the other way round
    page = opened(tmp_path / "run" / "report.html")
    names = page.locator("#candidate-table tbody td:first-child")
    for column in (2, 3):  # latency and interval
        page.click(f"#candidate-table th:nth-child({column}) button")
        assert names.all_inner_texts() == ["greedy 1", "CPU default"], column
        page.click(f"#candidate-table th:nth-child({column}) button")
        assert names.all_inner_texts() == ["CPU default", "greedy 1"], column


def test_rows_without_a_value_are_sorted_last_both_ways(tmp_path: Path, opened: Opened) -> None:
    rows = [[name, number_cell(f"{value}", value)] for name, value in (("a", None), ("b", 2.0), ("c", 10.0))]
    section = Section("Figures", columns=("name", "figure"), rows=rows, filtered=True)
    (tmp_path / "page.html").write_text(PlainPage("Figures", sections=[section]).text(), encoding="utf-8")
    page = opened(tmp_path / "page.html")
    for order in (["b", "c", "a"], ["c", "b", "a"]):
        page.click("th:has-text('figure') button")
        assert page.locator("tbody td:first-child").all_inner_texts() == order


def test_a_page_is_readable_in_the_dark_and_on_paper(tmp_path: Path, opened: Opened) -> None:
    page = opened(report(tmp_path / "run"))
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == "rgb(13, 17, 23)"
    kept(page, "dark")
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()


def test_on_a_narrow_page_words_stay_legible_and_only_parts_scroll_sideways(tmp_path: Path, opened: Opened) -> None:
    page = opened(report(tmp_path / "run"))
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    words = "[...document.querySelectorAll('svg.chart')].map(s => 13 * s.clientWidth / s.viewBox.baseVal.width)"
    sizes = page.evaluate(words)  # of 13 px, as the style sheet has them
    assert len(sizes) > 3
    assert min(sizes) > 9
    kept(page, "narrow")


def page_of_a_search(folder: Path) -> Path:
    scenario = pipeline.Scenario("zoo:nas-nmt", "equal:4")
    answer = pipeline.search(scenario, pipeline.Effort("anneal", evaluations=3000))
    write_search_page(scenario, answer, folder / "search.html", command="placewright search zoo:nas-nmt")
    return folder / "search.html"


def page_of_two_runs(folder: Path) -> Path:
    write_side_by_side(finished(folder / "before"), finished(folder / "after", factor=0.5), folder / "two.html")
    return folder / "two.html"


def page_of_all(folder: Path) -> Path:
    for name in ("before", "after"):
        report(folder / name)
    write_index(folder, folder / "index.html")
    return folder / "index.html"


@pytest.mark.parametrize(
    "made", [lambda folder: report(folder / "run"), page_of_a_search, page_of_two_runs, page_of_all]
)
def test_every_page_fits_its_window_and_hints_at_what_goes_on(
    made: Callable[[Path], Path], tmp_path: Path, opened: Opened
) -> None:
    path = made(tmp_path)
    page = opened(path)
    shadows = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth)"
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for width, scheme in itertools.product((1400, 400), schemes):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        hints = page.evaluate(f"{shadows}.map(e => getComputedStyle(e).backgroundImage)")
        assert all("radial-gradient" in hint for hint in hints)
        heights = page.evaluate("[...document.querySelectorAll('.wide td')].map(e => e.getBoundingClientRect().height)")
        assert max(heights, default=0) < 400  # no cell is squeezed into a column of single words
        kept(page, f"{path.stem}-{width}-{scheme}")


def test_labels_of_tensors_cover_no_box_and_no_other_label(tmp_path: Path, opened: Opened) -> None:
    page = opened(page_of_a_search(tmp_path))
    covered = """() => {
      const boxes = (query) => [...document.querySelectorAll(query)].map((e) => e.getBBox());
      const labels = boxes("text.bytes"), closed = boxes(".graph-view .box:not(.open) > rect.body");
      const within = (a, b, at, size) => a[at] + 2 < b[at] + b[size] && b[at] + 2 < a[at] + a[size];
      const meet = (a, b) => within(a, b, "x", "width") && within(a, b, "y", "height");
      const pairs = labels.flatMap((a, i) => [...labels.slice(i + 1), ...closed].filter((b) => meet(a, b)));
      return [labels.length, pairs.length];
    }"""
    labels, meeting = page.evaluate(covered)
    assert labels > 5
    assert meeting == 0


def test_the_placed_graph_zooms_and_is_dragged(tmp_path: Path, opened: Opened) -> None:
    page = opened(page_of_a_search(tmp_path))
    width = "Number(document.querySelector('.graph-view svg').getAttribute('width'))"
    begin = page.evaluate(width)
    page.click("#graph-in")
    assert page.evaluate(width) == pytest.approx(1.25 * begin)
    page.click("#graph-fit")
    assert page.evaluate(width) <= page.evaluate("document.querySelector('.graph-view').clientWidth") + 1
    page.locator(".graph-view").press("+")
    for _ in range(8):
        page.click("#graph-in")
    shown = page.locator(".graph-view .box").count()
    page.evaluate("document.querySelector('.graph-view').scrollTo(0, 0)")
    at = page.locator(".graph-view").bounding_box()
    assert at is not None
    page.mouse.move(at["x"] + 200, at["y"] + 200)
    page.mouse.down()
    page.mouse.move(at["x"] + 100, at["y"] + 120)
    page.mouse.up()
    assert page.evaluate("document.querySelector('.graph-view').scrollLeft") == pytest.approx(100, abs=2)
    assert page.locator(".graph-view .box").count() == shown  # a drag opens no box
