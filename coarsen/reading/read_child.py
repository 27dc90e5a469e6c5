"""The process that reads one model: JSON in on standard input, JSON out on standard output.

in   {"path", "out", "source", "file_bytes", "limits", "shapes", "rewrites", "save", "dynamic_cuts"}
out  {"said": warnings} and perhaps "error": {"cause", "remedy", "usage"} or "os_error": [errno, text, file]

Into the folder `out` go graph.npz, shapes.json, with rewrites rewritten.json, and, with `save`, model.xml and
model.bin, its forms and forms.json, inputs.npz if the shapes name a file of arrays, and sequence.json if a sequence of
a model with state is a single inference; see `read_apart`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.core.errors import PlacewrightError, UsageError
from pipeline.core.process import die_first, die_with_parent


class _Said(logging.Handler):
    """Keeps what is logged, for the parent to log again."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())


def answer(command: dict[str, Any]) -> dict[str, Any]:
    """Read the model, write what was asked for, and return what there is to say about it."""
    said = _Said()
    logging.getLogger().addHandler(said)
    fault: dict[str, Any] = {}
    try:
        _read(command)
    except PlacewrightError as error:
        usage = isinstance(error, UsageError)
        fault = {"error": {"cause": error.cause, "remedy": error.remedy, "usage": usage}}
    except OSError as error:
        fault = {"os_error": [error.errno, error.strerror, error.filename]}
    finally:
        logging.getLogger().removeHandler(said)
    return {"said": said.lines, **fault}


def _read(command: dict[str, Any]) -> None:
    from coarsen.reading import read
    from coarsen.reading.forms import write_forms
    from coarsen.reading.given_inputs import save_inputs
    from coarsen.reading.growth import ReadLimits
    from coarsen.reading.rewrites import REWRITTEN, Rewrites
    from coarsen.reading.rewriting import rewrite
    from coarsen.reading.shapes import InputShapes
    from pipeline.shared.model_inputs import SEQUENCE
    from pipeline.shared.payload import save_graph

    path, out = Path(command["path"]), Path(command["out"])
    limits = ReadLimits(**command["limits"])
    shapes = InputShapes(**command["shapes"])
    model, chosen, inputs = read.read_with_inputs(path, shapes, file_bytes=command["file_bytes"], limits=limits)
    asked = Rewrites(**command["rewrites"])
    if asked.splits:
        rewritten = rewrite(model, asked)
        (out / REWRITTEN).write_text(json.dumps([asdict(row) for row in rewritten]), encoding="utf-8")
    if command["save"]:
        read.save_model(model, out / "model.xml")
        how = {"dynamic_cuts": command["dynamic_cuts"], "weights_int8": asked.weights_int8}
        write_forms(model, out, source=command["source"], **how)
        if inputs:
            save_inputs(inputs, out)
        if why := read.sequence_end(model, shapes):
            (out / SEQUENCE).write_text(json.dumps({"inferences": 1, "why": why}), encoding="utf-8")
    save_graph(out / "graph.npz", read.to_graph(model, source=command["source"], dynamic_cuts=command["dynamic_cuts"]))
    (out / "shapes.json").write_text(json.dumps([asdict(shape) for shape in chosen]), encoding="utf-8")


def _say_what_runs() -> None:
    """Write to standard error what is about to run, for whoever reads the last words of this process."""
    from coarsen.reading import trial

    trial.logger.setLevel(logging.INFO)
    trial.logger.addHandler(logging.StreamHandler())


def main() -> None:
    """Answer the command on standard input."""
    die_with_parent()
    die_first()
    os.environ["CI"] = "true"  # keeps `import openvino` from reporting home
    _say_what_runs()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not mix with the answer
    json.dump(answer(json.load(sys.stdin)), answers)
    answers.flush()


if __name__ == "__main__":
    main()
