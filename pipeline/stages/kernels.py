"""The stage `kernels`: which operations the CPU runtime runs as one kernel; only if the coarsening asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.shared import payload
from pipeline.stages.coarsen import coarseners_of
from pipeline.stages.inputs import read_graph, read_model
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage
from pipeline.store.task import StepContext


@dataclass(frozen=True, slots=True)
class KernelsParams:
    """Nothing beyond the model and the hardware."""


def plan_kernels(run: RunPlan) -> PlannedStage | None:
    """Return what decides the kernels; None where no coarsener fuses."""
    if "fuse" not in coarseners_of(run.settings):
        return None
    return PlannedStage(params=KernelsParams(), inputs=("read",), measured=True)


def find_kernels(work: StepContext) -> None:
    """Write kernels.npz: the kernel of every operation."""
    from runtime.measuring.profile.fusion import cpu_kernels

    kernel = cpu_kernels(read_model(work), read_graph(work))
    payload.save_arrays(work.out / "kernels.npz", {"kernel": kernel})


KERNELS = RunStage(name="kernels", version=2, plan=plan_kernels, execute=find_kernels, seeded=False)
