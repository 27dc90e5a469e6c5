"""Ways to normalise a model: the usual one first, then what is known to help where its outputs come out wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Way:
    """A way to normalise a model.

    fold: whether constants are folded. exposed: an operation whose result becomes an output of the model as well, so
    that the runtime does not fuse it with others; "" for none. arithmetic: whether quantisation is written as the
    arithmetic that it is, so that the runtime computes in floating point instead of making integer products of it.
    guarded: whether what is quantised dynamically may be all zeros (`coarsen.reading.rewriting.empty_ranges`).
    """

    fold: bool = True
    exposed: str = ""
    arithmetic: bool = False
    guarded: bool = False


USUAL = Way()


def expose_result(model: Any, name: str) -> None:
    """Make the first result of an operation an output of an OpenVINO model, behind those that it has.

    Raises:
        KeyError: it has no operation of this name.
    """
    operations = {op.get_friendly_name(): op for op in model.get_ordered_ops()}
    model.add_outputs([operations[name].output(0)])
