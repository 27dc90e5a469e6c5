"""What a gate found, as tools and people read it: a table, JUnit XML, Markdown for a summary, and a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

from pipeline.core.errors import UsageError
from pipeline.core.figures import bytes_text
from pipeline.gate.first_look import KernelChange
from pipeline.gate.gate import GatedRecord, GateRecord
from pipeline.gate.gate_file import TIMED
from pipeline.gate.judge import FigureRecord
from pipeline.report.page import write_page
from pipeline.report.plain_page import PlainPage, Section
from pipeline.report.text import seconds_text
from pipeline.store.store import write_json, write_text

VERDICTS: Mapping[str, str] = {
    "broken": "does not run any more",
    "unreadable": "runs on neither side",
    "differs": "outputs differ",
    "undecided": "cannot tell",
    "repaired": "runs only after",
    "same": "no difference",
}
COLUMNS = ("model", "verdict", "figure", "before", "after", "times", "interval", "found")
MARKS: Mapping[bool, str] = {True: "passed", False: "**failed**"}
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML has not
FILES = ("gate.json", "junit.xml", "summary.md", "gate.html")


def write_gate(record: GateRecord, out: Path) -> None:
    """Write what was found into a folder, as JSON, JUnit XML, Markdown and a page.

    Raises:
        StoreError: it cannot be written.
    """
    writers: tuple[Callable[[Path], None], ...] = (
        lambda path: write_json(path, asdict(record)),
        lambda path: write_text(path, junit_text(record)),
        lambda path: write_text(path, markdown_text(record)),
        lambda path: write_page(path, page_text(record)),
    )
    for name, write in zip(FILES, writers, strict=True):
        write(out / name)


def remove_gate(out: Path) -> None:
    """Remove what an earlier gate has found from a folder: one that ends early shall not seem to have found it.

    Raises:
        UsageError: it cannot be removed.
    """
    for path in (out / name for name in FILES):
        try:
            if path.is_file():
                path.unlink()
        except OSError as error:
            raise UsageError(
                f"{path} cannot be removed: {error.strerror}.", "Choose another folder for --out."
            ) from error


def verdict_words(row: GatedRecord) -> str:
    """Return the verdict on a model as people read it."""
    words = VERDICTS.get(row.verdict, row.verdict)
    return f"{words} (accepted)" if row.passed and any(c.accepted for c in row.checks) else words


def figure_rows(row: GatedRecord) -> list[list[str]]:
    """Return the rows of a model's figures, by COLUMNS; one without figures where there are none."""
    if not row.figures:
        return [[row.model, verdict_words(row), *[""] * (len(COLUMNS) - 2)]]
    return [
        [row.model, verdict_words(row), f.figure, _value_text(f, f.before), _value_text(f, f.after), *_ratio_texts(f)]
        for f in row.figures
    ]


def _value_text(figure: FigureRecord, value: float) -> str:
    if figure.figure == "throughput":
        return f"{1 / value:.4g} /s"
    return bytes_text(int(value)) if figure.figure.startswith("memory") else seconds_text(value)


def _ratio_texts(figure: FigureRecord) -> tuple[str, str, str]:
    if figure.ratio is None:
        return "", "", ""
    found = VERDICTS.get(figure.found, figure.found) if figure.limit is not None else "not judged"
    return f"{figure.ratio.ratio:.3f}", f"{figure.ratio.low:.3f} to {figure.ratio.high:.3f}", found


def change_text(change: KernelChange) -> str:
    """Return a change of kernels, precisions or devices in words."""
    several = "operation" if change.count == 1 else "operations"
    example = f"{change.example}" if change.count == 1 else f"such as {change.example}"
    return f"{change.what}: {change.before or 'none'} -> {change.after or 'none'}, {change.count} {several}, {example}"


