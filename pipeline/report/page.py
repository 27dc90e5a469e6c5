"""Pages: one self-contained HTML file each, under a policy that lets nothing be loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.core.figures import bytes_text, share_text
from pipeline.report.placed_graph import PlacedGraph
from pipeline.report.text import count_text, make_visible, shorten
from pipeline.store.store import write_text

KEY = '<meta name="placewright-report" content="'
XMLNS = '<svg xmlns="http://www.w3.org/2000/svg"'
LONGEST = 200  # characters of a name in a table
BEGIN = 500  # characters of a page within which its key stands
UNSAFE = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
)  # what could end a script element, or begin a comment


def asset_text(name: str) -> str:
    """Return the text of a file that pages are made of."""
    return files("pipeline.report").joinpath("assets", name).read_text(encoding="utf-8")


def svg_file(drawing: Markup) -> str:
    """Return a drawing as an SVG file of its own, with the style of pages."""
    style = f"<style><![CDATA[{asset_text('page.css')}]]></style>"
    head, _, rest = str(drawing).partition(">")
    return f"{head.replace('<svg', XMLNS, 1)}>{style}{rest}\n"


def script_data(document: Any) -> Markup:
    r"""Return a document as JSON that may stand in a script element, whatever its strings hold.

    >>> print(script_data(["</script>"]))
    ["\u003c/script\u003e"]
    """
    return Markup(json.dumps(document, separators=(",", ":"), allow_nan=False).translate(UNSAFE))


def render_page(template: str, context: Mapping[str, Any], *, key: str = "", graph: bool = False) -> str:
    """Return a page; what the context holds is escaped, but for Markup. graph: whether it holds a placed graph."""
    scripts = [Markup(asset_text("page.js"))] + ([Markup(asset_text("graph.js"))] if graph else [])
    told = {**context, "key": key, "css": Markup(asset_text("page.css")), "scripts": scripts}
    return _template_environment().get_template(template).render(told).lstrip()


@cache
def _template_environment() -> jinja2.Environment:
    """Return what templates are compiled in, once; that takes longer than filling them."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(asset_text),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible_value,
    )


def _visible_value(value: Any) -> Any:
    """Return what an expression of a template writes: plain text with its controls made visible."""
    return make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def is_current(path: Path, key: str) -> bool:
    """Return whether a page lies there that was made of the same records by this version."""
    try:
        with path.open(encoding="utf-8") as page:
            return f'{KEY}{key}"' in page.read(BEGIN)
    except (OSError, ValueError):  # there is none, or it is no page: it is made again
        return False


def write_page(path: Path, text: str) -> None:
    """Write a page, whole or not at all.

    Raises:
        StoreError: it cannot be written.
    """
    write_text(path, text.encode("utf-8", "replace").decode())


def graph_context(placed: PlacedGraph, *, most_cuts: int = 12) -> dict[str, Any]:
    """Return what the template's part about the placed graph needs."""
    shares, cuts = placed.shares, placed.cuts
    unit = "the time" if placed.timed else "the operations"
    total = sum(size for _, _, size in cuts)
    rows = [
        (shorten(placed.graph.names[op], LONGEST), placed.devices[target], bytes_text(size))
        for op, target, size in cuts[:most_cuts]
    ]
    more = f"; the {len(rows)} largest" if len(cuts) > len(rows) else ""
    caption = f"{count_text(len(cuts), 'tensor')}, {bytes_text(total)}, sent between devices in an inference{more}"
    return {
        "graph": script_data(placed.document()),
        "legend": [(d, f"{share_text(shares[d])} of {unit}" if d in shares else "") for d in placed.devices],
        "cuts": rows,
        "cut_caption": caption,
        "ungraphed": "",
    }
