"""Names of strangers in every output: pages, tables, timelines, figures and files that tools read.

A page must hold the elements that it holds with plain names, and no other script, handler or address; XML and JSON must
parse; nothing is written beside what was asked for; a terminal gets no control sequence.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pipeline.core.errors import PlacewrightError
from pipeline.report.run import RunRecords
from tests.campaigns.commands import environment, run_command
from tests.campaigns.files import GRAPH, TOPOLOGY, toml_text
from tests.campaigns.mutation import HOSTILE_NAMES
from tests.campaigns.runner import Campaign, Case, Judge, require
from tests.reports import HOSTILE, Page, finished

PIECES = (
    "<",
    ">",
    "'",
    '"',
    "&",
    "`",
    "{{",
    "}}",
    "{%",
    "</script>",
    "<!--",
    "]]>",
    "javascript:",
    "\\",
    "\u2028",
    "%s",
)
ACTIVE = ("onerror", "onload", "onclick", "onmouseover", "srcdoc", "formaction")


def drawn_names(case: Case, count: int) -> list[str]:
    """Return so many different names that are hostile to some language."""
    known = [*HOSTILE, *(n for n in HOSTILE_NAMES if n.strip() and "\ud800" not in n)]
    letters = [*PIECES, *string.ascii_letters[:6], "\x1b[2J", "ü", " "]
    names: dict[str, None] = {}
    while len(names) < count:
        drawn = "".join(letters[i] for i in case.rng.integers(len(letters), size=int(case.rng.integers(1, 9))))
        names[known[case.rng.integers(len(known))] if case.rng.random() < 0.4 else f"{drawn}{len(names)}"] = None
    return list(names)


def elements(page: Path) -> tuple[Counter[str], list[str]]:
    """Return the elements of a page, and its scripts; requires that none acts on its own, or leads elsewhere."""
    shown = Page(page.read_text(encoding="utf-8"))
    for tag, attributes in shown.tags:
        active = [name for name in attributes if name in ACTIVE or name.startswith("on")]
        require(not active, f"<{tag}> has {active}")
        address = attributes.get("src", "") + attributes.get("href", "")
        require("script:" not in address.lower() or tag == "svg", f"<{tag}> leads to {address[:80]}")
        require(tag not in ("iframe", "object", "embed", "base", "form"), f"<{tag}>")
    return Counter(tag for tag, _ in shown.tags), shown.scripts


def judge_run(case: Case) -> str:
    """Report on, compare and emit a run of hostile operations, in a folder of a hostile name."""
    names = drawn_names(case, 5)
    plain = finished(case.folder / "plain", ["n0", "n1", "n2", "n3", "n4"])
    folder_name = drawn_names(case, 1)[0].replace("/", "_").replace("\0", "_").strip(".")[:60] or "x"
    hurt = finished(case.folder / folder_name, names)
    pages = []
    for folder, name in ((plain, "plain.html"), (hurt, "hurt.html")):
        ended = run_command("report", folder, "--out", case.folder / name)
        require(ended.code == 0, f"report of {names}: {ended.err}")
        pages.append(elements(case.folder / name))
    scripts = [sorted(found[1]) for found in pages]
    require(scripts[0] == scripts[1], f"names {names} change the scripts of a page")
    require(pages[0][0]["script"] == pages[1][0]["script"], f"names {names} add scripts to a page")
    require(run_command("compare", plain, hurt).code in (0, 2, 7), "compare")
    before = set(case.folder.rglob("*"))
    with contextlib.suppress(PlacewrightError):
        RunRecords.load(hurt).timeline()
    require(set(case.folder.rglob("*")) == before, "files appear beside what was asked for")
    return "report"


def judge_search(case: Case) -> str:
    """Search on a graph of hostile names, with every file that a search writes."""
    names = drawn_names(case, 5)
    called = dict(zip([op["name"] for op in GRAPH["operations"]], names, strict=True))
    graph: dict[str, Any] = json.loads(json.dumps(GRAPH))
    for operation in graph["operations"]:
        operation["name"] = called[operation["name"]]
        operation["type"] = drawn_names(case, 1)[0]
    for edge in graph["edges"]:
        edge |= {"from": called[edge["from"]], "to": called[edge["to"]]}
    (case.folder / "g.json").write_text(json.dumps(graph), encoding="utf-8")
    (case.folder / "t.toml").write_text(toml_text(TOPOLOGY), encoding="utf-8")
    out = case.folder / "out"
    out.mkdir()
    wanted = {"--trace": out / "t.json.gz", "--report": out / "r.html", "--curve": out / "c.svg"}
    given = [word for pair in wanted.items() for word in pair]
    where = ["search", case.folder / "g.json", "--topology", case.folder / "t.toml", "--evaluations", "6"]
    ended = run_command(*where, *given, "--json", "--quiet")
    require(ended.code == 0, f"search on {names}: {ended.err}")
    require(set(ended.document["placement"]) == set(names), f"{names} become {list(ended.document['placement'])}")
    require({p.name for p in out.iterdir()} == {p.name for p in wanted.values()}, f"files: {list(out.iterdir())}")
    elements(out / "r.html")
    ElementTree.parse(out / "c.svg")
    json.loads(gzip.decompress((out / "t.json.gz").read_bytes()))
    run_command(*where)
    return "search"


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what writes hostile names."""
    with environment(PLACEWRIGHT_STORE=str(folder / "store"), PLACEWRIGHT_LOCK=str(folder / "lock")):
        yield lambda case: (judge_run, judge_search)[case.seed % 2](case)


CAMPAIGN = Campaign("hostile", 0.5, begin)
