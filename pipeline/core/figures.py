"""Figures that several stages tell of: one definition each, and how people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping

MB = 10**6  # bytes; units are powers of 1000 in all that is told, 1024 only in what a user writes as KiB, MiB, GiB
SIZES = ((10**12, "TB"), (10**9, "GB"), (MB, "MB"), (10**3, "kB"))


def gap_of(value_s: float, bound_s: float) -> float:
    """Return the gap: the share of a time by which another could be less at most, (value - bound) / value.

    0 of what takes no time, 1 where nothing has a time or nothing is proven.

    >>> gap_of(0.004, 0.003), gap_of(math.inf, 1.0), gap_of(1.0, 1.0 + 1e-12)
    (0.25, 1.0, 0.0)
    """
    if value_s == 0 or math.isinf(value_s):
        return 0.0 if value_s == 0 else 1.0
    return max(0.0, 1.0 - bound_s / value_s)


def number_text(number: float | None) -> str:
    """Return a number with four digits, "" for none.

    >>> number_text(166.66), number_text(123456.0), number_text(None)
    ('166.7', '123,500', '')
    """
    if number is None:
        return ""
    return f"{number:.4g}" if abs(number) < 9999.5 else f"{float(f'{number:.4g}'):,.0f}"


def finite_or_none(value: float | None) -> float | None:
    """Return a figure as a document holds it: None where it is not finite, for JSON has no such number.

    >>> finite_or_none(0.5), finite_or_none(math.inf), finite_or_none(None)
    (0.5, None, None)
    """
    return value if value is not None and math.isfinite(value) else None


def gap_text(gap: float) -> str:
    """Return a gap as people read it.

    >>> gap_text(gap_of(1.0375, 1.0))
    '3.61 %'
    """
    return f"{100 * gap:.2f} %"


BOUNDS = {
    "load": "load bound",
    "critical path": "critical-path bound",
    "work between heads and tails": "head-and-tail bound",
    "work before and after paths": "path bound",
    "transfers that memory forces": "memory bound",
    "largest unit": "largest group",
    "number of large units": "counting bound",
    "flow of paths": "path-flow bound",
    "calls along a path": "call bound",
}
"""What a lower bound is called where people read it, by what a document says of it (`bound_by`)."""


def bound_text(bound_by: str) -> str:
    """Return the name of a lower bound as people read it.

    >>> bound_text("work before and after paths"), bound_text("min_cut")
    ('path bound', 'min_cut')
    """
    return BOUNDS.get(bound_by, bound_by)


def times_as_fast(value_s: float, reference_s: float) -> float:
    """Return how many times as fast as a reference something is: more is better, the reference itself has 1.

    >>> times_as_fast(2.0, 3.0)
    1.5
    """
    return reference_s / value_s


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return each device's share of the time: of what all devices compute together, so that shares add up to 1.

    The largest comes first. This is not how long a device is busy of the time that an inference takes: its utilization.

    >>> shares_of({"A": 1.0, "B": 3.0})
    {'B': 0.75, 'A': 0.25}
    """
    whole = sum(seconds.values()) or 1.0
    return {device: s / whole for device, s in sorted(seconds.items(), key=lambda item: -item[1])}


def share_text(share: float | None) -> str:
    """Return a share as a percentage; never 0 or 100 % of what is only almost that.

    >>> share_text(0.1234), share_text(0.0001), share_text(0.9999), share_text(1 - 1e-12)
    ('12 %', 'under 1 %', 'over 99 %', '100 %')
    """
    if share is None:
        return ""
    if 0 < share < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < share < 1 - 1e-9 else f"{100 * share:.0f} %"


def bytes_text(size: float | None, digits: int = 4) -> str:
    """Return bytes in the unit in which people read them, a power of 1000.

    >>> bytes_text(1536), bytes_text(12), bytes_text(2**20), bytes_text(None)
    ('1.536 kB', '12 B', '1.049 MB', '')
    """
    if size is None:
        return ""
    for unit, name in SIZES:
        if abs(size) >= unit:
            return f"{size / unit:.{digits}g} {name}"
    return f"{size:.0f} B"
