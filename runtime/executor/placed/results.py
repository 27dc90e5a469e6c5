"""Outputs by name and by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


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
