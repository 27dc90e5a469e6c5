"""An independent judge of `placewright tune`: is its answer right, and is it fast, measured without placewright.

    python -m benchmarks.judge --models LIST.json --budget 30s --out DIR [--starts 5] [--only NAME] [--tune-only]
                               [--runtimes]

Each model of the list is tuned, or its finished run in DIR is taken. Then its answer, as a user would deploy it, takes
turns with the plug-in's default, f32, one thread, the latency hint and ONNX Runtime, each in a fresh process that has
openvino, onnxruntime and numpy alone, in an order that is reversed from round to round; every start begins with new
processes. Outputs of the answer are compared with ONNX Runtime's on the source, by name, on several kinds of inputs.
One line of JSON per model is added to DIR/judged.jsonl; models that are there already are not judged again.
With --tune-only models are tuned and the starts that their runs compared are counted; nothing else is judged. With
`--starts 0` outputs alone are judged, and what a right answer was tuned in is removed. With --runtimes ONNX Runtime may
be the answer of ONNX models, and no others are judged, in DIR/runtimes.

LIST.json is a list of {"name", "path", "sizes": {input: shape}, "vocabulary": N, "values": {input: number}, "float":
path, "options": [...]}; paths are relative to it. `values` are the only ones that inputs take, as a sampling rate does.
`float` is the model that a quantised one was made of; `options` are more of `tune`'s.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy import stats

from benchmarks.outputs import MOVES, VOCABULARY, Apart, Arrays, apart, quiet_sizes
from pipeline.system.machine_lock import measuring_alone

ROOT = Path(__file__).parent.parent
PLACEWRIGHT = Path(sysconfig.get_path("scripts")) / "placewright"
JUDGED = "judged.jsonl"
RUNTIMES = "runtimes"  # the folder of runs that may be won by ONNX Runtime
EITHER = ("--runtimes", "openvino,onnxruntime")
STARTS, ROUNDS, TURN_S = 5, 4, 0.15
ANSWER, DEFAULT, ORT, ORT_TWO = "answer", "default", "onnxruntime", "onnxruntime 2 threads"
USUAL: Mapping[str, Mapping[str, str]] = {
    DEFAULT: {},
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "one thread": {"INFERENCE_NUM_THREADS": "1"},
    "latency hint": {"PERFORMANCE_HINT": "LATENCY"},
}
EXACT, LOWERED = 1e-3, 5e-2  # what tune allows in f32, and in a lower precision
OWN_WIDTHS = 4.0  # how often the reference's own width an answer may be away
COLUMNS = ("model", "exit", "answer", "over default", "over best usual", "over ONNX Runtime", "apart", "width",
           "stated", "allowed", "wrong", "claimed, confirmed", "starts of the two best")  # fmt: skip
AS_NEAR = 1.1  # a quantised model rounded otherwise is no further from the float model than this, as a ratio
ENOUGH = 3  # starts, of the default and of two settings
SLOWER, BEATEN = 0.97, 1 / 1.1  # of another way's speed: worse by more than 3 %; the other is 10 % faster


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the list, its paths made whole."""

    name: str
    path: Path
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    vocabulary: int = VOCABULARY
    values: Mapping[str, float] = field(default_factory=dict)
    float: Path | None = None
    options: Sequence[str] = ()

    @property
    def onnx(self) -> bool:
        """Return whether ONNX Runtime reads it."""
        return self.path.suffix == ".onnx"


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast the answer is as something else, with a 95 % interval over starts."""

    ratio: float
    low: float
    high: float


@dataclass(slots=True)
class Judgement:
    """What the judge found of one model.

    exit_code, verdict: of the run. answer: name and target. runtime: what runs it. seconds: of tuning. over: other way
    -> how many times as fast the answer is. milliseconds: way -> median of the starts. best: the fastest of the usual
    settings whose outputs are right, "" if none is. same: the usual setting that the answer is, "" if none. apart: kind
    of inputs -> how far the answer's outputs lie from the reference's. width: how far these lie from themselves,
    without rewriting and with weights and inputs moved by a few units in the last place. stated: the difference that
    the run states; allowed: the largest that its precision allows. usual_apart: how far the outputs of each usual
    setting lie; refused: why one does not run. float_apart: how far the answer and the reference lie from the float
    model. wrong: an answer was handed over whose outputs are neither within what is allowed or the run states, nor
    within the width, nor as near to the float model as the reference's. claimed: what the run says of the best single
    device; confirmed: whether the answer is faster for certain than the default in the precision that the run compares
    with, null where nothing was claimed. failed: why it could not be judged. load: of the machine when it had been
    judged. compared: starts of the default, and of the two best of what was searched, in the run's final.
    """

    model: str
    exit_code: int
    verdict: str = ""
    answer: str = ""
    runtime: str = ""
    seconds: float = 0.0
    over: dict[str, Ratio] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)
    best: str = ""
    same: str = ""
    apart: dict[str, Apart] = field(default_factory=dict)
    width: float = 0.0
    stated: float | None = None
    allowed: float | None = None
    usual_apart: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    float_apart: dict[str, float] = field(default_factory=dict)
    wrong: bool = False
    claimed: float | None = None
    confirmed: bool | None = None
    failed: str = ""
    load: float = 0.0
    compared: list[int] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """Return the largest difference of all kinds of inputs."""
        return max((gap.worst for gap in self.apart.values()), default=0.0)


class Child:
    """A process that runs a model in one way and answers commands."""

    def __init__(self, model: Model, path: Path, way: Mapping[str, Any], told: IO[str]) -> None:
        """Start it; `ready` waits for it. told: a file for what it says of errors; a pipe nobody reads would fill."""
        self.told = told
        command = [sys.executable, "-m", "benchmarks.judge_child"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": told}
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        drawn = {"sizes": model.sizes, "vocabulary": model.vocabulary, "values": model.values}
        self._send({"model": str(path), "way": way, **drawn})

    def _send(self, document: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()

    def ready(self) -> Any:
        """Return its next answer.

        Raises:
            ChildFailedError: it has ended instead.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.told.seek(0)
            raise ChildFailedError(" ".join(self.told.read().split())[-300:])
        return json.loads(line)

    def ask(self, **command: Any) -> Any:
        """Return the answer to a command."""
        self._send(command)
        return self.ready()

    def end(self) -> None:
        """End it, and wait for that."""
        self.process.kill()
        self.process.communicate()