def junit_text(record: GateRecord) -> str:
    """Return what was found as JUnit XML: a test case for every check of every model.

    What cannot be told, and what is accepted, is skipped.
    """
    suite = ElementTree.Element("testsuite", name=f"placewright gate: {record.text}")
    counts = {"tests": 0, "failures": 0, "skipped": 0, "errors": 0}
    for row in record.models:
        for check in row.checks:
            case = ElementTree.SubElement(suite, "testcase", classname=row.model, name=check.what)
            counts["tests"] += 1
            if check.fails and not check.accepted:
                ElementTree.SubElement(case, "failure", message=check.words, type=check.fails)
                counts["failures"] += 1
            elif check.accepted or not check.told:
                ElementTree.SubElement(case, "skipped", message=check.accepted or check.words)
                counts["skipped"] += 1
            else:
                ElementTree.SubElement(case, "system-out").text = check.words
    for name, count in counts.items():
        suite.set(name, str(count))
    ElementTree.indent(suite)
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", ElementTree.tostring(suite, "unicode", xml_declaration=True)) + "\n"


def markdown_text(record: GateRecord) -> str:
    """Return what was found as Markdown, for the summary of a CI job."""
    lines = [f"## placewright gate: {MARKS[record.passed]}", "", _markdown_cell(record.text), ""]
    lines += ["| model | verdict | latency | throughput | | found |", "|---|---|---|---|---|---|"]
    for row in record.models:
        figures = {f.figure: _ratio_texts(f) for f in row.figures}
        timed = (_interval_words(figures.get(name, ("", "", ""))) for name in TIMED)
        lines.append(_markdown_row([row.model, verdict_words(row), *timed, MARKS[row.passed], row.text]))
    lines += ["", "<details><summary>All figures</summary>", "", _markdown_row(COLUMNS), "|---" * len(COLUMNS) + "|"]
    lines += [*(_markdown_row(cells) for row in record.models for cells in figure_rows(row)), "", "</details>"]
    changes = [(row.model, change_text(c)) for row in record.models for c in row.look.changes]
    if changes:
        lines += ["", "<details><summary>Kernels, precisions and devices that changed</summary>", ""]
        lines += [f"- {_markdown_cell(model)}: {_markdown_cell(text)}" for model, text in changes]
        lines += ["", "</details>"]
    notes = [*record.notes, *(f"{row.model}: {note}" for row in record.models for note in row.notes)]
    lines += ["", *(f"- {_markdown_cell(note)}" for note in notes)] if notes else []
    return "\n".join([*lines, "", "Times above 1 are worse: how many times the figure before the one after is.", ""])


def _interval_words(ratio: Sequence[str]) -> str:
    return f"{ratio[0]} times ({ratio[1]})" if ratio[0] else ""


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_markdown_cell(cell) for cell in cells) + " |"


def _markdown_cell(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def page_text(record: GateRecord) -> str:
    """Return what was found as a page."""
    rows = [row for model in record.models for row in figure_rows(model)]
    changes = [(row.model, change_text(c)) for row in record.models for c in row.look.changes]
    checks = [(row.model, c.what, c.words, c.accepted or c.fails) for row in record.models for c in row.checks]
    confidence = f"{100 * record.level:g} % confidence for all models, figures and looks together"
    sections = [
        Section("Figures", f"Times above 1 are worse; {confidence}.", columns=COLUMNS, rows=rows, filtered=True),
        Section("Checks", columns=("model", "check", "found", "fails, or is accepted"), rows=checks),
        Section("Kernels, precisions and devices that changed", columns=("model", "change"), rows=changes),
    ]
    glance = [
        (name, f"{side.asked}: {side.runtime} {side.version}, Python {side.python_version}")
        for name, side in (("before", record.before), ("after", record.after))
    ]
    notes = [*record.notes, *(f"{row.model}: {note}" for row in record.models for note in row.notes)]
    title = f"Gate: {record.before.asked} and {record.after.asked}"
    return PlainPage(title, verdict=record.text, glance=glance, notes=notes, sections=sections).text()
