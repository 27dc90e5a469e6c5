"""What people read of a benchmark: tables, a plain sentence per model, and the rows of the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.suites.hsdag.summary import NEAR, median_curve
from pipeline.bench.summary import markdown, pictures_of, ratio_text
from pipeline.core.figures import gap_text
from pipeline.core.stages import PROVEN

Table = Mapping[str, Any]

CLAIMS = {
    "sequential": (
        "Simulated: sub-graphs one after another on a desktop's CPU and GPU, whose times are a roofline's, scaled so "
        "that each device alone takes the published latency (Duan et al., NeurIPS 2024, table 2) where there is one. "
        "Times as fast: the best single device's time over that of the method's placement, geometric mean over seeds, "
        "with a 95 % interval over seeds where they differ."
    ),
    "shared": (
        "Simulated: the same times, but the devices share their memory as an integrated GPU does (links of 40 GB/s and "
        "2 us), so that cutting a model pays more often."
    ),
    "hetero": (
        "Measured on this machine: two equal halves of its CPU, in turns. Equal devices in turns leave nothing "
        "to gain, so a ratio above 1 here tells of noise, or of what cutting a model changes in how it is compiled. "
        "The ratios of the search are those of single short measurements; those of the final are of starts beside the "
        "best device."
    ),
}


def results_page(document: Table, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """Return results.md of a benchmark's document; pictures: titles and files of intervals."""
    lines = [f"# Benchmark {document['suite']}", "", *_setting_lines(document)]
    for evaluator in dict.fromkeys(case["evaluator"] for case in document["cases"]):
        lines += ["", f"## {evaluator}", "", CLAIMS.get(evaluator, ""), "", *_ratio_table(document, evaluator), ""]
        for case in document["cases"]:
            if case["evaluator"] == evaluator:
                lines += ["", f"### {case['model']}", "", *_case_lines(document, case)]
    lines += ["", *pictures_of(pictures)]
    return "\n".join(lines).rstrip() + "\n"


def case_sentences(document: Table) -> list[str]:
    """Return what is to be said of every case in plain words."""
    return [f"{c['model']}, {c['evaluator']}: {case_words(document, c)}" for c in document["cases"]]


def case_words(document: Table, case: Table) -> str:
    """Return what is to be said of a case: by its final if there is one, as single measurements prove nothing."""
    final = final_of(document, case)
    return summary_sentence(rows_in(document, case), case) if final is None else final_sentence(final)


def final_of(document: Table, case: Table) -> Table | None:
    """Return the final of a case that was measured on devices, None where there is none."""
    finals = (f for f in document["finals"] if f["model"] == case["model"] and case["evaluator"] == "hetero")
    return next(finals, None)


def rows_in(document: Table, case: Table) -> list[Table]:
    """Return the rows of a document's summary that are about a case."""
    wanted = (case["model"], case["evaluator"])
    return [row for row in document["summary"] if (row["model"], row["evaluator"]) == wanted]


def summary_sentence(rows: Sequence[Table], case: Table) -> str:
    """Return which method is best, and whether the best learned one beats the best simple one.

    rows: of the summary, for one case. Of equal methods the first counts.
    """
    alive = [row for row in rows if row["ratio"] is not None]
    if not alive:
        return "no method found a placement that runs."
    best = _first_best(alive)
    optimal = best["gap"] is not None and best["gap"] <= PROVEN
    if best["ratio"]["median"] <= 1 + PROVEN:
        alone = _fastest_alone(case)
        words = (
            f"no placement is faster than {alone} alone, which is proven" if optimal else f"nothing beats {alone} alone"
        )
    else:
        known = ", the proven optimum" if optimal else ""
        words = f"{best['method']} is best with {ratio_text(best['ratio'])} times the best single device's speed{known}"
    return f"{words}; {_learned_or_simple(alive)}."


def _learned_or_simple(rows: Sequence[Table]) -> str:
    learned = [row for row in rows if row["learned"]]
    simple = [row for row in rows if not row["learned"]]
    if not learned or not simple:
        return f"no {'simple' if learned else 'learned'} method stands beside"
    ours, theirs = _first_best(learned), _first_best(simple)
    share = ours["ratio"]["median"] / theirs["ratio"]["median"] - 1
    pair = f"{ours['method']}, the best learned method,", f"{theirs['method']}, the best simple one"
    if abs(share) <= PROVEN:
        return f"{pair[0]} equals {pair[1]}"
    if share < 0:
        return f"{pair[0]} does not beat {pair[1]}: its placements take {1 / (1 + share) - 1:.2%} longer"
    if ours["ratio"]["low"] > theirs["ratio"]["high"]:
        return f"{pair[0]} beats {pair[1]} by {share:.2%}"
    return f"{pair[0]} is {share:.2%} ahead of {pair[1]}, which the spread over seeds does not confirm"


def _first_best(rows: Sequence[Table]) -> Table:
    """Return the row of the greatest ratio, of nearly equal ones the first."""
    most = max(row["ratio"]["median"] for row in rows)
    return next(row for row in rows if row["ratio"]["median"] >= most * (1 - PROVEN))


def _fastest_alone(case: Table) -> str:
    known = {d: s for d, s in case["single_s"].items() if s is not None}
    return str(min(known, key=lambda d: float(known[d])))


