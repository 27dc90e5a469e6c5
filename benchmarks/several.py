"""An independent judge of `placewright tune SCENARIO.toml`: pairs and triples, measured without placewright.

    python -m benchmarks.several --models LIST.json --scenarios det+cls det+cls:load det+reader+speech --out DIR
                                 [--budget 120s] [--starts 4] [--judge-s 60] [--within-s 850]

LIST.json is what `benchmarks.judge` takes. Each scenario, names of models and what is asked of them, is tuned, or its
finished run in DIR is taken. Then its answer takes turns with the plug-in's defaults for all models, the latency hint
and the throughput hint for all, threads shared equally, and "each tuned alone" as the run states it. Each start begins
new processes that have openvino and numpy alone, one for each way, which have windows of load in an order that is
reversed from turn to turn; starts end after --judge-s, two at least. A model whose outputs are wrong in the plug-in's
own precision is computed in f32 by all; the throughput hint "as it stands" is judged beside. One line of JSON per
scenario is added to DIR/several.jsonl; what is there is not judged again, and none is begun after --within-s.

    throughput  closed loops: the geometric mean over the models of the rates
    load        Poisson arrivals at rates of a quarter of what defaults reach in closed loops, deadlines of five times
                the median latency that a model has under defaults at its rate while nothing else runs (AlpaServe, OSDI
                2023, calls it the SLO scale): the greatest multiple of all rates at which every p99 holds, by
                bisection, and whether what the run says holds does so here
    latency     twice these rates: how far off predicted percentiles are; not judged
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
STANDS = "throughput hint as it stands"
FEW_S, FILL_S, MOST_S = 0.4, 0.1, 3.0  # of windows
TURNS, TURN_S = 4, 0.4  # of one start in closed loops
REQUESTS, CHECKED = 100, 200  # for a p99; where it is said to hold
SLO_SCALE, SHARE = 5.0, 0.25
RATES = {"load": 1.0, "latency": 2.0}  # times those that are told by defaults
ALONE_S = 2.0  # of the load that tells a model's latency alone
MOST_LOG = 20.0  # of an interval's end that is told
FACTOR, STEP, MOST_WINDOWS = 1.1, 1.4, 7  # of the search for the greatest multiple


@contextmanager
def started(ways: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Give new processes, one after another of which has compiled its models in this order."""
    command = [sys.executable, "-m", "benchmarks.several_child"]
    processes = {
        way: subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for way in ways
    }
    try:
        for way, process in processes.items():
            ask(process, {"models": list(ways[way])})
        yield processes
    finally:
        for process in processes.values():
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


def drive(
    process: Any,
    seconds: float,
    rates: Mapping[str, float],
    seed: int,
    drain_s: float = 1.0,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what became of one load; no rates for closed loops. only: the models that have requests, if not all."""
    asked = {"seconds": seconds, "fill_s": FILL_S, "rates": dict(rates), "seed": seed, "drain_s": drain_s}
    return ask(process, {**asked, "only": list(only)})


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio that logarithms amount to, and Student's 95 % interval."""
    mean = float(np.mean(logs))
    half = float(stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)) if len(logs) > 1 else math.inf
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half) if mean + half < MOST_LOG else math.inf


@dataclass(slots=True)
class Bracket:
    """Between which multiples of all rates the greatest lies at which every p99 is within its deadline."""

    at: float
    low: float = 0.0
    high: float = math.inf
    count: int = 0

    @property
    def told(self) -> bool:
        """Return whether it is narrow enough."""
        return self.count >= MOST_WINDOWS or self.high <= FACTOR * self.low

    def look(self, process: Any, rates: Mapping[str, float], deadlines: Mapping[str, float], seed: int) -> None:
        """Narrow it by one window of load."""
        held = all(keeps(process, rates, deadlines, self.at, seed, REQUESTS).values())
        self.low, self.high = (self.at, self.high) if held else (self.low, self.at)
        self.count += 1
        if self.low and math.isfinite(self.high):
            self.at = math.sqrt(self.low * self.high)
        else:
            self.at = self.low * STEP if self.low else self.high / STEP


def keeps(
    process: Any, rates: Mapping[str, float], deadlines: Mapping[str, float], multiple: float, seed: int, requests: int
) -> dict[str, bool]:
    """Return of each model whether its p99 is within its deadline at a multiple of all rates."""
    now = {name: rate * multiple for name, rate in rates.items()}
    seconds = min(MOST_S * requests / REQUESTS, max(FEW_S, requests / min(now.values())))
    told = drive(process, seconds, now, seed, 2 * max(deadlines.values()))
    return {n: (told[n]["p99_s"] or math.inf) <= deadlines[n] for n in rates}


