"""The stage `read`: a model file -> its graph, the normalised model, and what its outputs are compared with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.rewriting.rewrites import Rewrites
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.shared.checks import ReferenceOrder
from pipeline.stages.host import ModelFile
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.task import StepContext

CHECKING_SHARE, LEAST_CHECKING_S = 0.1, 1.0  # of the budget, and seconds at least, for what outputs are compared with
SAMPLES_SHARE = 0.15  # of that, for further samples of kinds of inputs
MOST_CHECKED_S = 100.0  # of a budget that count for it
MENDING_SHARE = 0.5  # of the budget, for reading a model in other ways where its outputs depart
CHECKING_LIMIT = 5.0  # times that share, after which what still runs is ended


@dataclass(frozen=True, slots=True)
class ReadParams:
    """What the graph and the normalised model follow from.

    shapes: of inputs, as given. input_sha256: of the file of arrays that a user gave. dynamic_size: of open dimensions
    that nobody sized, 0 where there can be none. shape_ranges: sizes that one answer is to serve.
    """

    model_sha256: str
    shapes: tuple[str, ...]
    shape_ranges: tuple[str, ...]
    keep_dynamic: bool
    input_sha256: str
    dynamic_size: int
    decode_steps: int
    rewrites: Rewrites


def plan_read(run: RunPlan) -> PlannedStage:
    """Return what decides how the model is read; where it and its arrays lie, and the limits, do not."""
    coarsen, measure = run.settings.coarsen, run.settings.measure
    shapes = InputShapes.of(coarsen)
    open_ones = shapes.keep_dynamic or any("?" in text or ".." in text for text in shapes.given)
    params = ReadParams(
        run.model.sha256,
        shapes.given,
        shapes.ranges,
        shapes.keep_dynamic,
        shapes.data_sha256,
        measure.dynamic_size if open_ones else 0,
        measure.decode_steps,
        Rewrites.of(coarsen),
    )
    context = {"model": str(run.model.path), "input": coarsen.input, "limits": asdict(ReadLimits.of(coarsen))}
    return PlannedStage(params=params, context=context)


def read(work: StepContext) -> None:
    """Write graph.npz, shapes.json and the normalised model: shapes concrete, constants folded, names unique.

    Beside it stand checks.npz and reference.npz: what its outputs are compared with, by kind of inputs.
    """
    from pipeline.stages.repair_outputs import read_faithfully, source_of

    params, context = params_of(ReadParams, work), work.task.context
    limits = ReadLimits(**context["limits"])
    data = context["input"], params.input_sha256
    shapes = InputShapes(params.shapes, params.keep_dynamic, *data, params.dynamic_size, params.shape_ranges)
    seconds = max(LEAST_CHECKING_S, CHECKING_SHARE * min(work.deadline.left_s, MOST_CHECKED_S))
    order = ReferenceOrder(True, seconds, CHECKING_LIMIT * seconds, params.decode_steps, SAMPLES_SHARE * seconds)
    model, mending = ModelFile(Path(context["model"]), params.model_sha256), work.deadline.share(MENDING_SHARE)
    locate_s = CHECKING_LIMIT * seconds
    source = source_of(model, limits, locate_s=locate_s, deadline=mending, rewrites=params.rewrites)
    read_faithfully(source, work.out, shapes, order)


READ = RunStage(
    name="read", version=13, plan=plan_read, execute=read, seeded=False, packages=("openvino", "onnxruntime", "onnx")
)
