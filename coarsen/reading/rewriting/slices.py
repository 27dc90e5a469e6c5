"""Values of an OpenVINO model in portions, and names for what is made again: what rewrites of a model share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset


def is_plain(node: Any) -> bool:
    """Return whether an operation is a constant of a floating type that numpy has."""
    if node.get_type_name() != "Constant":
        return False
    kind = node.get_output_element_type(0)
    return bool(kind.is_real() and kind.bitwidth >= 16 and kind != ov.Type.bf16)


def is_packed(node: Any) -> bool:
    """Return whether an operation is a plain constant, or the Convert that unpacks one."""
    return is_plain(node) or (node.get_type_name() == "Convert" and is_plain(node.input_value(0).get_node()))


def slice_value(value: Any, axis: int, sizes: dict[str, int], taken: set[str]) -> list[Any]:
    """Return a value's portions along a dimension: constants where it is one, packed where it is packed.

    sizes: how much of the dimension each takes, by what its name ends in; together all of it. taken: names in use.
    """
    node = value.get_node()
    name = node.get_friendly_name()
    if is_plain(node):
        cuts = np.cumsum(list(sizes.values()))[:-1]
        arrays = dict(zip(sizes, np.split(np.asarray(node.get_data()), cuts, axis), strict=True))
        return [set_name(opset.constant(part), f"{name}/{end}", taken).output(0) for end, part in arrays.items()]
    if is_packed(node):
        used = node.get_output_element_type(0).to_string()
        stored = dict(zip(sizes, slice_value(node.input_value(0), axis, sizes, taken), strict=True))
        return [set_name(opset.convert(part, used), f"{name}/{end}", taken).output(0) for end, part in stored.items()]
    where = set_name(opset.constant(np.int64(axis)), f"{name}/axis", taken)
    lengths = set_name(opset.constant(np.array(list(sizes.values()), np.int64)), f"{name}/lengths", taken)
    both = set_name(opset.variadic_split(value, where, lengths), f"{name}/split", taken)
    return [both.output(i) for i in range(len(sizes))]


def concatenate_outputs(replaced: Any, parts: Sequence[Any], axis: int, name: str, taken: set[str]) -> None:
    """Let all that reads an output read others instead, side by side along a dimension; its tensor keeps its names."""
    replace_output(replaced, set_name(opset.concat(list(parts), axis), name, taken).output(0))


def replace_output(replaced: Any, output: Any) -> None:
    """Let all that reads an output read another one instead; its tensor keeps its names."""
    output.set_names(replaced.get_names())
    for reader in replaced.get_target_inputs():
        reader.replace_source_output(output)


def set_name(node: Any, name: str, taken: set[str]) -> Any:
    """Give an operation a name, with a suffix if another one has it, and return it."""
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    taken.add(free)
    node.set_friendly_name(free)
    return node
