"""From what a caller gives as inputs to tensors, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from .errors import PlacedInputError
from .manifest import SplitManifest


class Results(Mapping[str, Any]):
    """The outputs of one inference, numpy arrays: by name, by place, or all in the model's order as `values()`."""

    def __init__(self, names: Sequence[Sequence[str]], arrays: Sequence[Any]) -> None:
        self._names, self._arrays = names, arrays
        self._places = {name: i for i, each in enumerate(names) for name in each}

    def __getitem__(self, key: str | int) -> Any:
        """Return an output by its place or any of its names."""
        return self._arrays[key if isinstance(key, int) else self._places[key]]

    def __iter__(self) -> Iterator[str]:
        """Yield one name of every output."""
        return (each[0] for each in self._names)

    def __len__(self) -> int:
        """Return the number of outputs."""
        return len(self._arrays)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the arrays in the model's order."""
        return tuple(self._arrays)


def by_place(ports: Sequence[Sequence[str]], inputs: Any) -> dict[int, Any]:
    """Return {place: value} of inputs given by name or place, as a list in the model's order, or as the only one.

    ports: the names of every input.

    Raises:
        PlacedInputError: there is no such input, or the number is wrong.
    """
    if isinstance(inputs, Mapping):
        places = {name: i for i, names in enumerate(ports) for name in names}
        placed = {key if isinstance(key, int) else places.get(str(key), -1): value for key, value in inputs.items()}
        if any(not 0 <= place < len(ports) for place in placed):
            known = ", ".join(names[0] for names in ports)
            raise PlacedInputError(f"the inputs are {known}, and not {', '.join(map(str, inputs))}")
        return placed
    values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if len(values) != len(ports):
        raise PlacedInputError(f"the model takes {len(ports)} inputs, and was given {len(values)}")
    return dict(enumerate(values))


def as_tensor(manifest: SplitManifest, place: int, value: Any, *, copied: bool) -> ov.Tensor:
    """Return an input as a tensor of the type that the model takes; an array that fits is shared, unless copied.

    Raises:
        PlacedInputError: it does not fit the shape; or it is a tensor, and not of the type.
    """
    port = manifest.inputs[place]
    entry = manifest.tensors[port.tensor]
    if isinstance(value, ov.Tensor):
        tensor = value
    else:
        given = np.asarray(value)
        array = np.ascontiguousarray(given, getattr(ov.Type, entry.type).to_dtype()).reshape(given.shape)
        shared = np.shares_memory(array, given)
        tensor = ov.Tensor(array.copy() if shared and (copied or not array.flags.writeable) else array, True)
    shape = tuple(tensor.shape)
    if not _fits(shape, entry.shape) or tensor.element_type.get_type_name() != entry.type:
        said = f"{tensor.element_type.get_type_name()} {_shown(shape)}"
        raise PlacedInputError(f"the input {port.names[0]} is {entry.type} {_shown(entry.shape)}, not {said}")
    return tensor


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> bool:
    """Return whether a shape is one of those that are wanted, -1 for any size and None for any rank."""
    if wanted is None:
        return True
    return len(shape) == len(wanted) and all(w in (-1, d) for w, d in zip(wanted, shape, strict=True))


def _shown(shape: tuple[int, ...] | None) -> str:
    """Return a shape as OpenVINO writes it.

    >>> _shown((1, -1)), _shown(None)
    ('[1,?]', '[...]')
    """
    return "[...]" if shape is None else f"[{','.join('?' if d < 0 else str(d) for d in shape)}]"
