"""Checks placements of the open benchmark: whether they are allowed, and what they take, by the rules it documents.

    python benchmarks/instances/verify.py benchmarks/instances/submissions/*.json.gz

Independent of placewright. docs/open_benchmark.md states the rules. Exit code 1 if something does not hold.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import json
import math
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-9  # share by which a value may differ from the one that is claimed, or be below a bound
INPUTS = ("Parameter", "ReadValue", "RandomUniform", "Multinomial")  # what differs from inference to inference
BLOCK_S, GAP_S = 5.7e-6, 25e-6  # of T1: of a device after an operation that takes time; between two sends


class RefusedError(ValueError):
    """Why a placement is not allowed, or does not take what is claimed."""


def read_document(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


class Instance:
    """An entry of the index: n operations, numbered so that producers come first, p devices, and rules.

    reads: (producer, consumer, number of the producer's output, bytes). op_s: [n, p]; per_byte_s, latency_s: [p, p].
    """

    def __init__(self, entry: Mapping[str, Any], folder: Path = HERE) -> None:
        data = gzip.decompress((folder / entry["graph"]).read_bytes())
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise OSError(f"{entry['graph']} is not the graph of the index")
        graph, machine = json.loads(data), tomllib.loads((folder / entry["machine"]).read_text(encoding="utf-8"))
        rows, devices, self.rules = graph["operations"], machine["device"], entry["rules"]
        self.names, self.types = [row["name"] for row in rows], [row["type"] for row in rows]
        self.labels = [row.get("colocate") for row in rows]
        self.weight, self.out = [row["weight_bytes"] for row in rows], [row["output_bytes"] for row in rows]
        number = {name: i for i, name in enumerate(self.names)}
        self.reads = sorted((number[e["from"]], number[e["to"]], e["output"], e["bytes"]) for e in graph["edges"])
        self.devices, self.cpu = [d["name"] for d in devices], [d["kind"] == "cpu" for d in devices]
        self.room = np.array([d.get("memory_bytes", 0) or math.inf for d in devices], float)
        times = [t if isinstance(t := row["time_s"], dict) else {"*": t} for row in rows]
        keys = [next(k for k in (d["name"], d["kind"], "*") if k in times[0]) for d in devices]
        self.op_s = np.array([[math.inf if t[key] is None else t[key] for key in keys] for t in times])
        self.per_byte_s, self.latency_s = np.zeros((2, len(devices), len(devices)))
        for link in machine.get("link", []):
            way = self.devices.index(link["from"]), self.devices.index(link["to"])
            self.per_byte_s[way], self.latency_s[way] = 1.0 / link["bytes_per_s"], link["latency_s"]

    def check(self, answer: Mapping[str, Any]) -> float:
        """Return the seconds of an answer's placement, or raise `RefusedError`; what it claims must be that."""
        placement, priority = answer["placement"], answer.get("priority")
        if placement.keys() != set(self.names) or not set(placement.values()) <= set(self.devices):
            raise RefusedError("not exactly the operations of the instance, each on one of its devices")
        if priority is not None and (not self.rules["order"] or priority.keys() != set(self.names)):
            raise RefusedError("priorities that the instance does not allow, or not of exactly its operations")
        device = [self.devices.index(placement[name]) for name in self.names]
        order = None if priority is None else [float(priority[name]) for name in self.names]
        if not all(map(math.isfinite, order or ())):
            raise RefusedError("a priority that is not finite")
        home = dict(zip(self.labels, device, strict=True))
        if any(label is not None and home[label] != d for label, d in zip(self.labels, device, strict=True)):
            raise RefusedError("operations apart that must share a device")
        if not np.isfinite(self.op_s[range(len(device)), device]).all():
            raise RefusedError("an operation on a device that does not support it")
        value_s, peak = MODELS[self.rules["evaluator"]](self, device, order)  # peak: bytes beside weights
        if np.any(np.bincount(device, self.weight, len(self.devices)) + peak > self.room):
            raise RefusedError("more memory than a device has")
        if not abs(answer.get("value_s", value_s) - value_s) <= TOLERANCE * value_s:
            raise RefusedError(f"takes {float(value_s)!r} s, not {answer['value_s']!r} s")
        return float(value_s)

    def partly(self, block: Sequence[Any]) -> Iterator[tuple[Any, int]]:
        """Yield (block, bytes) for every tensor and block that holds some of its maker and readers, but not all."""
        for (maker, _), read in groupby(sorted(self.reads, key=lambda r: (r[0], r[2])), lambda r: (r[0], r[2])):
            rows = list(read)
            held = {block[maker], *(block[b] for _, b, _, _ in rows)}
            yield from ((each, max(size for *_, size in rows)) for each in held if len(held) > 1)

    def slowest_s(self, d: int, size: int) -> float:
        """Return the seconds of so many bytes over the slowest link from or to a device; 0 for a CPU."""
        ways = [way for e in range(len(self.cpu)) if e != d and not self.cpu[d] for way in ((d, e), (e, d))]
        return float(max((self.latency_s[way] + size * self.per_byte_s[way] for way in ways), default=0.0))


def sequential(x: Instance, device: list[int], _: Any) -> tuple[float, Any]:
    """One operation after another; an output is sent once to every other device that reads it, nothing overlaps."""
    reader, producer = ({r[k]: r[1 - k] for r in reversed(x.reads)} for k in (0, 1))  # the first of each
    varies = [kind in INPUTS or (i not in producer and kind != "Constant") for i, kind in enumerate(x.types)]
    for a, b, _, _ in x.reads:  # sorted: what is computed from constants alone is known before
        varies[b] |= varies[a]
    where, sent = list(device), dict[tuple[int, int, int], int]()
    for i in reversed(range(len(where))):  # inputs and constants lie with their first reader
        where[i] = where[reader[i]] if i in reader and (x.types[i] == "Parameter" or not varies[i]) else where[i]
    for i in (i for i in producer if x.types[i] == "Result"):  # results with their producer
        where[i] = where[producer[i]]
    for a, b, port, size in x.reads:
        if varies[a] and where[a] != where[b]:
            sent[a, port, where[b]] = max(size, sent.get((a, port, where[b]), 0))
    link_s = (x.latency_s[where[a], d] + size * x.per_byte_s[where[a], d] for (a, _, d), size in sent.items())
    return math.fsum((*x.op_s[range(len(device)), device], *link_s)), 0


def pipelined(x: Instance, device: list[int], _: Any) -> tuple[float, Any]:
    """The largest load of a device: its operations, and each tensor that it holds partly over its slowest link."""
    load_s = np.bincount(device, x.op_s[range(len(device)), device], len(x.devices))
    for d, size in x.partly(device):
        load_s[d] += x.slowest_s(d, size)
    ways, wanted = [(a, b) for a, b, _, _ in x.reads], x.rules["contiguity"]
    if wanted == "ordered" and not acyclic({(device[a], device[b]) for a, b in ways}):
        raise RefusedError("stages that no order of the devices follows")
    for d in range(len(x.devices)) if wanted == "convex" else ():
        if not acyclic({(-1 if device[a] == d else a, -1 if device[b] == d else b) for a, b in ways}):
            raise RefusedError("a path that leaves a device and comes back")
    return load_s.max(), 0


def acyclic(edges: set[tuple[Any, Any]]) -> bool:
    """Return whether no path comes back to where it began; edges from something to itself do not count."""
    while edges := {(a, b) for a, b in edges if a != b}:
        ends = {b for _, b in edges}
        if all(a in ends for a, _ in edges):
            return False
        edges = {(a, b) for a, b in edges if a in ends}
    return True


def latency(x: Instance, device: list[int], order: list[float] | None) -> tuple[float, Any]:
    """One inference: operations on CPUs start when what they read is there; what lies on an accelerator is a call."""
    call = [int(min(max(rank, 0.0), x.rules["calls"] - 1.0)) for rank in order or [0.0] * len(device)]
    block: list[Any] = [i if x.cpu[d] else (d, call[i]) for i, d in enumerate(device)]
    lasts_s, end_s = dict.fromkeys(block, 0.0), dict[Any, float]()
    for i, d in enumerate(device):
        lasts_s[block[i]] += x.op_s[i, d]
    for each, size in x.partly(block):
        lasts_s[each] += x.slowest_s(each[0], size) if isinstance(each, tuple) else 0.0
    before: dict[Any, set[Any]] = {each: set() for each in lasts_s}
    for a, b, _, _ in x.reads:
        before[block[b]] |= {block[a]} - {block[b]}
    for each in (each for each in lasts_s if isinstance(each, tuple)):
        before[each] |= {(each[0], turn) for turn in range(each[1])} & lasts_s.keys()
    while len(end_s) < len(lasts_s):
        if not (ready := [each for each in lasts_s if each not in end_s and before[each] <= end_s.keys()]):
            raise RefusedError("calls that wait for one another")
        end_s |= {each: max((end_s[other] for other in before[each]), default=0.0) + lasts_s[each] for each in ready}
    return max(end_s.values()), 0


def listsched(x: Instance, device: list[int], order: list[float] | None) -> tuple[float, Any]:  # noqa: C901
    """Devices and links work at once; at a moment: ends, by device, then arrivals as they were sent, then starts."""
    n, p, level, bare = len(device), len(x.devices), x.rules["level"][:2], x.rules["level"] == "T1-bare"
    sends: list[list[tuple[int, list[int]]]] = [[] for _ in device]  # bytes, readers
    for (a, size, _), rows in groupby(sorted((a, s, port, b) for a, b, port, s in x.reads), lambda r: r[:3]):
        sends[a].append((size, [b for *_, b in rows]))
    waiting, inputs = np.bincount([b for _, b, _, _ in x.reads], minlength=n), list[list[Any]]([] for _ in device)
    own = [0 if kind in ("Variable", "Constant") else size for kind, size in zip(x.types, x.out, strict=True)]
    (out_s, in_s, free_s), (held, peak), turn = np.zeros((3, p)), np.zeros((2, p)), count()
    queue, running = list[list[Any]]([] for _ in range(p)), list[Any]([None] * p)  # running: (end, operation)
    kept = [[d, own[i], 0] for i, d in enumerate(device)]  # device, bytes, for how many; so are copies
    arrivals, last_s, done = list[Any](), 0.0, 0  # arrivals: (when, turn, readers, what the sender keeps, the copy)

    def let_go(what: list[int]) -> None:
        what[2] -= 1
        held[what[0]] -= what[1] if what[2] == 0 else 0

    def read(j: int, *source: Any) -> None:
        inputs[j] += source
        waiting[j] -= len(source)
        if waiting[j] == 0:
            heapq.heappush(queue[device[j]], ((0.0, next(turn)) if order is None else (order[j], j), j))

    for i in np.flatnonzero(waiting == 0).tolist():
        read(i)
    while done < n or arrivals or any(running):
        idle = [max(last_s, free_s[d]) for d in range(p) if running[d] is None and queue[d]]
        last_s = now = min([run[0] for run in running if run] + [a[0] for a in arrivals[:1]] + idle)
        for d in (d for d in range(p) if running[d] and running[d][0] == now):
            i, running[d], done = running[d][1], None, done + 1
            kept[i][2] += 1
            for size, readers in sends[i]:
                for j in (j for j in readers if device[j] == d):
                    kept[i][2] += 1
                    read(j, kept[i])
                away, begin = sorted({device[j] for j in readers} - {d}), max(now, out_s[d])
                for e in away:
                    over = now + size * x.per_byte_s[d, e]
                    if size and level == "T1":
                        over = begin + max(size * x.per_byte_s[d, other] for other in away)
                        out_s[d] = over + (0.0 if bare else GAP_S)
                    elif size and level == "T2":
                        out_s[d] = in_s[e] = over = max(now, out_s[d], in_s[e]) + size * x.per_byte_s[d, e]
                    held[e] += size
                    np.maximum(peak, held, out=peak)
                    kept[i][2] += 1
                    there = [j for j in readers if device[j] == e]
                    arriving = (over + x.latency_s[d, e], next(turn), there, kept[i], [e, size, len(there)])
                    heapq.heappush(arrivals, arriving)
            for what in (kept[i], *inputs[i]):
                let_go(what)
        while arrivals and arrivals[0][0] <= now:
            *_, readers, what, copy = heapq.heappop(arrivals)
            let_go(what)
            for j in readers:
                read(j, copy)
        for d in (d for d in range(p) if running[d] is None and queue[d] and free_s[d] <= now):
            _, i = heapq.heappop(queue[d])
            running[d] = (now + x.op_s[i, d], i)
            free_s[d] = running[d][0] + (BLOCK_S if level == "T1" and not bare and x.op_s[i, d] > 0 else 0.0)
            held[d] += own[i]
            np.maximum(peak, held, out=peak)
    return max(last_s, *free_s, *out_s), peak


MODELS = {"listsched": listsched, "sequential": sequential, "pipelined": pipelined, "latency": latency}


def main(files: Sequence[str]) -> int:
    """Check submissions, their bounds against all their values as well; return the exit code."""
    entries, faults, best_s = read_document(HERE / "index.json")["instances"], list[str](), dict[str, float]()
    for file, document in (documents := {file: read_document(Path(file)) for file in files}).items():
        for name, answer in document["answers"].items():
            try:
                best_s[name] = min(Instance(entries[name]).check(answer), best_s.get(name, math.inf))
            except (RefusedError, KeyError) as error:
                faults.append(f"{file}: {name}: {error}")
    for file, document in documents.items():
        for name, bound in document.get("bounds", {}).items():
            if bound["lower_bound_s"] > best_s.get(name, math.inf) * (1 + TOLERANCE):
                faults.append(f"{file}: {name}: the bound {bound['lower_bound_s']!r} s is above {best_s[name]!r} s")
    print(*faults, f"{len(best_s)} instances answered, {len(faults)} faults", sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
