"""Ways to normalise a model: the usual one first, then what is known to help where its outputs come out wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Way:
    """A way to normalise a model.

    fold: whether constants are folded. exposed: an operation whose result becomes an output of the model as well, so
    that the runtime does not fuse it with others; "" for none. prepared: what is done to the model before, one of
    those below; "" for nothing.
    """

    fold: bool = True
    exposed: str = ""
    prepared: str = ""


USUAL = Way()

# Quantisation written as the arithmetic that it is: the runtime computes in floating point instead of making integer
# products of it. What is quantised dynamically may be all zeros. Local responses have the bias 1.
ARITHMETIC, GUARDED, UNIT_BIAS = "arithmetic", "guarded", "unit bias"


def expose_result(model: Any, name: str) -> None:
    """Make the first result of an operation an output of an OpenVINO model, behind those that it has.

    Raises:
        KeyError: it has no operation of this name.
    """
    operations = {op.get_friendly_name(): op for op in model.get_ordered_ops()}
    model.add_outputs([operations[name].output(0)])
