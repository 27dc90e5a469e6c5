"""Names of strangers in every output, and links, paths and archives of strangers in what is read.

A page must hold the elements that it holds with plain names, and no other script, handler or address; XML and JSON must
parse; nothing is written beside what was asked for; a terminal gets no control sequence. Links in a store or run, names
that lead out of their folder, and archives that lie about what they hold change and remove nothing elsewhere; what is
kept is closed to others.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import string
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pipeline.core.errors import PlacewrightError
from pipeline.report.run import RunRecords
from pipeline.result.directory import take_away_stale
from pipeline.shared.payload import load_arrays
from pipeline.store.store import Store, write_json
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


def judge_links(case: Case) -> str:
    """List, check, clean and replace a store in which links, folders and names lie that no store has made."""
    rng, before = case.rng, os.umask(int(case.rng.choice([0, 0o022, 0o077])))
    try:
        store, victim = Store(case.folder / "store"), case.folder / "victim"
        victim.mkdir()
        (victim / "entry.json").write_text("{}", encoding="utf-8")
        keys = [f"{i:02x}" * 32 for i in range(3)]
        for key in keys:
            with store.scratch() as scratch:
                (scratch / "payload").mkdir()
                write_json(scratch / "payload" / "answer.json", {"answer": key})
                store.add(key, {"stage": "read", "name": "x", "params": {}}, {"made_at": 1.7e9}, scratch / "payload")
        opened = [p for p in store.root.rglob("*") if p.lstat().st_mode & 0o077]
        require(not opened, f"open to others: {opened}")
        entry = store.folder(keys[rng.integers(3)])
        target = victim if rng.random() < 0.7 else case.folder / "nowhere"
        link = {
            0: entry / "more.json",
            1: store.root / "aa",
            2: store.root / "aa" / ("aa" * 32),
            3: store.root / "partial" / ("aa" * 32),
            4: store.root / "tmp" / "x",
            5: store.root / str(rng.choice(["00", "zz", "..a"])) / str(rng.choice(["x", "a\nb", "\x1b[2J", "y" * 200])),
        }[int(rng.integers(6))]
        link.parent.mkdir(exist_ok=True, parents=True)
        if rng.random() < 0.5:
            link.symlink_to(target)
        else:
            link.mkdir()
            (link / "entry.json").symlink_to(target / "entry.json")
        for command in (["ls"], ["ls", "--json"], ["gc", "--older-than", "0"]):
            ended = run_command("cache", *command, "--store", store.root)
            require(ended.code in (0, 2), f"cache {command} beside {link}: {ended.err}")
        require((victim / "entry.json").is_file(), f"{link} let gc remove what it leads to")
    finally:
        os.umask(before)
    return "links"


def judge_stale(case: Case) -> str:
    """Take away the files of a run whose result lists files elsewhere."""
    folder, victim = case.folder / "run", case.folder / "victim"
    folder.mkdir()
    victim.write_text("mine", encoding="utf-8")
    (folder / "link").symlink_to(victim)
    names = ["../victim", str(victim), "link", "a/../../victim", "", ".", "..", *drawn_names(case, 2)]
    listed = {str(i): str(name) for i, name in enumerate(case.rng.permutation(names)[:4])}
    document = {"stages": [{"stage": "read", "key": "0"}], "files": listed}
    (folder / "result.json").write_text(json.dumps(document), encoding="utf-8")
    with contextlib.suppress(PlacewrightError):
        take_away_stale(folder, {"read": "1"}, same_settings=False)
    require(victim.read_text(encoding="utf-8") == "mine", f"{listed} remove what is not the run's")
    return "stale"


def judge_archive(case: Case) -> str:
    """Read an archive whose members have names that lead elsewhere, objects, or sizes that nothing has."""
    rng, path = case.rng, case.folder / "data.npz"
    header = {"descr": str(rng.choice(["<f4", "|O", "<U9", "[('a', '<f8')]", "<f99"])), "fortran_order": False}
    shape = tuple(int(n) for n in rng.choice([-1, 0, 1, 3, 2**31, 2**40, 2**62], int(rng.integers(0, 3))))
    content = io.BytesIO()
    text = (str({**header, "shape": shape}) + "\n").encode()
    content.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(int(rng.integers(0, 64))))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in {"x.npy", str(rng.choice(["../out.npy", "/tmp/out.npy", "a\\b.npy", "x.npy", "."]))}:
            archive.writestr(name, content.getvalue() if rng.random() < 0.8 else bytes(10_000_000))
    before = set(case.folder.rglob("*"))
    try:
        arrays = load_arrays(path)
    except ValueError:
        return "archive refused"
    finally:
        require(set(case.folder.rglob("*")) == before, "an archive is unpacked")
    require(all(a.dtype != object for a in arrays.values()), "objects are unpickled")
    return "archive read"


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what writes hostile names."""
    with environment(PLACEWRIGHT_STORE=str(folder / "store"), PLACEWRIGHT_LOCK=str(folder / "lock")):
        trials = (judge_run, judge_search, *(judge_links, judge_stale, judge_archive, judge_archive) * 5)
        yield lambda case: trials[case.seed % len(trials)](case)


CAMPAIGN = Campaign("hostile", 0.5, begin)
