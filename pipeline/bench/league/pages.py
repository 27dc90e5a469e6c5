"""What people read of a league: one Markdown page and its pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.bench.league.entries import SLOW
from pipeline.bench.league.paired import ALPHA
from pipeline.bench.league.protocol import FULL, NOISE, QUICK
from pipeline.bench.summary import markdown, ratio_text
from pipeline.core.figures import share_text
from pipeline.report.charts import draw_ranks, ratio_curves
from pipeline.report.comparison import DrawnComparison, interval_row
from pipeline.report.page import svg_file
from pipeline.report.text import seconds_text
from pipeline.store.store import write_text

Table = Mapping[str, Any]
LINES = 7  # curves of a picture, one per colour: the best, beside which the reference stands as a line at 1
INTERVALS = (
    "Seconds of the reference's placement over those of the placer's: geometric mean over instances, with a 95 % "
    "bootstrap interval over instances. The words beside it are the ratio of the table, which is one over it."
)

ABOUT = """`placewright bench league{options} --out DIR --page docs/league.md` goes on where it was interrupted, runs
only what a changed placer concerns, and writes this page again. Everything here is predicted by the simulator
`listsched`, on one machine for all; nothing is measured on devices. A number is checked by running its cells alone:
`--instances GRAPH --methods PLACER --parts PART`; equal seeds and evaluations give equal answers.

**ratio**: seconds of the placer's placement over those of `{reference}` after {evaluations:,} evaluations on the same
instance; less is better. Geometric mean over the seeds of an instance, then over instances, with a 95 % bootstrap
interval over instances. **over rules**, **over bound**, **over best known**: the same over the best rule of thumb or
list scheduler of each instance, over its lower bound, and over the best placement that any search here has found,
whatever its budget. **wins**, **losses**: share of instances more than 1 % better or worse than the
reference. **best**: share of instances on which nobody is more than 1 % better. **never worse**: share of cells not
slower than the best single device, and than HEFT. **infeasible**: cells without a placement that fits where somebody
has one. **s**, **CPU s**, **asked**: median seconds, processor seconds and evaluations of a search, preparation
included; **planned**: schedules and estimates that a placer makes by itself to choose what it asks about. **p**:
Wilcoxon's signed ranks over instances, two-sided. **Unseen** are instances of families that no weights which ship with
placewright were learned from, or chosen by."""


BEST = 5  # rows of a table of the brief page
BRIEF = """The {best} best of each main table, as `placewright bench league{options} --out DIR --page docs/league.md`
writes them; DIR/league.md leads to all of it, with families, curves, disturbed costs and controls. `--records
benchmarks/league.jsonl.gz` takes the cells from those kept there, or goes on from them. All is predicted by the
simulator `listsched`; nothing is measured on devices. A number is checked by running its cells alone: `--instances
GRAPH --methods PLACER --parts PART`; equal seeds and evaluations give equal answers.

**ratio**: seconds of the placer's placement over those of `{reference}` after {evaluations:,} evaluations on the same
instance; less is better. Geometric mean over seeds, then instances, with a 95 % bootstrap interval over instances.
**over rules**, **over bound**, **over best known**: the same over the best rule of thumb or list scheduler of each
instance, over its lower bound, and over the best placement that any search of the league has found, whatever its
budget. **infeasible**: cells without a placement that fits. **s**: median seconds of a search; **planned**: median
of the schedules and estimates that it made by itself. **p**: Wilcoxon's signed ranks over instances, corrected by
Holm's method."""


def write_pages(document: Table, path: Path, *, brief: bool = False) -> None:
    """Write the page of a league's document, its pictures, and a page per part beside it; names begin with the page's.

    brief: the main tables alone, the best of each, on one page.

    Raises:
        StoreError: it cannot be written.
    """
    for file, drawing in _pictures(document, path.stem):
        write_text(path.with_name(file), svg_file(drawing))
    if brief:
        write_text(path, brief_page(document, path.stem))
        return
    write_text(path, league_page(document, path.stem))
    for part in parts_of(document):
        write_text(path.with_name(f"{path.stem}-{part}.md"), part_page(document, part, path.stem))
    write_text(path.with_name(f"{path.stem}-instances.md"), instances_page(document))


