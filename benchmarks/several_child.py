"""A process of `benchmarks.several`: models compiled in order by openvino alone, kept busy or sent requests on time.

The first line of standard input says which models, with which properties; each further one asks for a load. Nothing of
placewright is imported.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

os.environ["CI"] = "true"  # openvino reports home otherwise

import numpy as np
import openvino as ov


def prepare(told: dict[str, Any]) -> tuple[ov.CompiledModel, list[ov.InferRequest]]:
    """Return a compiled model, and requests with inputs set."""
    core = ov.Core()
    model = core.read_model(told["path"])
    if told["sizes"]:
        model.reshape({name: ov.PartialShape(size) for name, size in told["sizes"].items()})
    compiled = core.compile_model(model, told["target"], told["properties"])
    count = told["requests"] or int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
    rng = np.random.default_rng(0)
    requests = [compiled.create_infer_request() for _ in range(count)]
    for port in compiled.inputs:
        dtype = port.element_type.to_dtype()
        floats = np.issubdtype(dtype, np.floating)
        value = rng.random(tuple(port.shape)) if floats else rng.integers(0, told["vocabulary"], tuple(port.shape))
        for request in requests:
            request.set_tensor(port, ov.Tensor(value.astype(dtype)))
    for request in requests:
        request.infer()
    return compiled, requests


def drive(models: dict[str, list[ov.InferRequest]], asked: dict[str, Any]) -> dict[str, Any]:
    """Return what became of the requests of each model; rate 0: as many as can be in flight, again and again.

    only: the models that have requests; all unless given.
    """
    models = {name: requests for name, requests in models.items() if name in (asked.get("only") or models)}
    seconds, fill_s = asked["seconds"], asked["fill_s"]
    whole_s = fill_s + seconds
    told: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    begun = time.perf_counter() + 0.02
    lock = threading.Lock()
    threads: list[threading.Thread] = []
    for name, requests in models.items():
        rate = asked["rates"].get(name, 0.0)
        rng = np.random.default_rng([asked["seed"], len(threads)])
        due = np.cumsum(rng.exponential(1 / rate, int(whole_s * rate * 1.5) + 50)) if rate else np.array([])
        arrivals = iter(due[due < whole_s].tolist())

        def serve(name: str = name, rate: float = rate, arrivals: Any = arrivals, request: Any = None) -> None:
            while True:
                now = time.perf_counter() - begun
                if rate:
                    with lock:
                        due_s = next(arrivals, None)
                    if due_s is None or now > whole_s + asked["drain_s"]:
                        break
                    time.sleep(max(0.0, due_s - now))
                else:
                    due_s = max(0.0, now)
                    if now > whole_s:
                        break
                request.infer()
                told[name].append((due_s, time.perf_counter() - begun))
            if rate:
                with lock:  # what is left was not served in time
                    told[name].extend((due_s, float("inf")) for due_s in arrivals)

        threads += [threading.Thread(target=serve, kwargs={"request": request}) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer = {}
    for name, pairs in told.items():
        kept = [(due, end) for due, end in pairs if due >= fill_s]
        latencies = sorted(end - due for due, end in kept)
        at = min(len(latencies) - 1, int(np.ceil(0.99 * len(latencies))) - 1)
        ended = sum(fill_s <= end < whole_s for _, end in pairs)
        p99 = latencies[at] if latencies else float("inf")
        answer[name] = {"rate": ended / seconds, "p99_s": p99 if np.isfinite(p99) else None, "requests": len(kept),
                        "p50_s": latencies[len(latencies) // 2] if latencies else None}  # fmt: skip
    return answer


def main() -> None:
    """Serve loads until standard input ends."""
    first = json.loads(sys.stdin.readline())
    kept = {told["name"]: prepare(told) for told in first["models"]}
    models = {name: requests for name, (_, requests) in kept.items()}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(drive(models, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
