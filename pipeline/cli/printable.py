"""What terminals may be shown: models, stores and runs are strangers', and so are the names in them."""

from __future__ import annotations

import logging
import re

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
ENDLESS = re.compile(r"(\S{300})\S{300,}(\S{100})")


def printable(text: str) -> str:
    r"""Return a text as a terminal may show it: names are strangers'.

    What controls terminals, turns the direction of writing, or is no character, is spelled out, and the middle of words
    without end is left out.

    >>> print(printable("\x1b[31mred\u202e"))
    \x1b[31mred\u202e
    """
    shown = UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
    return ENDLESS.sub(r"\1...\2", shown)


class PrintableFormatter(logging.Formatter):
    """Formats what is logged for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return printable(super().format(record))
