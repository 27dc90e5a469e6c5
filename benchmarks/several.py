"""An independent judge of `placewright tune SCENARIO.toml`: pairs and triples, measured without placewright.

    python -m benchmarks.several --models LIST.json --groups det+cls det+reader+speech --out DIR
                                 [--budget 120s] [--starts 5] [--seconds 1.5] [--objective throughput|load]

LIST.json is what `benchmarks.judge` takes. Each group of names is tuned as a scenario, or its finished run in DIR is
taken. Then its answer takes turns, each start in new processes that have openvino and numpy alone, with the plug-in's
defaults for all models, the latency hint and the throughput hint for all, threads shared equally, and "each tuned
alone" as the run states it, in an order that is reversed from start to start. One line of JSON per group is added to
DIR/several.jsonl; groups that are there are not judged again.

    throughput  closed loops: the geometric mean over the models of the rates
    load        Poisson arrivals at rates of a tenth of what defaults reach in closed loops, deadlines of four times the
                p99 that defaults have at these rates: the greatest multiple of all rates at which every p99 holds, by
                bisection, and whether what the run says holds does so here
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from pipeline.system.machine_lock import measuring_alone

ROOT = Path(__file__).parent.parent
PLACEWRIGHT = Path(sysconfig.get_path("scripts")) / "placewright"
JUDGED = "several.jsonl"
HINTS = ("plug-in defaults", "latency hint", "throughput hint")
ALONE, EQUAL, ANSWER = "each tuned alone", "threads shared equally", "answer"
FEW_S, FILL_S = 0.4, 0.3
REQUESTS = 300  # for a p99
DEADLINES, SHARE = 4.0, 0.1
MOST_LOG = 20.0  # of an interval's end that is told
FACTOR = 1.06  # to which the greatest multiple is told


@contextmanager
def started(models: Sequence[Mapping[str, Any]]) -> Iterator[subprocess.Popen[str]]:
    """Give a new process that has compiled the models in this order."""
    command = [sys.executable, "-m", "benchmarks.several_child"]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        ask(process, {"models": list(models)})
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the process answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(document) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def drive(process: Any, seconds: float, rates: Mapping[str, float], seed: int, drain_s: float = 1.0) -> dict[str, Any]:
    """Return what became of one load; no rates for closed loops."""
    asked = {"seconds": seconds, "fill_s": FILL_S, "rates": dict(rates), "seed": seed, "drain_s": drain_s}
    return ask(process, asked)


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio that logarithms amount to, and Student's 95 % interval."""
    mean = float(np.mean(logs))
    half = float(stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)) if len(logs) > 1 else math.inf
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half) if mean + half < MOST_LOG else math.inf


def multiple_of(process: Any, rates: Mapping[str, float], deadlines: Mapping[str, float], seed: int) -> float:
    """Return the greatest multiple of all rates at which every p99 is within its deadline."""

    def holds(multiple: float) -> bool:
        now = {name: rate * multiple for name, rate in rates.items()}
        seconds = max(FEW_S, REQUESTS / min(now.values()))
        told = drive(process, seconds, now, seed, 2 * max(deadlines.values()))
        return all((told[n]["p99_s"] or math.inf) <= deadlines[n] for n in rates)

    low, high = 0.0, math.inf
    multiple = 4.0
    while not (low and high <= low * FACTOR) and 1 / 64 < multiple < 4096:
        low, high = (multiple, high) if holds(multiple) else (low, multiple)
        multiple = math.sqrt(low * high) if low and math.isfinite(high) else (low * 2 if low else high / 2)
    return low or 1 / 64