class ChildFailedError(RuntimeError):
    """A measuring process ended with an error, in its words."""


@contextmanager
def started(model: Model, path: Path, way: Mapping[str, Any]) -> Iterator[Child]:
    """Give a process that is ready, and end it.

    Raises:
        ChildFailedError: the model cannot be run in this way.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as told:
        child = Child(model, path, way, told)
        try:
            child.ready()
            yield child
        finally:
            child.end()


def read_list(file: Path) -> list[Model]:
    """Return the models of a list."""
    folder = file.parent
    found = []
    for entry in json.loads(file.read_text(encoding="utf-8")):
        paths = {key: folder / entry[key] for key in ("path", "float") if entry.get(key)}
        found.append(Model(**{**entry, **paths}))
    return found


def tuned(model: Model, folder: Path, budget: str) -> tuple[int, float]:
    """Return the exit code of tuning a model, and its seconds; a finished run in the folder is taken as it is."""
    ended = folder / "ended.json"
    if not ended.is_file():
        shapes = [f"--shape={name}={'x'.join(map(str, size)) or 'scalar'}" for name, size in model.sizes.items()]
        command: list[str | Path] = [PLACEWRIGHT, "tune", model.path, "--budget", budget, "--out", folder / "run",
                   "--store", folder / "store", *shapes, *model.options]  # fmt: skip
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        spent_s = time.perf_counter() - begun
        (folder / "tune.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        ended.write_text(json.dumps({"exit_code": done.returncode, "seconds": spent_s}), encoding="utf-8")
    document = json.loads(ended.read_text(encoding="utf-8"))
    return document["exit_code"], document["seconds"]


def outputs_of(model: Model, path: Path, way: Mapping[str, Any], folder: Path) -> dict[str, Arrays]:
    """Return the outputs of a model in one way: kind of inputs -> name -> array."""
    file = folder / "outputs.npz"
    with started(model, path, way) as child:
        kinds = child.ask(do="outputs", to=str(file))["kinds"]
    found: dict[str, Arrays] = {kind: {} for kind in kinds}
    with np.load(file) as arrays:
        for key in arrays.files:
            kind, _, name = key.partition("|")
            found[kind][name.replace("|", "/")] = arrays[key]
    file.unlink()
    return found


def compare_outputs(
    model: Model, run: Mapping[str, Any], folder: Path, usual: Mapping[str, Mapping[str, str]], judged: Judgement
) -> None:
    """Fill in how far outputs lie apart, those of the usual settings too, and whether the answer is wrong."""
    exact = {"by": "openvino", "properties": USUAL["f32"], "concrete": False}
    ort = {"by": "onnxruntime", "threads": 1}
    wanted = outputs_of(model, model.path, ort if model.onnx else exact, folder)
    quiet = quiet_sizes(wanted.values())

    def gaps(found: Mapping[str, Arrays]) -> dict[str, Apart]:
        return {kind: apart(found[kind], wanted[kind], quiet) for kind in wanted}

    def worst(found: Mapping[str, Arrays]) -> float:
        return max(gap.worst for gap in gaps(found).values())

    answer = outputs_of(model, model.path, {"by": "run", "folder": str(folder / "run")}, folder)
    judged.apart = gaps(answer)
    for name, how in usual.items():
        try:
            found = outputs_of(model, model.path, {"by": "openvino", "properties": how}, folder)
        except ChildFailedError as error:
            judged.refused[name] = str(error)
        else:
            judged.usual_apart[name] = worst(found)
    if model.onnx:
        others: list[dict[str, Any]] = [{"optimised": False}, *({"moved": seed} for seed in range(MOVES))]
        judged.width = max(worst(outputs_of(model, model.path, ort | other, folder)) for other in others)
    if model.float:
        plain = outputs_of(model, model.float, ort, folder)
        for name, found in ((ANSWER, answer), ("reference", wanted)):
            judged.float_apart[name] = max(apart(found[kind], plain[kind], quiet).worst for kind in plain)
    best = next(c for c in run["candidates"] if c["name"] == run["best"])
    judged.stated = best["difference"]
    judged.allowed = EXACT if best["precision"] == "f32" else LOWERED
    near = judged.float_apart and judged.float_apart[ANSWER] <= AS_NEAR * judged.float_apart["reference"]
    judged.wrong = judged.worst > max(judged.allowed, judged.stated or 0.0, OWN_WIDTHS * judged.width) and not near


def compare_speeds(model: Model, folder: Path, starts: int, judged: Judgement) -> None:
    """Fill in how fast the answer is beside the usual settings and ONNX Runtime."""
    ways: dict[str, Mapping[str, Any]] = {ANSWER: {"by": "run", "folder": str(folder / "run")}}
    ways |= {name: {"by": "openvino", "properties": USUAL[name]} for name in judged.usual_apart}
    if model.onnx:
        ways |= {ORT: {"by": "onnxruntime", "threads": 0}, ORT_TWO: {"by": "onnxruntime", "threads": 2}}
    logs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(starts):
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        for name, value in one_start(model, {name: ways[name] for name in order}).items():
            logs[name].append(value)
    judged.milliseconds = {name: 1e3 * math.exp(float(np.median(values))) for name, values in logs.items()}
    judged.over = {name: ratio_of(logs[name], logs[ANSWER]) for name in ways if name != ANSWER}
    limit = max(LOWERED, OWN_WIDTHS * judged.width)
    right = [name for name, gap in judged.usual_apart.items() if gap <= limit]
    judged.best = min(right, key=lambda name: judged.over[name].ratio, default="")


def one_start(model: Model, ways: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the logarithm of the seconds of every way: the mean of its turns' medians, in fresh processes."""
    with ExitStack() as stack:
        children = {name: stack.enter_context(started(model, model.path, way)) for name, way in ways.items()}
        turns: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS):
            for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
                turns[name].append(math.log(children[name].ask(do="turn", seconds=TURN_S)["median_s"]))
    return {name: float(np.mean(values)) for name, values in turns.items()}