def parts_of(document: Table) -> list[str]:
    """Return the parts that have tables, in their order."""
    return list(dict.fromkeys(table["part"] for table in document["tables"]))


def league_page(document: Table, name: str = "league") -> str:
    """Return the first page of a league's document: what it says in words, and where its tables are.

    name: what the names of its pictures and of the other pages begin with.
    """
    pictures = [f"![{table['title']}]({file})" for table, file in _first_pictures(document, name)]
    pages = [f"- [{TITLES[part]}]({name}-{part}.md)" for part in parts_of(document)]
    pages.append(f"- [What was asked about]({name}-instances.md): sizes, bounds, and whose weights have seen which")
    head = _head_lines(document, ABOUT)
    return "\n".join([*head, *pictures[:1], "", *league_sentences(document), "", "## Tables", "", *pages]) + "\n"


def part_page(document: Table, part: str, name: str = "league") -> str:
    """Return the page of one part: its tables, its controls and its pictures."""
    tables = [table for table in document["tables"] if table["part"] == part]
    lines = [f"# {TITLES[part]}", "", f"A part of [the league]({name}.md), which says what the columns are.", ""]
    return "\n".join([*lines, *_part_lines(part, tables, document, name)]).rstrip() + "\n"


def instances_page(document: Table) -> str:
    """Return the page of all instances."""
    return "\n".join(["# What was asked about", "", *_instance_lines(document)]) + "\n"


def brief_page(document: Table, name: str = "league") -> str:
    """Return the page that documents have: what it says in words, the main tables, and of each the best."""
    lines = [*_head_lines(document, BRIEF), *league_sentences(document)]
    for part in MAIN_PARTS:
        tables = [table for table in document["tables"] if table["part"] == part]
        lines += ["", f"## {TITLES[part]}"] if tables else []
        if part in ("search", "large"):
            for table in tables:
                lines += ["", f"### {table['title']}", "", *_best_lines(table)]
                lines += [
                    f"\n![{table['title']}]({file})" for file, _ in _pictures({**document, "tables": [table]}, name)
                ]
        elif tables:
            lines += ["", *_ratio_columns(tables)[: BEST + 2]]
    return "\n".join(lines).rstrip() + "\n"


def _head_lines(document: Table, about: str) -> list[str]:
    settings = document["settings"]
    told = about.format(
        options=_written_options(document),
        reference=document["reference"],
        evaluations=settings["reference"],
        best=BEST,
    )
    return ["# The league of placers", "", told, "", *_setting_lines(document), "", "## In words", ""]


def _written_options(document: Table) -> str:
    """Return the options of the command that makes the same league, each with a space before it."""
    settings, question = document["settings"], document["question"]
    usual = asdict(QUICK if settings["quick"] else FULL)
    asked = {name: ",".join(question[key]) for name, key in (("methods", "placers"), ("instances", "instances"))}
    asked |= {"parts": "" if tuple(settings["parts"]) == usual["parts"] else ",".join(settings["parts"])}
    asked |= {n: "" if settings[n] == usual[n] else f"{settings[n]:g}" for n in ("seeds", "evaluations", "seconds")}
    return (" --quick" if settings["quick"] else "") + "".join(f" --{n} {v}" for n, v in asked.items() if v)


def _best_lines(table: Table) -> list[str]:
    entries = [row for row in table["standings"] if not row["control_of"]]
    p = {} if table["ranks"] is None else {pair["other"]: pair["holm_p"] for pair in table["ranks"]["pairs"]}
    rows = [
        [
            _placer_words(row, len(table["instances"])),
            ratio_text(row["ratio"], 3),
            _figure_text(row["rule_ratio"]),
            _figure_text(row["bound_ratio"]),
            _figure_text(row["known_ratio"]),
            _figure_text(row["seconds"], 2),
            _count_text(row["planned"]),
            _p_text(p.get(row["placer"])),
        ]
        for row in entries[:BEST]
    ]
    header = ["placer", "ratio", "over rules", "over bound", "over best known", "s", "planned", "p"]
    return markdown(header, rows)


MAIN_PARTS = ("search", "large", "memory", "unseen", "transfer")
TITLES = {
    "search": "Search at equal cost",
    "large": "Large graphs",
    "levels": "Simpler simulators",
    "order": "Placements with an order",
    "memory": "Little memory",
    "unseen": "Machines nobody was trained on",
    "noise": "Disturbed costs",
    "transfer": "One pass, 16 samples, a whole search; and what was learned elsewhere",
}
NEVER = "never learns"  # the control that stands for a learner where one has to do


