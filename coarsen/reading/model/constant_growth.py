"""How large a model's constants become once they are folded, and what is allowed.

A file of a few kilobytes can describe constants of any size: one number, broadcast to a matrix. Folding would write the
matrix out, here and in every process that measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coarsen.reading.model.flops import count_elements
from pipeline.core.errors import ModelError
from pipeline.core.figures import bytes_text
from pipeline.core.settings import CoarsenSettings

FACTOR = 8  # weights stored as int4 take 8 times as much once they are f32; more is no unpacking of what a file holds
ROOM_BYTES = 512 << 20  # what a process takes to load OpenVINO and to read a small model, with some to spare
TRIAL_BYTES = 2 << 30  # what an inference with the sizes of a dynamic model may take

# Their outputs are not known before the model runs, even if all their inputs are.
_AT_RUN_TIME = frozenset({"Parameter", "ReadValue", "Assign", "RandomUniform", "Multinomial", "Result"})


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What reading a model may take; see `CoarsenSettings`."""

    growth_bytes: int = CoarsenSettings().growth_bytes
    timeout_s: float = CoarsenSettings().read_timeout_s

    @classmethod
    def of(cls, settings: CoarsenSettings) -> ReadLimits:
        """Return the limits that were set."""
        return cls(settings.growth_bytes, settings.read_timeout_s)

    def folded_bytes(self, file_bytes: int) -> int:
        """Return what the folded constants of a model may take whose files take `file_bytes`."""
        return FACTOR * file_bytes + self.growth_bytes

    def memory_bytes(self, file_bytes: int) -> int:
        """Return what the process may take.

        The model as read and converted, constants before and after folding, and an inference.
        """
        return ROOM_BYTES + TRIAL_BYTES + 3 * file_bytes + 2 * self.folded_bytes(file_bytes)


@dataclass(frozen=True, slots=True)
class Growth:
    """What folding makes of constants.

    total_bytes: all that is left to be stored. largest_bytes, largest: the largest tensor that folding computes, in the
    end or on the way, and the name of its operation; 0 and "" if it computes none.
    """

    total_bytes: int
    largest_bytes: int
    largest: str


def constant_growth(models: Iterable[Any], *, keeps: Callable[[Any], bool]) -> Growth:
    """Return what folding makes of the constants of OpenVINO models, of which bodies are listed beside their owners.

    keeps: whether an operation is left as it is. A tensor whose shape is not known counts as 0 bytes.
    """
    total, largest, name = 0, 0, ""
    for model in models:
        left: dict[str, dict[int, int]] = {}  # operation known before the model runs -> output port -> bytes
        for op in model.get_ordered_ops():
            inputs = [op.input_value(i) for i in range(op.get_input_size())]
            if _is_foldable(op, [x.get_node().get_name() in left for x in inputs]) and not keeps(op):
                left[op.get_name()] = sizes = {i: _tensor_bytes(op, i) for i in range(op.get_output_size())}
                if inputs and max(sizes.values(), default=0) > largest:
                    largest, name = max(sizes.values()), op.get_friendly_name()
                continue
            for x in inputs:  # what the rest of the model reads has to be stored
                total += left.get(x.get_node().get_name(), {}).pop(x.get_index(), 0)
    return Growth(total, largest, name)


def _is_foldable(op: Any, inputs_known: list[bool]) -> bool:
    """Return whether an operation's outputs are known before the model runs, as far as folding goes."""
    kind = op.get_type_name()
    if kind in _AT_RUN_TIME:
        return False
    if kind == "Constant":
        return True
    if kind == "ShapeOf":
        return bool(op.get_input_partial_shape(0).is_static)
    return bool(inputs_known) and all(inputs_known)


def _tensor_bytes(op: Any, port: int) -> int:
    shape = op.get_output_partial_shape(port)
    if not shape.is_static:
        return 0
    return -(-int(count_elements(tuple(shape.to_shape()))) * int(op.get_output_element_type(port).bitwidth) // 8)


def check_growth(grown: Growth, path: Path, *, file_bytes: int, limits: ReadLimits) -> None:
    """Check that a model's folded constants take no more than is allowed.

    Raises:
        ModelError: they would.
    """
    needed, allowed = max(grown.total_bytes, grown.largest_bytes), limits.folded_bytes(file_bytes)
    if needed <= allowed:
        return
    raise ModelError(
        f"Folded, the constants of {path} take {bytes_text(needed)}, {grown.largest!r} alone "
        f"{bytes_text(grown.largest_bytes)}; allowed are {bytes_text(allowed)}, {FACTOR} times its files "
        f"({bytes_text(file_bytes)}) and coarsen.growth_bytes.",
        f"Raise the limit if this is intended: --set coarsen.growth_bytes={needed - FACTOR * file_bytes}",
    )
