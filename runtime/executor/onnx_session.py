"""An ONNX file in ONNX Runtime, with options by the names that ONNX Runtime has for them.

Options are texts: `SessionOptions`' own, such as intra_op_num_threads, numbers and enumerations by their names, and
entries of its configuration, such as session.intra_op.allow_spinning, whose names have dots.

Source: https://onnxruntime.ai/docs/api/python/api_summary.html and onnxruntime_session_options_config_keys.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from pipeline.core.errors import DeviceError, MissingPackageError
from runtime.executor.placed import PlacedInputError
from runtime.executor.placed.inputs import Results, by_place

ONNX_RUNTIME = "ONNX Runtime"
PACKAGE = "onnxruntime"
CPU_PROVIDER = "CPUExecutionProvider"
RECORDED = "session.record_ep_graph_assignment_info"
ENUMERATIONS = {"graph_optimization_level": "GraphOptimizationLevel", "execution_mode": "ExecutionMode"}
QUIET = 4  # the level from which ONNX Runtime's log is written: what is fatal


def onnxruntime() -> Any:
    """Return the package.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import onnxruntime as package
    except ImportError as error:
        raise MissingPackageError(f"Running a model by {ONNX_RUNTIME} takes", PACKAGE) from error
    return package


def session_of(source: Path, options: Mapping[str, str], providers: Sequence[str], *, profile: str = "") -> Any:
    """Return an ONNX file loaded by ONNX Runtime, on the CPU wherever the providers do not take a node.

    profile: what the file of what nodes take begins with; "" for none.

    Raises:
        MissingPackageError: onnxruntime is not installed.
        DeviceError: it has no such provider.
    """
    package = onnxruntime()
    here = package.get_available_providers()
    missing = [name for name in providers if name not in here]
    if missing:
        raise DeviceError(f"This {ONNX_RUNTIME} has no {', '.join(missing)}.", f"Here: {', '.join(here)}.")
    made = package.SessionOptions()
    made.log_severity_level = QUIET
    made.add_session_config_entry(RECORDED, "1")
    for name, value in options.items():
        if "." in name:
            made.add_session_config_entry(name, value)
        elif name in ENUMERATIONS:
            setattr(made, name, getattr(getattr(package, ENUMERATIONS[name]), value))
        else:
            setattr(made, name, int(value))
    if profile:
        made.enable_profiling, made.profile_file_prefix = True, profile
    names = dict.fromkeys((*providers, CPU_PROVIDER))
    return package.InferenceSession(str(source), made, providers=list(names))


def assigned(session: Any) -> dict[str, list[Any]]:
    """Return by provider the nodes that ONNX Runtime has given it; they have a `name` and an `op_type`."""
    nodes: dict[str, list[Any]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes.setdefault(part.ep_name, []).extend(part.get_nodes())
    return nodes


class OnnxModel:
    """An ONNX file in ONNX Runtime, in the manner of `PlacedModel`. Several threads may use it."""

    def __init__(self, source: Path, options: Mapping[str, str], providers: Sequence[str]) -> None:
        self.session = session_of(source, options, providers)
        self.inputs: list[str] = [port.name for port in self.session.get_inputs()]
        self.outputs: list[str] = [port.name for port in self.session.get_outputs()]

    def __call__(self, inputs: Any = None) -> Results:
        """Return the outputs of one inference; see `infer`."""
        return self.infer(inputs)

    def infer(self, inputs: Any = None) -> Results:
        """Return the outputs of one inference: of {name or place: array}, of a list, or of the only array.

        Raises:
            PlacedInputError: an input is missing or unknown.
        """
        given = by_place([[name] for name in self.inputs], inputs)
        missing = [name for i, name in enumerate(self.inputs) if i not in given]
        if missing:
            raise PlacedInputError(f"there is no value for the input {', '.join(missing)}")
        feed = {self.inputs[place]: np.asarray(array) for place, array in given.items()}
        return Results([[name] for name in self.outputs], self.session.run(self.outputs, feed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let the session go."""
        self.session = None