def league_sentences(document: Table) -> list[str]:
    """Return about ten plain sentences: who is best at what, who is told apart, and what learning adds."""
    said = []
    for table in document["tables"]:
        if table["part"] not in ("search", "large"):
            continue
        unseen = [_winner_sentence(table, "unseen")] if table["part"] == "search" else []
        ranks = table["ranks"] if table["part"] == "search" else None
        told = [
            *unseen,
            _winner_sentence(table, "standings"),
            *([] if ranks is None else [_told_apart_sentence(ranks)]),
        ]
        told += [*_learning_sentences(table), *_busy_sentences(table)]
        said += ["", f"**{table['title']}**", "", *(f"- {sentence}" for sentence in told)]
    return said[1:]


def _told_apart_sentence(ranks: Mapping[str, Any]) -> str:
    """Return whom the best is told apart from by paired tests."""
    told: dict[str, list[str]] = {"fewer": [], "more": [], "alike": []}
    for pair in ranks["pairs"]:  # the least mean rank may have more seconds: by much, on few instances
        way = "alike" if pair["holm_p"] >= ALPHA else "fewer" if pair["ratio"]["median"] < 1 else "more"
        told[way].append(f"{pair['other']} ({ratio_text(pair['ratio'], 3)})")
    best = next(iter(ranks["ranks"]))
    words = f"Of {len(ranks['ranks'])} ranked on {ranks['instances']} instances, {best} has the least mean rank"
    for way in ("fewer", "more"):
        if told[way]:
            words += f"; its seconds are {way} than those of {', '.join(told[way])}, by paired tests at 5 %"
    return f"{words}; it is not told apart from {', '.join(told['alike'])}." if told["alike"] else f"{words}."


def _learning_sentences(table: Table) -> Iterator[str]:
    """Yield what each placer that is ours is beside the control that tells most, and all published ones in one."""
    published = {row["placer"] for row in table["standings"] if row["kind"] in SLOW}
    pairs = [pair for pair in table["controls"] if pair["placer"] not in published]
    for placer in dict.fromkeys(pair["placer"] for pair in pairs):
        mine = [pair for pair in pairs if pair["placer"] == placer]
        yield _control_words(next((p for p in mine if p["control"].endswith(NEVER)), mine[0]))
    theirs = [pair for pair in table["controls"] if pair["placer"] in published and pair["control"].endswith(NEVER)]
    for verdict in dict.fromkeys(pair["verdict"] for pair in theirs):
        told = ", ".join(f"{p['placer']} {ratio_text(p['ratio'], 3)}" for p in theirs if p["verdict"] == verdict)
        yield f"Published learners over themselves without learning, {verdict}: {told}."


def _count_disturbed(table: Table) -> tuple[int, int]:
    """Return how many cells were ended by the clock while others had the processor, of how many."""
    rows = table["standings"]
    return sum(row["disturbed"] for row in rows), sum(row["cells"] for row in rows)


def _busy_sentences(table: Table) -> Iterator[str]:
    late, cells = _count_disturbed(table)
    if late:
        yield f"The machine was busy: {late:,} of {cells:,} cells had too little of it for their seconds to count."


def _winner_sentence(table: Table, which: str) -> str:
    """Return who is best of the instances that no shipped weights have seen ("unseen"), or of all ("standings")."""
    rows = [row for row in table[which] if row["ratio"] is not None]
    whole = [row for row in rows if row["instances"] == rows[0]["instances"]] if rows else []
    count = max((row["instances"] for row in table[which]), default=0)
    n, kind, many = (count, "unseen ", "") if which == "unseen" else (len(table["instances"]), "", "all ")
    told = f"the one {kind}instance" if n == 1 else f"{many}{n} {kind}instances"
    if not whole:
        return "No family is unseen." if which == "unseen" and count == 0 else "Nobody found a placement."
    best = whole[0]
    level = [row["placer"] for row in whole[1:] if row["ratio"]["low"] <= best["ratio"]["high"]]
    words = f"On {told} {best['placer']} is first with {ratio_text(best['ratio'], 3)}"
    learned = next((row for row in whole if row["learned"] and not row["control_of"]), None)
    if level:
        words += f"; intervals overlap with {', '.join(level[:3])}" + (" and others" if len(level) > 3 else "")
    if learned is not None and learned is not best:
        words += f"; the best that learns as it searches is {learned['placer']} with {ratio_text(learned['ratio'], 3)}"
    hurt = [row["placer"] for row in whole if row["not_worse_single"] is not None and row["not_worse_single"] < 1]
    words += f"; worse than a device alone at times: {', '.join(hurt)}" if hurt else ""
    return f"{words}."