def usual_ways(names: Sequence[str], paths: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return what needs no search: way -> the models as they are compiled."""
    threads = str(max(1, len(os.sched_getaffinity(0)) // len(names)))
    said: dict[str, dict[str, str]] = {
        HINTS[0]: {},
        HINTS[1]: {"PERFORMANCE_HINT": "LATENCY"},
        HINTS[2]: {"PERFORMANCE_HINT": "THROUGHPUT"},
        EQUAL: {"INFERENCE_NUM_THREADS": threads},
    }
    return {
        way: [{"name": n, "path": paths[n], "target": "CPU", "properties": p, "requests": 0} for n in names]
        for way, p in said.items()
    }


def stated_way(run: Mapping[str, Any], name: str, paths: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a configuration that a run states, as its models are compiled."""
    of = next(c for c in run["configurations"] if c["name"] == name)
    return [
        {
            "name": m["name"],
            "path": paths[m["name"]],
            "target": m["target"],
            "properties": {k: v for d in m["devices"].values() for k, v in d["properties"].items()} | m["properties"],
            "requests": m["requests"],
        }
        for m in of["models"]
    ]


def tune(names: Sequence[str], models: Mapping[str, Any], folder: Path, extra: Mapping[str, str], budget: str) -> Any:
    """Return the result of tuning a group as a scenario."""
    if not (folder / "result.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for name in names:
            model = models[name]
            shapes = [f"{i}[{','.join(map(str, s))}]" for i, s in model.get("sizes", {}).items()]
            lines += ["[[models]]", f'name = "{name}"', f'model = "{model["path"]}"', f"shape = {json.dumps(shapes)}"]
            lines += [extra.get(name, "")]
        scenario = folder / "scenario.toml"
        scenario.write_text("\n".join(lines) + "\n")
        command = [
            str(PLACEWRIGHT),
            "tune",
            str(scenario),
            "--out",
            str(folder),
            "--store",
            str(folder.parent / "store"),
        ]
        done = subprocess.run([*command, "--budget", budget, "--quiet"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"tuning {'+'.join(names)} ended with {done.returncode}: {done.stderr[-400:]}")
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def judge(names: Sequence[str], models: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return how the answer of one group compares with the usual ways."""
    folder = args.out / f"{'+'.join(names)}-{args.objective}"
    rates: dict[str, float] = {}
    deadlines: dict[str, float] = {}
    extra: dict[str, str] = {}
    vocabulary = {n: models[n].get("vocabulary", 1000) for n in names}
    if args.objective == "load":
        first = tune(names, models, args.out / f"{'+'.join(names)}-throughput", {}, args.budget)
        paths = {
            m["name"]: str(args.out / f"{'+'.join(names)}-throughput" / m["folder"] / "placed.xml")
            for m in first["models"]
        }
        asked = args.out / f"{'+'.join(names)}-asked.json"
        if not asked.is_file():
            plain = [{**m, "vocabulary": vocabulary[m["name"]]} for m in usual_ways(names, paths)[HINTS[0]]]
            with measuring_alone(lambda said: None), started(plain) as process:
                closed = drive(process, args.seconds, {}, 0)
                rates = {n: SHARE * closed[n]["rate"] for n in names}
                told = drive(process, REQUESTS / min(rates.values()), rates, 0)
            deadlines = {n: DEADLINES * (told[n]["p99_s"] or 1.0) for n in names}
            asked.write_text(json.dumps([rates, deadlines]))
        rates, deadlines = json.loads(asked.read_text())
        extra = {n: f'rate = {rates[n]:.6g}\ndeadline = "{1e3 * deadlines[n]:.6g}ms"' for n in names}
    run = tune(names, models, folder, extra, args.budget)
    paths = {m["name"]: str(folder / m["folder"] / "placed.xml") for m in run["models"]}
    ways = usual_ways(names, paths) | {ANSWER: stated_way(run, run["best"], paths)}
    if any(c["name"] == ALONE for c in run["configurations"]):
        ways[ALONE] = stated_way(run, ALONE, paths)
    values: dict[str, list[float]] = {way: [] for way in ways}
    kept: list[bool] = []
    said = (run.get("check") or {}).get("multiple", 0.0)
    with measuring_alone(lambda said: None):
        for start in range(args.starts):
            for way in list(ways) if start % 2 else list(reversed(ways)):
                with started([{**m, "vocabulary": vocabulary[m["name"]]} for m in ways[way]]) as process:
                    if args.objective == "throughput":
                        told = drive(process, args.seconds, {}, start)
                        values[way].append(geometric([max(told[n]["rate"], 1e-9) for n in names]))
                        continue
                    values[way].append(multiple_of(process, rates, deadlines, start))
                    if way == ANSWER and said:
                        now = {n: rates[n] * said for n in names}
                        told = drive(process, max(FEW_S, REQUESTS / min(now.values())), now, 100 + start)
                        kept += [(told[n]["p99_s"] or math.inf) <= deadlines[n] for n in names]
    over = {
        way: interval([math.log(a / b) for a, b in zip(values[ANSWER], each, strict=True)])
        for way, each in values.items()
        if way != ANSWER
    }
    best = max(HINTS, key=lambda way: geometric(values[way]))
    return {
        "group": "+".join(names), "objective": args.objective, "answer": run["best"], "verdict": run["verdict"],
        "values": values, "over": over, "best hint": best, "said": said, "kept": kept,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def main() -> int:
    """Judge the groups; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--groups", nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--objective", choices=["throughput", "load"], default="throughput")
    args = parser.parse_args()
    args.out = args.out.absolute()
    args.out.mkdir(parents=True, exist_ok=True)
    listed = json.loads(args.models.read_text(encoding="utf-8"))
    models = {m["name"]: {**m, "path": str((args.models.parent / m["path"]).resolve())} for m in listed}
    file = args.out / JUDGED
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    for group in args.groups:
        if not any(row["group"] == group and row["objective"] == args.objective for row in known):
            known.append(judge(group.split("+"), models, args))
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(known[-1]) + "\n")
    rows = [row for row in known if row["objective"] == args.objective]
    print(
        "| group | answer | over the best hint | over each tuned alone | said, kept | load |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        cells = [_ratio(row["over"].get(way)) for way in (row["best hint"], ALONE)]
        kept = f"{row['said']:.2f}, {sum(row['kept'])} of {len(row['kept'])}" if row["kept"] else ""
        print(f"| {row['group']} | {row['answer']} | {cells[0]} | {cells[1]} | {kept} | {row['load']:.1f} |")
    for title, way in (("the best hint", ""), (ALONE, ALONE)):
        ratios = [row["over"][way or row["best hint"]][0] for row in rows if (way or row["best hint"]) in row["over"]]
        if ratios:
            ratio, low, high = interval(np.log(ratios).tolist())
            print(f"over {title}: {ratio:.2f} ({low:.2f} to {high:.2f} over groups), least {min(ratios):.2f}")
    all_kept = [k for row in rows for k in row["kept"]]
    if all_kept:
        print(f"deadlines kept: {100 * np.mean(all_kept):.0f} % of {len(all_kept)}")
    return 0


def _ratio(told: Sequence[float] | None) -> str:
    return "" if told is None else f"{told[0]:.2f} ({told[1]:.2f} to {told[2]:.2f})"


if __name__ == "__main__":
    sys.exit(main())
