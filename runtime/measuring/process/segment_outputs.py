"""What a model in segments gives, loaded from the folder that it was written to.

segments {folder, checks, paths} -> see `write_segment_outputs`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import ModelError
from pipeline.shared.checks import OUTPUTS, load_by_kind, save_by_kind
from runtime.executor import placed
from runtime.measuring.process.executable import SegmentsExecutable


def write_segment_outputs(command: Mapping[str, Any]) -> dict[str, Any]:
    """Load a folder that `placewright split` wrote, and write the outputs of an inference of each kind of inputs.

    checks: the file of inputs by kind. paths: {kind: file}, which gets the outputs under the kind `OUTPUTS`. A model
    with state begins a sequence. The answer has `precisions`, by device.
    """
    with placed.load(command["folder"]) as model:
        executable = SegmentsExecutable.of(model, 0, 0.0)
        checks = load_by_kind(Path(command["checks"]))
        for kind, path in command["paths"].items():
            executable.load([_array_for(port.names, checks[kind]) for port in model.manifest.inputs])
            if executable.stateful:
                executable.reset()
            executable.infer()
            found = {f"output_{i}": array for i, array in enumerate(executable.outputs())}
            save_by_kind(Path(path), {OUTPUTS: found})
        return {"precisions": executable.describe()["precisions"]}


def _array_for(names: tuple[str, ...], arrays: Mapping[str, Any]) -> Any:
    """Return the array of an input that goes by one of several names.

    Raises:
        ModelError: there is none.
    """
    known = [name for name in names if name in arrays]
    if not known:
        raise ModelError(f"There is no array for the input {', '.join(names)}; there are {', '.join(arrays)}.")
    return arrays[known[0]]
