"""What mkdocs does with the pages of this project: those outside docs/ join in, links follow, tables are printed."""

from __future__ import annotations

import logging
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
}
LOG = logging.getLogger("mkdocs.hooks.placewright")  # a warning there fails a strict build
PRINTED = re.compile(
    r"<!-- printed by: python (-m [\w.]+) -->"
)  # a part that the code prints, and the tree does not keep
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    for name, path in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to pages of the site; what is no page is named by its path, and must be there."""
    name = page.file.src_uri
    source = OUTSIDE.get(name, f"docs/{name}")

    def followed(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path, mark, anchor = target.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        found = site_path(target)
        if found is None:
            if not (ROOT / target).exists():
                LOG.warning("%s links to %s, which is not there: correct the path.", source, target)
            return text
        return f"[{text}]({posixpath.relpath(found, posixpath.dirname(name) or '.')}{mark}{anchor})"

    return LINK.sub(followed, PRINTED.sub(printed, markdown))


def printed(match: re.Match[str]) -> str:
    """Return what a command of ours prints for a page."""
    command = [sys.executable, *match[1].split()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def site_path(path: str) -> str | None:
    """Return where a page or picture of the repository lies on the site, None for what is neither.

    >>> site_path("README.md"), site_path("docs/images/a.svg"), site_path("pipeline/api.py")
    ('index.md', 'images/a.svg', None)
    """
    for name, outside in OUTSIDE.items():
        if path == outside:
            return name
    return path.removeprefix("docs/") if path.startswith("docs/") and path.endswith((".md", ".svg", ".png")) else None