def _control_words(pair: Mapping[str, Any]) -> str:
    """Return what a placer is beside its control, instance by instance."""
    control = pair["control"].partition(": ")[2] or pair["control"]
    told = f"`{pair['placer']}` over its control `{control}`: {ratio_text(pair['ratio'], 3)}"
    return f"{told}, p {_p_text(pair['p'])}: {pair['verdict']}."


def _setting_lines(document: Table) -> list[str]:
    settings = document["settings"]
    count = sum(not instance["trivial"] for instance in document["instances"])
    lines = [
        f"{'Quick: a' if settings['quick'] else 'A'}t most {settings['graphs']} test graphs of a family; "
        f"{settings['seeds']} seeds of placers that draw, {settings['further_seeds']} of controls, equal seconds and "
        f"further parts, 1 on further machines, {settings['slow_seeds']} of published learners; "
        f"{len(document['cells']):,} cells on {len(document['instances'])} instances, "
        f"{len(document['instances']) - count} of which are trivial: a device alone is within 5 % of the lower bound.",
        "",
        f"Run on: {'; '.join(document['machines'])}. Seconds are those of a machine that others "
        "may have used at the time. Intervals of fewer than eight instances are too narrow.",
    ]
    return [*lines, *(f"\nNote: {note}" for note in document["notes"])]


def _part_lines(part: str, tables: Sequence[Table], document: Table, name: str) -> Iterator[str]:
    if part == "unseen":
        yield from _ratio_columns(tables)
        return
    if part == "transfer":
        yield from _transfer_lines(tables, document)
        return
    for table in tables:
        yield f"### {table['title']}"
        yield ""
        if part == "noise":
            yield from _noise_lines(table)
        else:
            yield from standing_table(table, families=part == "search")
        yield from ["", *_rank_lines(table), *(f"- {_control_words(pair)}" for pair in table["controls"])]
        if "curve" in table:
            yield from ["", *_curve_lines(table)]
        if "in_T2" in table:
            yield from ["", *_t2_lines(table)]
        for file, _ in _pictures({**document, "tables": [table]}, name):
            yield from ["", f"![{table['title']}]({file})"]
        yield ""


def standing_table(table: Table, *, families: bool) -> list[str]:
    """Return the lines of a table of standings; families: with a second one by family."""
    count = len(table["instances"])
    over = ["ratio", "over rules", "over bound", "over best known"]
    header = ["placer", *over, "wins", "losses", "best", "never worse", "infeasible"]
    rows = [
        [
            _placer_words(row, count),
            ratio_text(row["ratio"], 3),
            _figure_text(row["rule_ratio"]),
            _figure_text(row["bound_ratio"]),
            _figure_text(row["known_ratio"]),
            *(share_text(row[key]) or "-" for key in ("wins", "losses", "best")),
            f"{share_text(row['not_worse_single']) or '-'}, {share_text(row['not_worse_heft']) or '-'}",
            str(row["infeasible"] or "-"),
            _figure_text(row["seconds"], 2),
            _figure_text(row["cpu_s"], 2),
            f"{row['evaluations']:g}" if row["evaluations"] is not None else "-",
            _count_text(row["planned"]),
        ]
        for row in table["standings"]
    ]
    failed = [f"\n{row['placer']} failed: {'; '.join(row['failed'])}" for row in table["standings"] if row["failed"]]
    lines = [*markdown([*header, "s", "CPU s", "asked", "planned"], rows), *failed]
    late, cells = _count_disturbed(table)
    if late:
        lines += ["", f"**{late} of {cells} cells were ended by the clock while others had the processor**: on an idle "
                  "machine these searches get further. `--retry-disturbed` runs them again."]  # fmt: skip
    return [*lines, "", *_family_lines(table)] if families else lines


