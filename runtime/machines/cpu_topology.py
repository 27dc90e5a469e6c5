"""The cores of the processors this process may use: of which type, on which NUMA node, in which socket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.system.processors import ROOT, format_ranges, from_ranges, usable_processors

# Source: the kernel's events of hybrid processors, one such device per type of core (perf-intel-hybrid).
TYPES: Mapping[str, str] = {"cpu_core": "P", "cpu_atom": "E"}


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core.

    ids: its processors that may be used, several with hyper-threading. type: "P" or "E" on a hybrid processor, else "".
    """

    ids: tuple[int, ...]
    type: str = ""
    node: int = 0
    socket: int = 0


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The cores that this process may use, by the number of their first processor."""

    cores: tuple[Core, ...]

    @property
    def types(self) -> dict[str, int]:
        """Return how many cores there are of each type, "P" first; nothing unless there are several types."""
        counts = Counter(core.type for core in self.cores)
        return {t: counts[t] for t in TYPES.values()} if all(counts[t] for t in TYPES.values()) else {}

    @property
    def nodes(self) -> dict[int, int]:
        """Return how many cores each NUMA node has; each socket, where the system knows of one node only."""
        nodes = Counter(core.node for core in self.cores)
        return dict(sorted((nodes if len(nodes) > 1 else self.sockets).items()))

    @property
    def sockets(self) -> dict[int, int]:
        """Return how many cores each socket has."""
        return dict(sorted(Counter(core.socket for core in self.cores).items()))

    def to_json(self) -> dict[str, Any]:
        """Return what there is, in counts."""
        ids = [i for core in self.cores for i in core.ids]
        nodes = Counter(core.node for core in self.cores)
        return {
            "processors": format_ranges(ids),
            "cores": len(self.cores),
            "hyper_threading": len(ids) > len(self.cores),
            "types": self.types,
            "sockets": {str(socket): count for socket, count in self.sockets.items()},
            "nodes": {str(node): count for node, count in sorted(nodes.items())},
        }

    def words(self) -> str:
        """Return what there is, as people read it: "14 cores (6 P, 8 E), 20 processors, 1 socket, 1 NUMA node"."""
        types = ", ".join(f"{count} {name}" for name, count in self.types.items())
        ids, nodes = sum(len(core.ids) for core in self.cores), {core.node for core in self.cores}
        parts = [
            _count_of(len(self.cores), "core") + (f" ({types})" if types else ""),
            _count_of(ids, "processor"),
            _count_of(len(self.sockets), "socket"),
            _count_of(len(nodes), "NUMA node"),
        ]
        return ", ".join(parts)


def _count_of(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def cpu_topology(root: Path = ROOT, *, allowed: Collection[int] | None = None) -> CpuTopology:
    """Return the cores of the processors that may be used.

    root: where /sys is found; another than "/" for what is not this machine. allowed: numbers of processors; None for
    those of this process. Without a /sys every processor is a core of its own.
    """
    ids = sorted(usable_processors().ids if allowed is None else allowed)
    devices = root / "sys/devices"
    types = {i: name for folder, name in TYPES.items() for i in _read_ids(devices / folder / "cpus")}
    node = {i: int(p.name[4:]) for p in devices.glob("system/node/node[0-9]*") for i in _read_ids(p / "cpulist")}
    cores: list[Core] = []
    seen: set[int] = set()
    for i in ids:
        if i in seen:
            continue
        at = devices / f"system/cpu/cpu{i}/topology"
        siblings = tuple(j for j in sorted(_read_ids(at / "thread_siblings_list") | {i}) if j in ids)
        seen.update(siblings)
        cores.append(Core(siblings, types.get(i, ""), node.get(i, 0), _read_number(at / "physical_package_id")))
    return CpuTopology(tuple(cores))


def _read_ids(path: Path) -> frozenset[int]:
    return from_ranges(path.read_text(encoding="ascii")) if path.is_file() else frozenset()


def _read_number(path: Path) -> int:
    """Return a number of /sys, 0 where it is absent or not known (-1)."""
    return max(0, int(path.read_text(encoding="ascii"))) if path.is_file() else 0
