"""The program of a fake interpreter: it answers the commands of a gate as `runtime.measuring.gate_child` would.

What it does is said by JSON in its first argument: runtime and version, latency_s, how many samples a turn has,
peak_bytes, scale of the outputs, or outputs by name with their type, precision, also of kernels, and which models, by
name, it refuses, or dies of. `unknown`: settings that it refuses. `marks`: a file that gets a line for every model
that is loaded; `fails`: of these, which it dies of, by number, and `fails_from`: from which on. `dumb`: it dies when
it is asked for kernels, or for the graph.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

SCATTER = 0.0003
PR_SET_PDEATHSIG = 1


def trying(told: dict[str, Any], command: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of settings."""
    wrong = command["settings"].keys() & set(told.get("unknown", ()))
    return {"error": {"kind": "refused", "message": f"Unsupported property {min(wrong)}"}} if wrong else {}


def loading(told: dict[str, Any], state: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what is said where a model is not loaded."""
    state["times"] = random.Random(os.getpid()).gauss(1.0, SCATTER)
    if "marks" in told:
        with Path(told["marks"]).open("a", encoding="utf-8") as marks:
            marks.write(f"{name}\n")
        loads = len(Path(told["marks"]).read_text(encoding="utf-8").splitlines())
        if loads in told.get("fails", ()) or loads >= told.get("fails_from", math.inf):
            os.kill(os.getpid(), signal.SIGKILL)
    if name in told.get("crashes", ()):
        print("vector::_M_range_check", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if name in told.get("refuses", ()):
        return {"error": {"kind": "refused", "message": "Unsupported operation Frobnicate"}}
    return {}


def answer(told: dict[str, Any], command: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    match command["do"]:
        case "begin":
            if "fault" in told:
                return {"python": "3.12.0", "runtime": "openvino", "version": "", "fault": told["fault"]}
            there = told.get("runtimes", ["openvino"])
            return {
                "python": "3.12.0", "runtime": command["runtime"] or there[0], "version": told["version"], "fault": "",
                "there": there, "providers": told.get("providers", []),
            }  # fmt: skip
        case "settings":
            return trying(told, command)
        case "load":
            if fault := trying(told, command) or loading(told, state, Path(command["model"]).name):
                return fault
            return {
                "read_s": 0.01, "compile_s": 0.1, "first_s": 0.01, "read_bytes": 10**7, "compile_bytes": 2 * 10**7,
                "requests": 1, "precision": told.get("precision", "f32"), "devices": ["CPU"],
            }  # fmt: skip
        case "run":
            factor = float(command.get("factor", 1.0)) * state["times"]
            taken = told.get("latency_s", 1e-3) * factor * random.gauss(1.0, SCATTER)
            return {"samples_s": [taken] * told.get("samples", 30), "period_s": taken}
        case "outputs":
            import numpy as np

            array = told.get("scale", 1.0) * np.arange(1.0, 9.0, dtype=np.float32)
            named = {name: np.array(each, dtype) for name, (dtype, each) in told.get("outputs", {}).items()}
            named = named if "outputs" in told else {"probabilities": array}
            with Path(command["path"]).open("wb") as out:
                np.savez(out, **{f"given/output_{i}": each for i, each in enumerate(named.values())})
            return {"names": list(named), "left_out": told.get("left_out", [])}
        case "kernels" | "graph" if command["do"] in told.get("dumb", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        case "kernels":
            kernel = told.get("kernel", "Convolution jit")
            precision = told.get("kernel_precision", told.get("precision", "f32"))
            return {"kernels": [["conv1", kernel, precision, told.get("device", "CPU")]]}
        case "graph":
            return {"producers": {"x": [], "conv1": ["x"], "conv2": ["conv1"]}, "results": ["conv2"]}
        case "results":
            import numpy as np

            name = command["operations"][0]
            scale = told.get("scale", 1.0) if name != "x" else 1.0
            with Path(command["path"]).open("wb") as out:
                np.savez(out, **{name: scale * np.arange(1.0, 9.0)})
            return {}
    return {"peak_bytes": told.get("peak_bytes", 3 * 10**7)}


def main() -> None:
    told, state = json.loads(sys.argv[1]), {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # as the real one: it may stand still when its parent dies
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if told.get("says"):
        print(told["says"], flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(told, json.loads(line), state)), flush=True)


if __name__ == "__main__":
    main()
