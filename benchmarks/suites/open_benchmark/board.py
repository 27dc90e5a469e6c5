"""The board of the open benchmark: one static page of all submissions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.make_instances import SIZE_WORDS
from benchmarks.suites.open_benchmark.known import (
    SUBMISSIONS,
    Standing,
    SubmissionDocument,
    read_index,
    read_submission,
    scores,
    standings,
    submission_files,
)
from pipeline.bench.suites import BenchRequest
from pipeline.core.errors import UsageError
from pipeline.core.figures import bound_text, gap_text, share_text
from pipeline.report.page import write_page
from pipeline.report.plain_page import PlainPage, Section, TableCell, number_cell

READS = frozenset({"files"})
PAGE = "board.html"
GROUPS = ("instances", "with a value", "proven optimal", "median gap", "largest gap", "seconds to within 1 %")
INSTANCES = (
    *("instance", "set", "family", "operations", "devices", "seen by", "best known", "lower bound", "gap", "proven by"),
    *("held by", "found by"),
)


def run(asked: BenchRequest) -> dict[str, Any]:
    """Write the page of the submissions of the repository, or of files, and return its facts; see `Suite`.

    Raises:
        UsageError: there is no submission, or one cannot be read.
    """
    files: Sequence[Path] = asked.options["files"] or submission_files(SUBMISSIONS)
    if not files:
        raise UsageError("There is no submission.", "Make one: placewright bench open --out DIR.")
    submissions = [read_submission(file) for file in files]
    known = standings(read_index(), submissions)
    asked.out.mkdir(parents=True, exist_ok=True)
    write_page(asked.out / PAGE, board_page(known, submissions).text())
    return {
        "schema": "placewright.bench-board/1",
        "submissions": [document["by"] for document in submissions],
        **facts(list(known.values())),
        "by_family": {key: facts(each) for key, each in grouped(known, lambda s: s.instance.tags["family"]).items()},
        "by_size": {key: facts(each) for key, each in grouped(known, lambda s: s.instance.tags["size"]).items()},
        "found_by": dict(found_by(known)),
    }


def texts(document: Mapping[str, Any], out: Path) -> Iterator[str]:
    """Yield the facts in words; see `Suite`."""
    share = share_text(document["proven"] / max(document["instances"], 1))
    yield f"{document['proven']} of {document['instances']} instances are proven optimal ({share})"
    yield f"median gap {gap_text(document['median_gap'])}, largest {gap_text(document['largest_gap'])}"
    yield f"Written to {out / PAGE}"


def facts(found: Sequence[Standing]) -> dict[str, Any]:
    """Return what is known of instances: how many, with a value, proven optimal, the median and the largest gap.

    Also of how many it is told after how many seconds a search came within 1 %, and the median of these.
    """
    gaps = [each.gap for each in found if math.isfinite(each.value_s)]
    within = [each.within_s for each in found if math.isfinite(each.within_s)]
    return {
        "instances": len(found),
        "answered": len(gaps),
        "proven": sum(each.proven for each in found),
        "median_gap": median(gaps) if gaps else 1.0,
        "largest_gap": max(gaps, default=1.0),
        "within_told": len(within),
        "median_within_s": median(within) if within else None,
    }


def grouped(known: Mapping[str, Standing], key: Callable[[Standing], str]) -> dict[str, list[Standing]]:
    """Return the standings by what they have in common, sorted by it."""
    parts: dict[str, list[Standing]] = {}
    for each in known.values():
        parts.setdefault(key(each), []).append(each)
    return dict(sorted(parts.items()))


def found_by(known: Mapping[str, Standing]) -> list[tuple[str, int]]:
    """Return (method, how many best known values it found), most first."""
    return Counter(each.found_by or "not said" for each in known.values() if each.holders).most_common()


def board_page(known: Mapping[str, Standing], submissions: Sequence[SubmissionDocument]) -> PlainPage:
    """Return the page of all that is known."""
    whole = facts(list(known.values()))
    test = facts([each for each in known.values() if each.instance.entry["set"] == "test"])
    unseen = facts([each for each in known.values() if not each.instance.tags["seen_by"]])
    sizes = [word for word, _ in SIZE_WORDS]
    by_size = grouped(known, lambda each: each.instance.tags["size"])
    ranking: list[list[str | TableCell]] = [
        [
            score.by,
            score.date,
            number_cell(str(score.answered), score.answered),
            number_cell(f"{score.points:.4f}", score.points),
            number_cell(f"{score.ratio:.4f}", score.ratio),
            number_cell(str(score.best), score.best),
            number_cell(str(score.alone), score.alone),
            score.method,
        ]
        for score in scores(known, submissions)
    ]
    return PlainPage(
        "The open placement benchmark",
        verdict=(
            f"{share_text(whole['proven'] / max(whole['instances'], 1))} of {whole['instances']} instances are proven "
            f"optimal; the median gap is {gap_text(whole['median_gap'])}."
        ),
        glance=[
            ("submissions", str(len(submissions))),
            ("instances for testing", f"{test['instances']}, {test['proven']} proven optimal"),
            (
                "of families that no shipped weights have seen",
                f"{unseen['instances']}, {unseen['proven']} proven optimal",
            ),
            ("a search from scratch comes within 1 % in", f"{_within_text(whole)}, median and number of instances"),
            ("check all of it", "python benchmarks/instances/verify.py benchmarks/instances/submissions/*.json.gz"),
            ("make this page", "placewright bench board --out docs"),
        ],
        sections=[
            Section(
                "Submissions",
                "Points: mean over the test instances of best known value / value, 0 without one. Over best known: "
                "geometric mean of value / best known value of what it answers.",
                columns=("submission", "date", "instances", "points", "over best known", "best known", "alone", "how"),
                rows=ranking,
                numbers=(2, 3, 4, 5, 6),
            ),
            _group_section("By family", grouped(known, lambda each: each.instance.tags["family"])),
            _group_section("By size in operations", {word: by_size[word] for word in sizes if word in by_size}),
            _group_section("By rules", grouped(known, _rules_words)),
            _group_section("By lower bound", grouped(known, lambda each: bound_text(each.bound_by) or "none")),
            Section(
                "Methods that found the best known values",
                columns=("method", "instances"),
                rows=[[name, number_cell(str(count), count)] for name, count in found_by(known)],
                numbers=(1,),
            ),
            Section(
                "Instances",
                columns=INSTANCES,
                rows=[_instance_cells(name, each) for name, each in known.items()],
                numbers=(3, 4, 6, 7, 8),
                filtered=True,
            ),
        ],
    )


def _rules_words(standing: Standing) -> str:
    rules = standing.instance.entry["rules"]
    words = [str(rules[key]) for key in ("evaluator", "level", "contiguity") if key in rules]
    words += [f"{rules['calls']} calls"] if "calls" in rules else []
    return " ".join([*words, *(["with orders"] if rules["order"] and "calls" not in rules else [])])


def _group_section(title: str, parts: Mapping[str, Sequence[Standing]]) -> Section:
    rows: list[list[str | TableCell]] = []
    for name, found in parts.items():
        told = facts(found)
        counts = [number_cell(str(told[key]), told[key]) for key in ("instances", "answered", "proven")]
        gaps = [number_cell(gap_text(told[key]), told[key]) for key in ("median_gap", "largest_gap")]
        within = number_cell(_within_text(told), told["median_within_s"])
        rows.append([name, *counts, *gaps, within])
    return Section(title, columns=("", *GROUPS), rows=rows, numbers=(1, 2, 3, 4, 5, 6))


def _within_text(told: Mapping[str, Any]) -> str:
    """Return the median seconds to within 1 % of the best known value, and on how many instances they are told."""
    return f"{told['median_within_s']:.2g} s ({told['within_told']})" if told["within_told"] else "not told"


def _instance_cells(name: str, each: Standing) -> list[Any]:
    tags, known = each.instance.tags, math.isfinite(each.value_s)
    return [
        *(name, each.instance.entry["set"], tags["family"]),
        *(number_cell(str(tags[key]), tags[key]) for key in ("operations", "devices")),
        ", ".join(tags["seen_by"]),
        number_cell(f"{each.value_s * 1e3:.6g} ms", each.value_s) if known else number_cell("none", None),
        number_cell(f"{each.lower_bound_s * 1e3:.6g} ms", each.lower_bound_s),
        number_cell("proven" if each.proven else gap_text(each.gap) if known else "", each.gap if known else None),
        bound_text(each.bound_by),
        ", ".join(each.holders),
        each.found_by,
    ]
