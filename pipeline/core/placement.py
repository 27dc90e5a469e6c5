"""A placement: which device runs which operation."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from pipeline.core.arrays import Float64, Int32, frozen, frozen_indices
from pipeline.core.errors import UsageError, list_some
from pipeline.core.graph import Grouping


class PlacementDocument(TypedDict):
    """A placement in files: {operation: device}, and {operation: number}, or None for no stated order."""

    placement: dict[str, str]
    priority: dict[str, float] | None


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """One device for each of n operations (or groups).

    device: int32 [n], index into `devices`. devices: p device names.
    priority: float64 [n] or None for no stated order; the smaller runs first.
    """

    device: Int32
    devices: tuple[str, ...]
    priority: Float64 | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "device", frozen_indices(self.device, (None,), len(self.devices), "device"))
        if self.priority is not None:
            put(self, "priority", frozen(self.priority, np.float64, (self.device.size,), "priority"))

    @classmethod
    def made(cls, device: Int32, devices: tuple[str, ...], priority: Float64 | None = None) -> Placement:
        """Return the placement of arrays that are as said above and that nobody else writes to; they become read-only.

        Nothing is checked or copied: for what a simulator says of the thousands of placements that it has been through.
        """
        placement, put = object.__new__(cls), object.__setattr__
        device.setflags(write=False)
        if priority is not None:
            priority.setflags(write=False)
        put(placement, "device", device)
        put(placement, "devices", devices)
        put(placement, "priority", priority)
        return placement

    @classmethod
    def single(cls, n: int, device: int, devices: tuple[str, ...]) -> Placement:
        """Return the placement of all n operations on one device."""
        return cls(np.full(n, device, dtype=np.int32), devices)

    @classmethod
    def from_json(cls, document: Mapping[str, str], names: Sequence[str], devices: tuple[str, ...]) -> Placement:
        """Return the placement written as {operation name: device name}.

        Raises:
            UsageError: operations are missing or not in the model, or a device is unknown; all are named.
        """
        index = {name: i for i, name in enumerate(devices)}
        missing = [name for name in names if name not in document]
        unknown = sorted(set(document) - set(names))
        elsewhere = sorted({device for device in document.values() if device not in index})
        faults = [
            f"{what}: {list_some(wrong)}"
            for what, wrong in (
                ("operations without a device", missing),
                ("operations the model does not have", unknown),
                ("unknown devices", elsewhere),
            )
            if wrong
        ]
        if faults:
            raise UsageError(
                f"The placement does not fit: {'; '.join(faults)}.",
                "Use a placement of the same model on the same devices.",
            )
        return cls(np.array([index[document[name]] for name in names], dtype=np.int32), devices)

    def to_json(self, names: Sequence[str]) -> dict[str, str]:
        """Return {operation name: device name}."""
        return {name: self.devices[d] for name, d in zip(names, self.device.tolist(), strict=True)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any], names: Sequence[str], devices: tuple[str, ...]) -> Placement:
        """Return the placement of a document as `to_document` writes it; one without `priority` states no order.

        Raises:
            UsageError: operations, devices or priorities are missing or unknown; they are named.
        """
        placement, stated = cls.from_json(document["placement"], names, devices), document.get("priority")
        if stated is None:
            return placement
        numbers = {name: stated.get(name) if isinstance(stated, Mapping) else None for name in names}
        wrong = [name for name, value in numbers.items() if not _is_number(value)]
        if wrong:
            raise UsageError(
                f"The priorities are not one number per operation: {list_some(wrong)}.",
                "Remove `priority`, or give one per operation.",
            )
        return replace(placement, priority=np.array(list(numbers.values()), np.float64))

    def to_document(self, names: Sequence[str]) -> PlacementDocument:
        """Return the placement of operations as files hold it."""
        return {"placement": self.to_json(names), "priority": self.order_json(names)}

    def order_json(self, names: Sequence[str]) -> dict[str, float] | None:
        """Return {operation: number}, or None for no stated order."""
        return None if self.priority is None else dict(zip(names, self.priority.tolist(), strict=True))

    @property
    def n(self) -> int:
        """Return the number of operations placed."""
        return int(self.device.size)

    def check(self, n: int, devices: tuple[str, ...]) -> None:
        """Check that this is a placement of n nodes on devices of these names.

        Raises:
            UsageError: it is not.
        """
        check_size(self.n, n)
        if self.devices != devices:
            raise UsageError(
                f"A placement on {', '.join(self.devices)} was given where the devices are {', '.join(devices)}.",
                "Make it with the names of the problem's topology, in their order.",
            )

    @property
    def devices_used(self) -> tuple[str, ...]:
        """Return the names of the devices that run at least one operation."""
        return tuple(self.devices[d] for d in np.unique(self.device))

    def lift(self, grouping: Grouping) -> Placement:
        """Return the placement of a grouping's members from this one of its groups.

        Raises:
            UsageError: it is of another number of groups.
        """
        if grouping.k != self.n:
            raise UsageError(
                f"A placement of {self.n} groups does not fit a grouping into {grouping.k}.",
                "Lift a placement once, by the grouping whose groups it places.",
            )
        priority = None if self.priority is None else self.priority[grouping.group]
        return Placement(self.device[grouping.group], self.devices, priority)

    def key(self) -> bytes:
        """Return bytes that are equal for equal placements."""
        return self.device.tobytes() + (b"" if self.priority is None else self.priority.tobytes())

    def digest(self) -> bytes:
        """Return 16 bytes that are equal for equal placements, and different for others but for a chance in 2**64."""
        return hashlib.blake2b(self.key(), digest_size=16).digest()


def check_size(given: int, n: int) -> None:
    """Check that as many nodes have a device as are placed.

    Raises:
        UsageError: they have not.
    """
    if given != n:
        raise UsageError(
            f"A placement of {given} nodes was given where {n} are placed.",
            "A placement of groups is made one of their members by `placement.lift(grouping)`.",
        )


def _is_number(value: Any) -> bool:
    """Return whether a value of a JSON document is a number that a float holds; infinity is one."""
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