def final_sentence(final: Table) -> str:
    """Return what the final says of the placements."""
    single = final["best_single"]
    if single is None:
        return "no single device ran the model."
    faster = [m for m, ratio in final["ratios"].items() if ratio["low"] > 1]
    words = f"no placement is faster than {single} alone beyond noise"
    if faster:
        best = max(faster, key=lambda m: float(final["ratios"][m]["ratio"]))
        words = f"{best} is {_interval(final['ratios'][best])} times as fast as {single} alone"
    alive = [c for c in final["candidates"] if c["latency_s"] is not None]  # fastest first
    if alive and alive[0]["name"] not in (*final["plans"].values(), single):
        words += f", but of all that was measured {alive[0]['name']} is fastest"
    versus = final["learned_over_simple"]
    if versus is None:
        return f"{words}."
    pair = f"{versus['learned']}, the best learned method, {{}} {versus['simple']}, the best simple one"
    verb = "beats" if versus["low"] > 1 else "falls behind" if versus["high"] < 1 else "cannot be told from"
    return f"{words}; {pair.format(verb)} ({_interval(versus)})."


def _setting_lines(document: Table) -> list[str]:
    settings, hardware = document["settings"], document["hardware"]
    effort = (
        f"{settings['evaluations']} evaluations per cell in the simulator, {settings['measurements']} on devices; "
        f"{settings['seeds']} seeds, {min(settings['seeds'], settings['real_seeds'])} on devices"
    )
    packages = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return [
        f"{'Quick: ' if settings['quick'] else ''}{effort}.",
        f"Machine: {hardware['cpu']}, {hardware['processors']} processors, {hardware['system']}.",
        f"Versions: {packages}.",
        *(f"\nNote: {note}" for note in document["notes"]),
    ]


def _ratio_table(document: Table, evaluator: str) -> list[str]:
    """Return the table of ratios, method by model."""
    cases = [case for case in document["cases"] if case["evaluator"] == evaluator]
    rows = {(row["method"], row["model"]): row for case in cases for row in rows_in(document, case)}
    lines = []
    for mean in document["all_models"]:
        if mean["evaluator"] == evaluator:
            of_cases = [rows.get((mean["method"], case["model"])) for case in cases]
            cells = ["-" if row is None else ratio_text(row["ratio"]) for row in of_cases]
            lines.append([mean["method"], *cells, *([ratio_text(mean["ratio"])] if len(cases) > 1 else [])])
    return markdown(["method", *(c["model"] for c in cases), *(["all"] if len(cases) > 1 else [])], lines)


def _case_lines(document: Table, case: Table) -> list[str]:
    rows = rows_in(document, case)
    alone = ", ".join(f"{d} {_ms(s)}" for d, s in case["single_s"].items())
    best = case["optimum"]
    known = "unknown" if best is None else f"{_ms(best['value_s'])}, {'proven' if best['proven'] else 'not proven'}"
    header = [
        "method",
        "ms",
        "times as fast",
        "gap",
        "evaluations",
        f"to {NEAR:.0%}",
        "s",
        f"s to {NEAR:.0%}",
        "arrived",
    ]
    table = [
        [
            row["method"],
            "-" if row["value_s"] is None else f"{row['value_s'] * 1e3:.4g}",
            ratio_text(row["ratio"]),
            "-" if row["gap"] is None else gap_text(row["gap"]),
            _figure_text(row["evaluations"]),
            _figure_text(row["near_evaluations"]),
            _figure_text(row["seconds"]),
            _figure_text(row["near_s"]) if case["evaluator"] != "hetero" else "-",
            f"{row['arrived']} of {row['seeds']}",
        ]
        for row in rows
    ]
    failed = [f"\n{row['method']} failed: {'; '.join(row['failed'])}" for row in rows if row["failed"]]
    text = f"In words: {case_words(document, case)}"
    size = f"{case['operations']} operations, {case['edges']} edges. Alone: {alone}. Optimum: {known}."
    return [size, "", text, "", *markdown(header, table), *failed, *_final_lines(document, case)]


def _final_lines(document: Table, case: Table) -> list[str]:
    final = final_of(document, case)
    if final is None:
        return []
    rows = [
        [c["name"], "-", "-"]
        if c["latency_s"] is None
        else [c["name"], f"{c['latency_s']['median'] * 1e3:.4g}", _spread(c["latency_s"])]
        for c in final["candidates"]
    ]
    ratios = [[method, final["plans"][method], _interval(r)] for method, r in final["ratios"].items()]
    return [
        "",
        "The final, the best placement of every method in turns:",
        "",
        *markdown(["method", "placement", f"times as fast as {final['best_single']}"], ratios),
        "",
        *markdown(["measured", "ms", "95 %"], rows),
    ]


def curve_rows(records: Sequence[Table], case: Table, last: int) -> list[dict[str, Any]]:
    """Return the rows of the figure of one case: per method the best so far, median over seeds; single devices apart.

    last: evaluations up to which the figure goes.
    """
    best = case["optimum"]
    bound_s = best["value_s"] if best is not None and best["proven"] else None
    single_s = min((s for s in case["single_s"].values() if s is not None), default=None)
    alone = {f"single {device}" for device in case["single_s"]}
    rows = []
    for method in dict.fromkeys(r["method"] for r in records if r["method"] not in alone):
        for done, value_s in median_curve([r for r in records if r["method"] == method], last):
            rows.append({"placer": method, "done": done, "value_s": value_s, "single_s": single_s, "bound_s": bound_s})
    return rows


def _interval(ratio: Table) -> str:
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _spread(latency_s: Table) -> str:
    if latency_s["low"] is None:
        return ""
    return f"[{latency_s['low'] * 1e3:.4g}, {latency_s['high'] * 1e3:.4g}]"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"


def _figure_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