def ratio_of(other: Sequence[float], answer: Sequence[float]) -> Ratio:
    """Return the ratio of seconds of pairs of logarithms, one pair per start, with its 95 % interval.

    >>> ratio_of([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    Ratio(ratio=1.0, low=1.0, high=1.0)
    """
    gaps = np.subtract(other, answer)
    mean = float(gaps.mean())
    wide = 0.0 if len(gaps) < 2 else float(stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5)
    return Ratio(*(round(math.exp(value), 4) for value in (mean, mean - wide, mean + wide)))


def compared_starts(run: Mapping[str, Any]) -> list[int]:
    """Return how many starts of the final the default and the two best of what was searched had beside the control.

    The two are those with the most starts, since who falls behind leaves. run: its result.json.
    """
    contest = run.get("contest")
    if contest is None:
        return []
    known = {c["name"]: len(c["log_ratios"]) for c in run["candidates"]}
    searched = sorted((known[c["name"]] for c in run["candidates"] if not c["baseline"]), reverse=True)
    alike = contest["default"] in ("", contest["control"])
    return [max(known.values(), default=0) if alike else known[contest["default"]], *searched[:2]]


def usual_setting_of(placement: Mapping[str, Any]) -> str:
    """Return the usual setting that a placement is, "" if it is none."""
    every = [placement["properties"], *(device["properties"] for device in placement["devices"].values())]
    asked = {key: value for each in every for key, value in each.items()}
    plain = placement["runtime"] == "openvino" and placement["target"] == "CPU" and not placement.get("rewrite")
    return next((name for name, usual in USUAL.items() if plain and asked == usual), "")