def _family_lines(table: Table) -> list[str]:
    names = list(dict.fromkeys(name for row in table["standings"] for name in row["families"]))
    rows = [
        [row["placer"], *(_figure_text(row["families"].get(name)) for name in names)]
        for row in table["standings"]
        if row["families"]
    ]
    return ["Ratio by family:", "", *markdown(["placer", *names], rows)]


def _placer_words(row: Table, count: int) -> str:
    words = row["placer"] + (" (learns)" if row["learned"] and not row["control_of"] else "")
    return words if row["instances"] == count else f"{words}, on {row['instances']} of {count}"


def _curve_lines(table: Table) -> list[str]:
    curve = table["curve"]
    unit = " s" if curve["by"] == "seconds" else ""
    header = [f"after {curve['by']}", *(f"{limit:g}{unit}" for limit in curve["limits"])]
    order = [row["placer"] for row in table["standings"]]
    rows = [[name, *(_figure_text(ratio) for ratio in curve["ratios"][name])] for name in order]
    return ["Ratio of the incumbent as the search goes on; \"-\" where an instance has none yet:", "",
            *markdown(header, rows)]  # fmt: skip


def _rank_lines(table: Table) -> Iterator[str]:
    """Yield mean ranks, and the paired tests of the best beside the others; nothing of too few instances."""
    ranks = table["ranks"]
    if ranks is None:
        return
    best = next(iter(ranks["ranks"]))
    tests = {pair["other"]: pair for pair in ranks["pairs"]}
    rows = [[best, f"{ranks['ranks'][best]:.2f}", "", ""]]
    for name, test in tests.items():
        rows.append([name, f"{ranks['ranks'][name]:.2f}", ratio_text(test["ratio"], 3), _p_text(test["holm_p"])])
    yield (
        f"Mean ranks over {ranks['instances']} instances: two that differ by more than {ranks['difference']:.2f} are "
        f"told apart at 5 % (Nemenyi); that all are alike has p {_p_text(ranks['friedman_p'])} (Friedman)."
    )
    yield from ["", *markdown(["placer", "mean rank", f"{best} over it", "p, by Holm"], rows), ""]


def _t2_lines(table: Table) -> list[str]:
    rows = [[row["placer"], ratio_text(row["ratio"], 3), ratio_text(row["over_promise"], 3)] for row in table["in_T2"]]
    header = ["placer", "ratio in T2", "over its prediction"]
    return ["The same placements in T2, over those that the reference found with as many evaluations:", "",
            *markdown(header, rows)]  # fmt: skip


def _noise_lines(table: Table) -> list[str]:
    percents = [round(100 * sd) for sd in NOISE]
    nominal = {row["placer"]: row["ratio"] for row in table["standings"]}
    header = ["placer", "as predicted", *(f"{p} % noise" for p in percents), f"over its prediction, {percents[-1]} %"]
    rows = [
        [
            row["placer"],
            ratio_text(nominal[row["placer"]], 3),
            *(ratio_text(row[f"ratio_{p}"], 3) for p in percents),
            ratio_text(row[f"over_promise_{percents[-1]}"], 3),
        ]
        for row in table["noise"]
    ]
    return ["Every operation's seconds move by a log-normal error after the search; ratios are to the reference's "
            "placement under the same errors.", "", *markdown(header, rows)]  # fmt: skip


def _ratio_columns(tables: Sequence[Table]) -> list[str]:
    """Return one table of several: a column of ratios each."""
    standings = [{row["placer"]: row for row in table["standings"]} for table in tables]
    order = dict.fromkeys(name for rows in standings for name in rows)
    lines = []
    for name in order:
        cells = [ratio_text(rows[name]["ratio"], 3) if name in rows else "-" for rows in standings]
        misses = sum(rows[name]["infeasible"] for rows in standings if name in rows)
        lines.append([name, *cells, str(misses or "-")])
    return markdown(["placer", *(table["title"].removeprefix("On ") for table in tables), "infeasible"], lines)


