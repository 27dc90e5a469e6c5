"""Programs that are written for users, from the templates in emitted/."""

from __future__ import annotations

import pprint
from importlib.resources import files
from typing import Any

INPUTS = "inputs.py.j2"  # code of all Python programs: what is wrong with a user's files


def render_template(template: str, **values: Any) -> str:
    """Return the program of a template with these values in it."""
    import jinja2

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )  # no HTML, so nothing to escape for it: every value passes one of the two filters
    environment.filters |= {"python": python_literal, "cpp": cpp_literal}
    return environment.from_string(_template_text(template)).render(inputs_code=_template_text(INPUTS), **values)


def _template_text(name: str) -> str:
    return files("pipeline.deploy").joinpath("emitted", name).read_text(encoding="utf-8")


def python_literal(value: Any) -> str:
    r"""Return a value as Python source, on one line unless that is very long.

    >>> python_literal('a "b"\n')
    '\'a "b"\\n\''
    """
    return pprint.pformat(value, width=400, sort_dicts=False)


def cpp_literal(text: str) -> str:
    r"""Return text as a C++ string literal of ASCII alone: any other byte of its UTF-8 is an octal escape.

    >>> print(cpp_literal('a "b"\\ ä??/'))
    "a \"b\"\\ \303\244\?\?/"
    """
    escaped = {0x22: '\\"', 0x3F: "\\?", 0x5C: "\\\\"}
    return '"' + "".join(escaped.get(b, chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in text.encode()) + '"'
