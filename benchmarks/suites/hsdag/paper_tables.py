"""Tables 2, 3 and 5 of HSDAG's paper, row by row: what it printed, beside what the same rows come to here.

Source: Duan et al., NeurIPS 2024, tables 2 (latencies in seconds), 3 (the same for three ablations) and 5 (seconds of
whole searches).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from benchmarks.suites.hsdag.cases import PUBLISHED
from pipeline.bench.methods import SINGLE
from pipeline.bench.summary import markdown
from pipeline.core.errors import UsageError, list_some

Table = Mapping[str, Any]
MODELS = ("inception-v3", "resnet50", "bert-base")
MEASURED = "hetero"  # all other evaluators simulate
SEARCHING = "Table 5"  # of the seconds that searches take; the others are of latencies
HOW = {
    "sequential": "simulated",
    "shared": "simulated, devices that share their memory",
    MEASURED: "measured on this machine",
}


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row of a table of the paper, or one beside it.

    method: of a benchmark. device: the kind of device that runs everything instead: alone, or as the first of AUTO's
    list, which takes the first device that can run the model; measured: what a contest on devices calls that.
    published: seconds on MODELS, of latency or of searching; None where the paper ran out of memory; empty where it has
    no such row.
    """

    name: str
    method: str = ""
    device: str = ""
    measured: str = ""
    published: tuple[float | None, ...] = ()


LATENCIES = (
    PaperRow("CPU-only", device="cpu", measured="CPU", published=(0.0128, 0.0160, 0.00638)),
    PaperRow("GPU-only", device="gpu", measured="GPU", published=(0.0120, 0.00781, 0.00277)),
    PaperRow("OpenVINO-CPU", device="cpu", measured="OpenVINO-CPU", published=(0.0128, 0.0234, 0.00657)),
    PaperRow("OpenVINO-GPU", device="gpu", measured="OpenVINO-GPU", published=(0.0138, 0.00876, 0.00284)),
    PaperRow("Placeto", "placeto", published=(0.0116, 0.00932, 0.00651)),
    PaperRow("RNN-based", "rnn", published=(0.0128, 0.00875, None)),
    PaperRow("HSDAG", "hsdag_paper", published=(0.0105, 0.00766, 0.00267)),
    PaperRow("HSDAG, as released", "hsdag_released"),
    PaperRow("`hsdag` from scratch", "hsdag"),
    PaperRow("`hsdag`", "hsdag-warm"),
    PaperRow("minimum cut", "min_cut"),
)
SEARCHES: Mapping[str, tuple[float | None, ...]] = {  # of methods of the paper
    "placeto": (2808.0, 1162.0, 4512.0),
    "rnn": (3706.0, 1212.0, None),
    "hsdag_paper": (2454.0, 1047.0, 2765.0),
}
TABLES: Mapping[str, tuple[PaperRow, ...]] = MappingProxyType(
    {
        "Table 2": LATENCIES,
        "Table 3": (
            PaperRow("Original", "hsdag_paper", published=(0.0105, 0.00766, 0.00267)),
            PaperRow("no output shape", "hsdag_paper without shape", published=(0.0117, 0.00768, 0.00278)),
            PaperRow("no node id", "hsdag_paper without id", published=(0.0117, 0.00768, 0.00279)),
            PaperRow("no structural features", "hsdag_paper without structure", published=(0.0109, 0.00766, 0.00268)),
        ),
        SEARCHING: tuple(replace(row, published=SEARCHES.get(row.method, ())) for row in LATENCIES if row.method),
    }
)


def check_rows(models: Iterable[str], methods: Iterable[str]) -> None:
    """Check that all that is asked for has a place in the tables.

    Raises:
        UsageError: a model is none of the paper's, or a method has no row; it is named.
    """
    foreign = [model for model in models if model not in MODELS]
    if foreign:
        raise UsageError(
            f"--tables compares with what the paper printed, which has no {list_some(foreign)}.",
            f"Choose of {', '.join(MODELS)}, or leave --tables out.",
        )
    rows = [SINGLE, *(row.method for rows in TABLES.values() for row in rows if row.method)]
    without = [method for method in methods if method not in rows]
    if without:
        raise UsageError(
            f"--tables has no row for {list_some(without)}.",
            f"Choose of {', '.join(dict.fromkeys(rows))}, or leave --tables out.",
        )