def _transfer_lines(tables: Sequence[Table], document: Table) -> Iterator[str]:
    yield from _ratio_columns(tables)
    yield ""
    yield (
        "Every device alone is evaluated first and counts besides in the first two columns. `taught`: begun with the "
        "policy that was learned on train graphs of all families; `taught elsewhere`: of all but the instance's own."
    )
    yield ""
    for table in tables:
        learners = [row for row in table["standings"] if row["learned"]]
        names = list(dict.fromkeys(name for row in learners for name in row["rule_families"]))
        rows = [[r["placer"], *(_figure_text(r["rule_families"].get(name)) for name in names)] for r in learners]
        if rows:
            yield f"{table['title']}, over the best rule of each instance, by family:"
            yield from ["", *markdown(["placer that learns", *names], rows), ""]
    lessons = document["lessons"]
    if lessons:
        yield "What learning took, and after how many graphs it is repaid against annealing to the same quality:"
        yield ""
        yield from markdown(
            ["placer", "learning", "graphs"],
            [
                [
                    row["placer"],
                    seconds_text(row["lesson_s"]),
                    "never" if row["graphs"] is None else _figure_text(row["graphs"]),
                ]
                for row in lessons
            ],
        )


def _instance_lines(document: Table) -> list[str]:
    rows = [
        [
            i["name"],
            i["family"],
            f"{i['operations']:,}",
            str(i["devices"]),
            i["level"],
            seconds_text(min((s for s in i["single_s"].values() if s is not None), default=None)) or "-",
            seconds_text(i["floor_s"]),
            "yes" if i["trivial"] else "",
            ", ".join(i["seen_by"]),
        ]
        for i in document["instances"]
    ]
    header = ["instance", "family", "operations", "devices", "level", "best device alone", "lower bound", "trivial"]
    header += ["seen by"]
    return markdown(header, rows)


def _pictures(document: Table, name: str) -> Iterator[tuple[str, Markup]]:
    """Yield the pictures of the searches: intervals, and the incumbent as the search goes on."""
    reference = _reference_words(document)
    for each in drawn_comparisons(document, name):
        yield each.file, each.drawing()
    for table in document["tables"]:
        if table["ranks"] is not None and table["part"] == "search":
            ranks = table["ranks"]
            picture = draw_ranks(ranks["ranks"], ranks["difference"], label=table["title"])
            yield f"{_file_stem(name, table)}-ranks.svg", picture
        if "curve" not in table:
            continue
        stem, rows = _file_stem(name, table), [row for row in table["standings"] if row["ratio"] is not None]
        curve = table["curve"]
        best = [row["placer"] for row in rows if not row["control_of"]][:LINES]
        lines = {
            placer: [(x, y) for x, y in zip(curve["limits"], curve["ratios"][placer], strict=True) if y is not None]
            for placer in best
        }
        drawing = ratio_curves(lines, label=table["title"], along=curve["by"], reference=reference)
        if drawing is not None:
            yield f"{stem}-curves.svg", drawing


def drawn_comparisons(document: Table, name: str) -> list[DrawnComparison]:
    """Return the intervals of the searches, upside down: a picture of speed has more to the right.

    name: what the names of their pictures begin with.
    """
    drawn = []
    for table in document["tables"]:
        known = [row for row in table["standings"] if row["ratio"] is not None] if table["part"] == "search" else []
        rows = tuple(
            interval_row(
                row["placer"],
                (1 / row["ratio"]["median"], 1 / row["ratio"]["high"], 1 / row["ratio"]["low"]),
                "best" if row is known[0] else "baseline" if row["control_of"] else "other",
                ratio_text(row["ratio"], 3),
            )
            for row in known
        )
        if rows:
            file = f"{_file_stem(name, table)}-intervals.svg"
            drawn.append(DrawnComparison(file, table["title"], INTERVALS, _reference_words(document), rows))
    return drawn


def _first_pictures(document: Table, name: str) -> Iterator[tuple[Table, str]]:
    """Yield the tables that have pictures, and the file of the first of each."""
    for table in document["tables"]:
        for file, _ in _pictures({**document, "tables": [table]}, name):
            yield table, file
            break


def _reference_words(document: Table) -> str:
    return f"{document['reference']}, {document['settings']['reference']:,}"


def _file_stem(name: str, table: Table) -> str:
    return f"{name}-{re.sub(r'[^a-z0-9]+', '-', table['title'].lower())}"


def _count_text(value: float | None) -> str:
    return f"{value:,.0f}" if value else "-"


def _p_text(p: float | None) -> str:
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _figure_text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.3g}"
