"""The program of a measuring process whose devices are made up, and of which one may have a fault.

It answers the commands of `runtime.measuring.process.worker` without a runtime, and starts in no time: outputs are
those that lie beside the model, times follow from `true_factor`, and every turn is noted, so that none may be lost or
counted twice. FAULT names a fault in JSON: kind, whom (see `concerns`), after (so many commands of a process that it
concerns), times (how often at most in all processes, 0 for always), marks (folder of what is noted).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

FAULT = "PLACEWRIGHT_CAMPAIGN_DEVICE"
BASE_S, SPLIT, SLOWEST, SCATTER = 1e-3, 0.7, 1.3, 0.002
TURN_S = 0.002  # that a turn really takes: else a start would have thousands
LATE_S = 3600.0
TIMED = "timed"  # the kind of inputs of which the reference holds nothing
SPOILT = ("nan", "wrong", "other every time")


def add(path: Path, line: bytes) -> None:
    """Add to a file, whole even if others do so at the same time."""
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(out, line)
    os.close(out)


def operations_of(model: Path) -> list[str]:
    """Return the operations of an IR that compute something."""
    layers = ElementTree.parse(model).getroot().iter("layer")
    return [layer.attrib["name"] for layer in layers if layer.attrib["type"] not in ("Const", "Parameter", "Result")]


def write_outputs(right: Path, path: Path, kinds: list[str], spoilt: str) -> None:
    """Write outputs for some kinds of inputs, all their floats spoilt in a way, "" for none."""
    import numpy as np  # here: most processes need it not

    rng = np.random.default_rng()
    with np.load(right, allow_pickle=False) as arrays:
        known = dict(arrays)
    first, told = next(iter(known)).partition("/")[0], {}
    for kind in kinds:
        of = kind if any(name.startswith(f"{kind}/") for name in known) else first
        told |= {f"{kind}/{n.partition('/')[2]}": a for n, a in known.items() if n.startswith(f"{of}/")}
    for name, array in told.items():
        if spoilt and array.dtype.kind == "f":
            other = array * rng.uniform(1.5, 5.0) if spoilt == "other every time" else array[..., ::-1] + 1.0
            told[name] = np.full_like(array, np.nan) if spoilt == "nan" else other.astype(array.dtype)
    with path.open("wb") as out:
        np.savez(out, **told)


def true_factor(command: Mapping[str, Any]) -> float:
    """Return what a variant takes in units of BASE_S: splits are the fastest, everything else is 1 to SLOWEST."""
    if command["affinity"]:
        return SPLIT
    if command["target"] == "CPU" and not command["properties"]:
        return 1.0
    said = json.dumps([command["target"], sorted(command["properties"].items()), command["devices"]], sort_keys=True)
    return 1.0 + int(hashlib.sha256(said.encode()).hexdigest()[:4], 16) / 0xFFFF * (SLOWEST - 1.0)


def concerns(whom: str, command: Mapping[str, Any]) -> bool:
    """Return whether a fault concerns a variant: "all", those over several devices, "one" device, or device "B"."""
    split = bool(command.get("affinity"))
    match whom:
        case "split":
            return split
        case "one":
            return not split and command.get("target") != "CPU"
        case "B":
            return "CPU_B" in json.dumps(command)
    return True


class FakeDevices:
    """What is loaded, and the fault."""

    def __init__(self, fault: Mapping[str, Any]) -> None:
        self.fault, self.marks = fault, Path(fault["marks"])
        self.loaded: dict[str, Any] = {}
        self.seen, self.turn_s = 0, TURN_S
        self.random = random.Random(f"{os.getpid()} {time.monotonic_ns()}")

    def strikes(self, *kinds: str) -> bool:
        """Return whether the fault is of a kind and it is its turn, which is noted."""
        if self.fault["kind"] not in kinds or not concerns(self.fault["whom"], self.loaded):
            return False
        self.seen += 1
        if self.seen <= self.fault["after"]:
            return False
        struck = self.marks / "struck"
        if self.fault["times"] and struck.exists() and struck.stat().st_size >= self.fault["times"]:
            return False
        add(struck, b"x")
        return True

    def fail(self) -> None:
        """End, stand still, eat memory or say no, if that is the fault."""
        if self.strikes("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.strikes("crashes"):
            print("vector::_M_range_check", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.strikes("stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.strikes("late"):
            time.sleep(LATE_S)
        if self.strikes("out of memory"):
            raise MemoryError("std::bad_alloc")
        if self.strikes("eats memory", "eats memory of a cgroup"):
            if self.fault["kind"] == "eats memory":
                resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            else:
                (Path(self.fault["cgroup"]) / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            eaten = [bytearray(b"x" * (1 << 20)) for _ in range(1 << 12)]
            raise RuntimeError(f"{len(eaten)} MiB were to be had")
        if self.strikes("disappears"):
            raise RuntimeError("CL_DEVICE_NOT_AVAILABLE: the device was removed")
        if self.strikes("half an answer"):
            os.write(1, b'{"samples_s": [0.0')
            os._exit(0)

    def load(self, command: dict[str, Any]) -> dict[str, Any]:
        self.loaded = command
        if self.strikes("refuses"):
            raise RuntimeError("Operation Frobnicate is not supported")
        self.fail()
        asked = sorted(set((command["affinity"] or {}).values()))
        executed = asked or [d["openvino_name"] for d in command["devices"]][:1] or ["CPU"]
        if self.strikes("elsewhere"):
            executed = executed[:1] if len(executed) > 1 else ["CPU_Z"]
        return {
            "executed_on": executed,
            "subgraphs": max(1, len(asked)),
            "precisions": dict.fromkeys(executed, "f32"),
            "int8_kernels": [],
            "threads": {},
            "cached": False,
            "reported": {"ID": hashlib.sha256(json.dumps(command, sort_keys=True).encode()).hexdigest()},
            "compile_s": 0.001,
            "requests": max(1, command["requests"]),
        }

    def outputs(self, command: Mapping[str, Any]) -> dict[str, Any]:
        self.fail()
        right, path = Path(self.loaded["model"]).with_name("reference.npz"), Path(command["path"])
        spoilt = self.strikes(*SPOILT)
        if spoilt or TIMED in command["kinds"]:
            write_outputs(right, path, command["kinds"], self.fault["kind"] if spoilt else "")
        else:  # of all kinds, which does no harm
            shutil.copyfile(right, path)
        return {}

    def run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        self.fail()
        if self.turn_s:
            time.sleep(self.turn_s)
        taken = BASE_S * true_factor(self.loaded) * math.exp(self.random.gauss(0.0, SCATTER))
        if self.strikes("throttles"):
            taken *= 2.0
        if self.strikes("slow turns") and self.random.random() < 0.3:
            taken *= 10.0
        add(self.marks / "turns", f"{taken!r}\n".encode())
        return {
            **{"samples_s": [taken] * max(5, command["minimum"]), "period_s": taken, "cpu_s": taken, "others_s": 0.0},
            **{"run_delay_s": 0.0, "runnable_s": taken},
        }

    def kernels(self, command: Mapping[str, Any]) -> dict[str, Any]:
        self.fail()
        latency_s, names = BASE_S * true_factor(self.loaded), operations_of(Path(self.loaded["model"]))
        each = [[[name], latency_s / len(names)] for name in names]
        return {"kernels": each, "latency_s": latency_s, "mean_s": latency_s, "unmapped_s": 0.0}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a command."""
        match command["do"]:
            case "load" | "outputs" | "run" | "kernels":
                return getattr(self, command["do"])(command)  # type: ignore[no-any-return]
            case "support":
                self.loaded = command
                self.fail()
                return {"refused": []}
            case "link":
                self.loaded = command
                self.fail()
                return {"boundary_s": [1e-6, 2e-6], "bytes": [256, 802816]}
            case "company":
                return {"slowdown": [1.0] * len(command["devices"])}
            case "fusion":
                return {"groups": [[name] for name in operations_of(Path(command["model"]))]}
            case "realtime":
                return {"allowed": False}
            case "memory":
                return {"peak_bytes": 10**7}
            case "arrive" | "burst":
                return {"samples_s": self.run({"minimum": 5})["samples_s"]}
        return {}


def main() -> None:
    """Answer until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    devices = FakeDevices(json.loads(os.environ[FAULT]))
    for line in sys.stdin:
        try:
            said = devices.answer(json.loads(line))
        except (RuntimeError, MemoryError) as error:
            kind = "out_of_memory" if isinstance(error, MemoryError) else "refused"
            said = {"error": {"kind": kind, "message": str(error)}}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
