"""Runs the benchmarks one after another, each in a process of its own, and writes down what they say."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from pipeline.store.store import write_json
from runtime.machines.devices import hardware_facts

SCRIPTS = (
    "help_time",
    "front_time",
    "metis_time",
    "reader_zoo",
    "simulator_rate",
    "request_rate",
    "dataflow_time",
    "anchors",
    "tiled_gain",
    "portfolio_gain",
    "memory_caps",
    "giph_slr",
    "agent_gain",
    "neural_list",
    "placeto",
    "large_graphs",
    "report_open",
    "towers",
    "fleet",
    "profiler_ratio",
    "executor",
    "false_claims",
    "deadlines",
    "calibration_error",
    "tune_time",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scripts that are asked for; return 1 if one of them fails, 0 even if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out", help="folder for one JSON per script")
    parser.add_argument("--only", action="append", choices=SCRIPTS, help="run this script alone; repeatable")
    chosen = parser.parse_args(arguments)
    machine = hardware_facts()
    failed = []
    for name in chosen.only or SCRIPTS:
        load_before = os.getloadavg()[0]
        figures, code = run_script(name)
        if code:
            failed.append(name)
            continue
        document = {"script": name, "machine": machine, "load_before": load_before, "figures": figures}
        chosen.out.mkdir(parents=True, exist_ok=True)
        write_json(chosen.out / f"{name}.json", document)
    if failed:
        print(f"error: these benchmarks failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_script(name: str) -> tuple[list[dict[str, Any]], int]:
    """Return the figures of one script, which are printed as they come, and its exit code."""
    figures: list[dict[str, Any]] = []
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            figures.append(json.loads(line))
            print(line, end="", flush=True)
    return figures, process.returncode


if __name__ == "__main__":
    sys.exit(main())
