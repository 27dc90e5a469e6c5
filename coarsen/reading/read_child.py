"""The process that reads one model: JSON in on standard input, JSON out on standard output.

in   {"departing": {"folder", "source", "kind", "output", "seconds"}}, answered by {"said", "name"}, see `departing`; or
     {"results": a `ResultsOrder`}, answered by {"said", "executor", "why_not"}, see `source_results`; or
     {"path", "out", "source", "file_bytes", "limits", "shapes", "rewrites", "save", "dynamic_cuts", "way", "reference",
     "tries": a file of what is known of sizes, and is written on}
out  {"said": warnings} and perhaps "error": {"cause", "remedy", "usage"} or "os_error": [errno, text, file]

Into the folder `out` go graph.npz, shapes.json, with rewrites rewritten.json, and, with `save`, model.xml and
model.bin, its forms and forms.json, inputs.npz if the shapes name a file of arrays, sizes.json and the arrays of ranges
of sizes, and sequence.json if a sequence of a model with state is a single inference; see `read_apart`. With a
`ReferenceOrder` it runs the model, and the source, once it has answered.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.errors import PlacewrightError, UsageError
from pipeline.system.process import die_first, die_with_parent

Afterwards = Callable[[], None]


class _Said(logging.Handler):
    """Keeps what is logged, for the parent to log again."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())


def answer_command(command: dict[str, Any]) -> tuple[dict[str, Any], Afterwards]:
    """Read the model, write what was asked for, and return what there is to say about it, and what follows."""
    said = _Said()
    logging.getLogger().addHandler(said)
    fault: dict[str, Any] = {}
    afterwards: Afterwards = _do_nothing
    told: dict[str, Any] = {}
    try:
        if "departing" in command:
            asked = command["departing"]
            from coarsen.reading.reference.first_departure import first_departure

            folder, source = Path(asked["folder"]), Path(asked["source"])
            told = {"name": first_departure(folder, source, asked["kind"], asked["output"], asked["seconds"])}
        elif "results" in command:
            from coarsen.reading.model.results_order import ResultsOrder
            from coarsen.reading.reference.source_results import write_source_results

            told = write_source_results(ResultsOrder(**command["results"]))
        else:
            afterwards = _read_model(command)
    except PlacewrightError as error:
        usage = isinstance(error, UsageError)
        fault = {"error": {"cause": error.cause, "remedy": error.remedy, "usage": usage}}
    except OSError as error:
        fault = {"os_error": [error.errno, error.strerror, error.filename]}
    finally:
        logging.getLogger().removeHandler(said)
    return {"said": said.lines, **told, **fault}, afterwards


def _do_nothing() -> None:
    """Do nothing."""


def _read_model(command: dict[str, Any]) -> Afterwards:
    """Read the model and write what was asked for; return what is to be done once that is said."""
    from coarsen.reading.model import read
    from coarsen.reading.model.constant_growth import ReadLimits
    from coarsen.reading.model.reading_options import ARITHMETIC, GUARDED, UNIT_BIAS, Way, expose_result
    from coarsen.reading.model.size_arrays import save_size_arrays
    from coarsen.reading.model.trial_log import Tries
    from coarsen.reading.reference.reference import CheckInputs, write_outputs
    from coarsen.reading.rewriting.empty_ranges import guard_empty_ranges
    from coarsen.reading.rewriting.forms import write_forms
    from coarsen.reading.rewriting.local_responses import take_unit_biases
    from coarsen.reading.rewriting.quantisers import spell_out_quantisation
    from coarsen.reading.rewriting.rewrites import REWRITTEN, Rewrites
    from coarsen.reading.rewriting.rewriting import rewrite_model
    from coarsen.reading.sizes.given_inputs import save_inputs
    from coarsen.reading.sizes.shapes import InputShapes
    from pipeline.shared.checks import ReferenceOrder
    from pipeline.shared.model_inputs import SEQUENCE
    from pipeline.shared.payload import save_graph

    path, out = Path(command["path"]), Path(command["out"])
    limits = ReadLimits(**command["limits"])
    shapes = InputShapes(**command["shapes"])
    way, tries = Way(**command["way"]), Tries(Path(command["tries"]))
    preparations = {ARITHMETIC: spell_out_quantisation, GUARDED: guard_empty_ranges, UNIT_BIAS: take_unit_biases}
    prepared: dict[str, Any] = {"prepare": preparations[way.prepared]} if way.prepared else {}
    found, inputs = read.read_with_inputs(
        path, shapes, file_bytes=command["file_bytes"], limits=limits, tries=tries, fold=way.fold, **prepared
    )
    model, request = found.model, found.request
    if way.exposed:
        request = None  # it ran another model
        expose_result(model, way.exposed)
    asked = Rewrites(**command["rewrites"])
    if asked.splits:
        request = None
        rewritten = rewrite_model(model, asked)
        (out / REWRITTEN).write_text(json.dumps([asdict(row) for row in rewritten]), encoding="utf-8")
    if command["save"]:
        read.save_model(model, out / "model.xml")
        read.check_saved(out / "model.xml", path)
        how = {"dynamic_cuts": command["dynamic_cuts"], "weights_int8": asked.weights_int8}
        write_forms(model, out, source=command["source"], **how)
        if inputs:
            save_inputs(inputs, out)
        if shapes.ranges:
            save_size_arrays(model, shapes.ranges, out, tries)
        if why := read.sequence_end(model, shapes):
            (out / SEQUENCE).write_text(json.dumps({"inferences": 1, "why": why}), encoding="utf-8")
    graph = read.to_graph(model, source=command["source"], dynamic_cuts=command["dynamic_cuts"])
    save_graph(out / "graph.npz", graph)
    (out / "shapes.json").write_text(json.dumps([asdict(shape) for shape in found.chosen]), encoding="utf-8")
    if command["reference"] is None:
        return _do_nothing
    order = ReferenceOrder(**command["reference"])
    given = CheckInputs(inputs, max(1, shapes.dynamic_size))
    return partial(write_outputs, model, path, out, order, given, flops=float(graph.flops.sum()), request=request)


def main() -> None:
    """Answer the command on standard input."""
    die_with_parent()
    die_first()
    os.environ["CI"] = "true"  # keeps `import openvino` from reporting home
    # Write to standard error what is about to run, for whoever reads the last words of this process
    from coarsen.reading.model import size_trial

    size_trial.logger.setLevel(logging.INFO)
    size_trial.logger.addHandler(logging.StreamHandler())
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not mix with the answer
    said, afterwards = answer_command(json.load(sys.stdin))
    json.dump(said, answers)
    answers.close()
    afterwards()


if __name__ == "__main__":
    main()