def baseline_of(run: Mapping[str, Any]) -> str:
    """Return what a run's claim is over: the default, in f32 where the run found that its own precision is wrong."""
    contest = run["contest"]
    known = {c["name"]: c["precision"] for c in run["candidates"]}
    return "f32" if known[contest["default"] or contest["control"]] == "f32" else DEFAULT


def judge(model: Model, out: Path, budget: str, starts: int, *, tune_only: bool = False) -> Judgement:
    """Return what the judge finds of one model; tune_only: of its run alone."""
    folder = out / model.name
    folder.mkdir(parents=True, exist_ok=True)
    code, spent_s = tuned(model, folder, budget)
    judged = Judgement(model.name, code, seconds=round(spent_s, 1))
    if code:
        judged.verdict = (folder / "tune.log").read_text(encoding="utf-8").strip()[-300:]
        return judged
    run = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    placement = json.loads((folder / "run" / "placement.json").read_text(encoding="utf-8"))
    judged.verdict, judged.answer = run["verdict"], f"{run['best']} on {placement['target']}"
    judged.runtime, judged.same = placement["runtime"], usual_setting_of(placement)
    gain = run.get("speedup_over_best_single")
    judged.claimed = gain["ratio"] if gain and gain["low"] > 1 else None
    judged.compared = compared_starts(run)
    if tune_only:
        return judged
    try:
        with measuring_alone(print):
            compare_outputs(model, run, folder, USUAL if starts else {}, judged)
            if starts:
                compare_speeds(model, folder, starts, judged)
    except ChildFailedError as error:
        judged.failed = str(error)
    judged.load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0
    if judged.claimed and judged.over:
        judged.confirmed = judged.over[baseline_of(run)].low > 1
    if not (starts or judged.wrong or judged.failed):
        shutil.rmtree(folder)
    return judged


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all models, and the counts that the promises are about."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|--:|---|" + "--:|" * 7 + "---|---|--:|"]
    for row in rows:
        over = {name: f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for name, r in row["over"].items()}
        gaps = [gap["worst"] for gap in row["apart"].values()]
        cells = [
            row["model"],
            row["exit_code"],
            row["failed"][:60] or row["answer"] or row["verdict"][:60],
            over.get(DEFAULT, ""),
            f"{over[row['best']]} {row['best']}" if row["best"] else "",
            over.get(ORT, ""),
            f"{max(gaps):.2g}" if gaps else "",
            f"{row['width']:.1g}",
            *("" if row[key] is None else f"{row[key]:.2g}" for key in ("stated", "allowed")),
            "WRONG" if row["wrong"] else "",
            "" if row["claimed"] is None else f"{row['claimed']:.2f}, {row['confirmed']}",
            ", ".join(map(str, row.get("compared", [])[1:])),
        ]
        lines.append("| " + " | ".join(str(cell).replace("\n", " ").replace("|", "/") for cell in cells) + " |")
    return "\n".join([*lines, "", *counts(rows)])


def counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in lines how many models keep what is promised."""
    timed = [row for row in rows if row["over"]]
    slower = [named(row, row["best"]) for row in timed if row["best"] and row["over"][row["best"]]["ratio"] < SLOWER]
    run_by_ort = [row["model"] for row in rows if row.get("runtime") == "onnxruntime"]
    ort = [named(row, ORT) for row in timed if ORT in row["over"] and row["over"][ORT]["ratio"] < BEATEN]
    unconfirmed = [row["model"] for row in rows if row["confirmed"] is False]
    wrong = [row["model"] for row in rows if row["wrong"]]
    refused = [row["model"] for row in rows if row["exit_code"] == 6]
    compared = [row["model"] for row in rows if sum(n >= ENOUGH for n in row.get("compared", [])) == ENOUGH]
    other = [row["model"] for row in rows if row["exit_code"] not in (0, 6) or row["failed"]]
    right = [row["model"] for row in rows if row["exit_code"] == 0 and not row["failed"] and not row["wrong"]]
    told = {
        "wrong answers handed over": wrong,
        "ended with exit 6": refused,
        "other ends, or not judged": other,
        "worse than the best usual setting by more than 3 %": slower,
        "answers that ONNX Runtime's default is 10 % faster than": ort,
        "answers run by ONNX Runtime": run_by_ort,
        "claims not confirmed": unconfirmed,
        "compared the default and two settings with three starts": compared,
    }
    each = [f"{what}: {len(names)} of {len(rows)} {', '.join(names)}".rstrip() for what, names in told.items()]
    return [f"right answers handed over: {len(right)} of {len(rows)}", *each]


def named(row: Mapping[str, Any], way: str) -> str:
    """Return a model's name, marked where the answer is this way itself, or where the whole interval is below 1."""
    if row.get("same") == way:
        return f"{row['model']} (the same setting)"
    return f"{row['model']}{' (for certain)' if row['over'][way]['high'] < 1 else ''}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge the models of a list, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge", description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="LIST.json")
    parser.add_argument("--budget", default="30s")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and of judged.jsonl")
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--only", action="append", help="name of one model; repeatable")
    parser.add_argument("--tune-only", action="store_true", help="count the starts that the runs compared, no more")
    parser.add_argument("--runtimes", action="store_true", help=f"tune with {' '.join(EITHER)}, in OUT/{RUNTIMES}")
    chosen = parser.parse_args(arguments)
    models, out = read_list(chosen.models.resolve()), chosen.out.resolve()
    if chosen.runtimes:
        models = [replace(model, options=(*model.options, *EITHER)) for model in models if model.onnx]
        out /= RUNTIMES
    out.mkdir(parents=True, exist_ok=True)
    journal = out / JUDGED
    done = [json.loads(line) for line in journal.read_text().splitlines()] if journal.is_file() else []
    for model in models:
        if (chosen.only and model.name not in chosen.only) or any(row["model"] == model.name for row in done):
            continue
        done.append(asdict(judge(model, out, chosen.budget, chosen.starts, tune_only=chosen.tune_only)))
        if chosen.tune_only:
            continue
        with journal.open("a", encoding="utf-8") as written:
            written.write(json.dumps(done[-1]) + "\n")
        print(table(done[-1:]), flush=True)
    print(table(done))


if __name__ == "__main__":
    main()
