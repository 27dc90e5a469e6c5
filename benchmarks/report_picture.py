"""The intervals of a run's candidates, as its report draws them, in a picture of its own for the README.

    python -m benchmarks.report_picture RUN docs/images/candidates.svg

RUN is a finished run. The picture is light on white, with the style of the page inside, so that it needs no page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pipeline.report.run_page import write_report

SECTION, STYLE, CHART = 'id="candidates"', re.compile(r"<style>(.*?)</style>", re.S), re.compile(r"<svg.*?</svg>", re.S)
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{.*?\n\}", re.S)
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
PAGE_ALONE = re.compile(r"\b(body|html|\*)\s*\{[^}]*\}")


def picture_of(page: str) -> str:
    """Return the chart of a report's candidates as an SVG document.

    Raises:
        ValueError: the page has none.
    """
    style, chart = STYLE.search(page), CHART.search(page, max(page.find(SECTION), 0))
    if SECTION not in page or style is None or chart is None:
        raise ValueError("the page has no chart of candidates")
    rules = PAGE_ALONE.sub("", DARK.sub("", style.group(1))).strip()
    opening, body = chart.group().split(">", 1)
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f"{opening} {NAMESPACE}><style>{rules}</style>{paper}{body}\n"


def main(run: Path, out: Path) -> None:
    """Write the picture of a finished run."""
    write_report(run)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(picture_of((run / "report.html").read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