def usual_ways(models: Sequence[Mapping[str, Any]], exact: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Return what needs no search: way -> the models as they are compiled. exact: those that compute in f32."""
    threads = str(max(1, len(os.sched_getaffinity(0)) // len(models)))
    said: dict[str, dict[str, str]] = {
        HINTS[0]: {},
        HINTS[1]: {"PERFORMANCE_HINT": "LATENCY"},
        HINTS[2]: {"PERFORMANCE_HINT": "THROUGHPUT"},
        EQUAL: {"INFERENCE_NUM_THREADS": threads},
    }
    ways = {
        way: [
            {**m, "properties": p | ({"INFERENCE_PRECISION_HINT": "f32"} if m["name"] in exact else {})} for m in models
        ]
        for way, p in said.items()
    }
    return ways | ({STANDS: [{**m, "properties": said[HINTS[2]]} for m in models]} if exact else {})


def stated_way(run: Mapping[str, Any], name: str, models: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a configuration that a run states, as its models are compiled."""
    known = {m["name"]: m for m in models}
    of = next(c for c in run["configurations"] if c["name"] == name)
    return [
        {
            **known[m["name"]],
            "target": m["target"],
            "properties": {k: v for d in m["devices"].values() for k, v in d["properties"].items()} | m["properties"],
            "requests": m["requests"],
        }
        for m in of["models"]
    ]


def tune(
    names: Sequence[str],
    models: Mapping[str, Any],
    folder: Path,
    objective: str,
    extra: Mapping[str, str],
    budget: str,
) -> Any:
    """Return the result of tuning models as a scenario."""
    if not (folder / "result.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f'objective = "{objective}"']
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


def judge(names: Sequence[str], objective: str, models: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return how the answer of one scenario compares with the usual ways."""
    folder = args.out / f"{'+'.join(names)}-{objective}"
    plain = [
        {"name": n, "path": models[n]["path"], "sizes": models[n].get("sizes", {}), "target": "CPU", "requests": 0,
         "vocabulary": models[n].get("vocabulary", 1000)}
        for n in names
    ]  # fmt: skip
    rates, deadlines = asked_of(plain, folder) if objective in RATES else ({}, {})
    rates = {n: RATES[objective] * rate for n, rate in rates.items()}
    extra = {n: f'rate = {rates[n]:.6g}\ndeadline = "{1e3 * deadlines[n]:.6g}ms"' for n in rates}
    run = tune(names, models, folder, objective, extra, args.budget)
    about = {
        "scenario": f"{'+'.join(names)}:{objective}", "answer": run["best"], "verdict": run["verdict"],
        "predicted error": run["predicted_error"], "rank correlation": run["predicted_rank_correlation"],
    }  # fmt: skip
    if objective == "latency":
        return about | {"over": {}, "best hint": HINTS[0], "said": 0.0, "kept": [], "load": os.getloadavg()[0]}
    placed = [{**m, "path": str(folder / m["name"] / "placed.xml"), "sizes": {}} for m in plain]
    plainly = next(c for c in run["configurations"] if c["kind"] == "defaults")  # in f32 where outputs are wrong else
    exact = [
        m["name"]
        for m in plainly["models"]
        if any("INFERENCE_PRECISION_HINT" in d["properties"] for d in m["devices"].values())
    ]
    ways = usual_ways(placed, exact) | {ANSWER: stated_way(run, run["best"], placed)}
    if any(c["name"] == ALONE for c in run["configurations"]):
        ways[ALONE] = stated_way(run, ALONE, placed)
    stated = {c["name"]: c["value"] for c in run["configurations"] if c["value"]}
    check = run.get("check") or {}
    said = check["multiple"] if check.get("holds") else 0.0
    starts: list[dict[str, list[float]]] = []
    kept: list[bool] = []
    until = time.monotonic() + args.judge_s
    while len(starts) < args.starts and (len(starts) < 2 or time.monotonic() < until):
        number = len(starts)
        order = list(ways) if number % 2 else list(reversed(ways))
        with measuring_alone(lambda said: None), started({way: ways[way] for way in order}) as processes:
            if objective == "throughput":
                seen: dict[str, list[float]] = {way: [] for way in ways}
                for turn in range(TURNS):
                    for way in order if turn % 2 else reversed(order):
                        told = drive(processes[way], TURN_S, {}, turn)
                        seen[way].append(math.log(geometric([max(told[n]["rate"], 1e-9) for n in names])))
            else:
                guess = {way: stated.get(run["best"] if way == ANSWER else way, said or 1.0) for way in ways}
                brackets = {way: Bracket(guess[way]) for way in ways}
                while not all(b.told for b in brackets.values()):
                    for way in order:
                        if not brackets[way].told:
                            brackets[way].look(processes[way], rates, deadlines, 100 * number + brackets[way].count)
                    order.reverse()
                seen = {way: [math.log(b.low or b.high / STEP)] for way, b in brackets.items()}
                if said:
                    kept += keeps(processes[ANSWER], rates, deadlines, said, 100 * number + 99, CHECKED).values()
        starts.append(seen)
    over = {
        way: interval([float(np.median(np.subtract(s[ANSWER], s[way]))) for s in starts])
        for way in ways
        if way != ANSWER
    }
    mean = {way: math.exp(float(np.mean([np.mean(s[way]) for s in starts]))) for way in ways}
    return about | {
        "mean": mean, "over": over, "best hint": max(HINTS, key=lambda way: mean[way]), "said": said, "kept": kept,
        "starts": len(starts), "load": os.getloadavg()[0],
    }  # fmt: skip


def asked_of(models: Sequence[Mapping[str, Any]], folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rates and deadlines of a scenario: told by plug-in defaults once, and kept beside its run."""
    file = folder.parent / f"{'+'.join(m['name'] for m in models)}.asked.json"
    if not file.is_file():
        plain = {HINTS[0]: usual_ways(models)[HINTS[0]]}
        with measuring_alone(lambda said: None), started(plain) as processes:
            process = processes[HINTS[0]]
            rates = {name: SHARE * told["rate"] for name, told in drive(process, 1.5, {}, 0).items()}
            alone = {n: drive(process, ALONE_S, {n: rate}, 0, only=[n])[n]["p50_s"] for n, rate in rates.items()}
        file.write_text(json.dumps([rates, {n: SLO_SCALE * seconds for n, seconds in alone.items()}]))
    rates, deadlines = json.loads(file.read_text(encoding="utf-8"))
    return rates, deadlines


def main() -> int:
    """Judge the groups; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--scenarios", nargs="+", required=True, help="det+cls, or det+cls:load")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--judge-s", type=float, default=60.0)
    parser.add_argument("--within-s", type=float, default=math.inf)
    args = parser.parse_args()
    args.out = args.out.absolute()
    args.out.mkdir(parents=True, exist_ok=True)
    listed = json.loads(args.models.read_text(encoding="utf-8"))
    models = {m["name"]: {**m, "path": str((args.models.parent / m["path"]).resolve())} for m in listed}
    file = args.out / JUDGED
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    begun, longest_s = time.monotonic(), 0.0
    for scenario in args.scenarios:
        group, _, objective = scenario.partition(":")
        objective = objective or "throughput"
        now = time.monotonic()
        if any(row["scenario"] == f"{group}:{objective}" for row in rows) or now - begun + longest_s > args.within_s:
            continue
        rows.append(judge(group.split("+"), objective, models, args))
        longest_s = max(longest_s, time.monotonic() - now)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(rows[-1]) + "\n")
    print("| scenario | answer | over defaults | over the best hint | over each tuned alone | said, kept | load |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [_ratio(row["over"].get(way)) for way in (HINTS[0], row["best hint"], ALONE)]
        kept = f"{row['said']:.2f}, {sum(row['kept'])} of {len(row['kept'])}" if row["kept"] else ""
        print(f"| {row['scenario']} | {row['answer']} | {' | '.join(cells)} | {kept} | {row['load']:.1f} |")
    for objective in ("throughput", "load"):
        for title, way in (("defaults", HINTS[0]), ("the best hint", ""), (ALONE, ALONE), (STANDS, STANDS)):
            of = [row["over"].get(way or row["best hint"]) for row in rows if row["scenario"].endswith(objective)]
            ratios = [told[0] for told in of if told]
            if ratios:
                ratio, low, high = interval(np.log(ratios).tolist())
                print(f"{objective}, over {title}: {ratio:.2f} ({low:.2f} to {high:.2f}), least {min(ratios):.2f}")
    for title in ("predicted error", "rank correlation"):
        for objective in RATES:
            said = [row[title] for row in rows if row["scenario"].endswith(objective) and row[title] is not None]
            if said:
                print(f"{objective}, {title}: {np.median(said):.2f} (median of {len(said)})")
    all_kept = [k for row in rows for k in row["kept"]]
    if all_kept:
        print(f"deadlines kept: {100 * np.mean(all_kept):.0f} % of {len(all_kept)}")
    return 0


def _ratio(told: Sequence[float] | None) -> str:
    return "" if told is None else f"{told[0]:.2f} ({told[1]:.2f} to {told[2]:.2f})"


if __name__ == "__main__":
    sys.exit(main())