def tables_of(document: Table, methods: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the tables of a benchmark's document, simulated, and measured where devices were.

    Those of latencies; that of the seconds of searches where these asked a simulator. methods: those that were asked
    for; none for all.
    """
    cases = {case["evaluator"] for case in document["cases"]}
    return [
        {
            "table": name,
            "evaluator": evaluator,
            "rows": [_paper_row(row, name, document, evaluator, methods) for row in rows],
        }
        for evaluator in HOW
        if (document["finals"] if evaluator == MEASURED else evaluator in cases)
        for name, rows in TABLES.items()
        if (name, evaluator) != (SEARCHING, MEASURED)
    ]


def _paper_row(row: PaperRow, table: str, document: Table, evaluator: str, methods: Sequence[str]) -> dict[str, Any]:
    models = [m for m in MODELS if any(case["model"] == m for case in document["cases"])]
    asked = _searching_s if table == SEARCHING else _value_s
    values = {model: asked(row, document, evaluator, model) for model in models}
    published = dict(zip(MODELS, row.published, strict=False))
    there = any(value is not None for value in values.values())
    return {
        "row": row.name,
        "method": row.method,
        "published_s": {model: published[model] for model in models if model in published},
        "value_s": values,
        "why": "" if there else _why(row, document, evaluator, methods),
    }


def _why(row: PaperRow, document: Table, evaluator: str, methods: Sequence[str]) -> str:
    """Return why a row is unavailable."""
    if row.method and methods and row.method not in methods:
        return "unavailable: not among --methods"
    failed = [f for r in document["summary"] if r["method"] == row.method for f in r["failed"]]
    if failed:
        return f"failed: {failed[0]}"
    if row.method and all(r["method"] != row.method for r in document["summary"]):
        return f"unavailable: the placer {row.method.split()[0]} is not there"
    return "unavailable: not measured" if evaluator == MEASURED else "unavailable: not asked about"


def _value_s(row: PaperRow, document: Table, evaluator: str, model: str) -> float | None:
    """Return the seconds of a row: in a simulator the median over seeds, on devices see `_measured_s`."""
    if evaluator == MEASURED:
        return _measured_s(row, document, model)
    if row.device:
        alone = {c["model"]: c["single_s"] for c in document["cases"] if c["evaluator"] == evaluator}
        return alone[model].get(row.device) if model in alone else None
    return _summary_s(row, document, evaluator, model, "value_s")


def _searching_s(row: PaperRow, document: Table, evaluator: str, model: str) -> float | None:
    """Return the median of the seconds that a row's searches took."""
    return _summary_s(row, document, evaluator, model, "seconds")


def _summary_s(row: PaperRow, document: Table, evaluator: str, model: str, key: str) -> float | None:
    rows = (r for r in document["summary"] if (r["model"], r["evaluator"]) == (model, evaluator))
    return next((r[key] for r in rows if r["method"] == row.method), None)


def _measured_s(row: PaperRow, document: Table, model: str) -> float | None:
    """Return the seconds of a row in the contest on devices, the median of its starts."""
    final = next((f for f in document["finals"] if f["model"] == model), None)
    if final is None:
        return None
    name = row.measured or final["plans"].get(row.method)
    latencies = (c["latency_s"] for c in final["candidates"] if c["name"] == name)
    return next((latency["median"] for latency in latencies if latency is not None), None)


def tables_page(document: Table) -> str:
    """Return tables.md of a benchmark's document."""
    settings = document["settings"]
    lines = [
        "# Tables 2, 3 and 5 of HSDAG's paper",
        "",
        "Milliseconds, in brackets the paper's speed-up 1 - l / l_CPU in percent. Simulated: sub-graphs one after "
        "another on a CPU and a GPU that each alone take what the paper's table 2 says, so that its first two rows "
        f"agree by construction; {settings['evaluations']} evaluations per search, medians over {settings['seeds']} "
        "seeds. AUTO takes the first device of its priorities that can run the model: here, that device alone. "
        "Table 5 has the seconds of a whole search: the paper's asked its devices, those here a simulator.",
    ]
    base_s = {t["evaluator"]: t["rows"][0]["value_s"] for t in document["tables"] if t["table"] == "Table 2"}
    for table in document["tables"]:
        lines += [
            "",
            f"## {table['table']}, {HOW[table['evaluator']]}",
            "",
            *_markdown(table, base_s[table["evaluator"]]),
        ]
    missing = [f"- {row['row']}: {row['why']}" for table in document["tables"] for row in table["rows"] if row["why"]]
    lines += ["", "Rows that are missing:", "", *dict.fromkeys(missing)] if missing else []
    lines += [f"\nNote: {note}" for note in document["notes"]]
    return "\n".join(lines) + "\n"


def _markdown(table: Table, base_s: Mapping[str, float | None]) -> list[str]:
    """Return the lines of a table: milliseconds, or seconds of searches; base_s: model -> seconds of the CPU here."""
    models, searching = list(base_s), table["table"] == SEARCHING
    header = ["row", *(f"{model}, {whose}" for model in models for whose in ("paper", "here"))]
    rows = []
    for row in table["rows"]:
        known, cells = row["published_s"], list[str]()
        for model in models:
            there, here = known.get(model), row["value_s"][model]
            if searching:
                cells += [_cell(there, said=model in known, scale=1.0), _cell(here, scale=1.0)]
            else:
                cells += [_cell(there, PUBLISHED[model].cpu_s, said=model in known), _cell(here, base_s[model])]
        rows.append([row["row"], *cells])
    return markdown(header, rows)


def _cell(value_s: float | None, cpu_s: float | None = None, *, said: bool = False, scale: float = 1e3) -> str:
    """Return a number of seconds times a scale; said: whether the paper has such a row."""
    if value_s is None:
        return "out of memory" if said else "-"
    share = "" if not cpu_s else f" ({100 * (1 - value_s / cpu_s):.1f})"
    return f"{value_s * scale:.4g}{share}"


def missing_rows(tables: Sequence[Table]) -> Iterator[str]:
    """Yield which rows are missing, and why."""
    for table in tables:
        for row in table["rows"]:
            if row["why"]:
                yield f"{table['table']}, {row['row']}: {row['why']}."
