"""What a measuring process answers when a variant is loaded and run; `worker` lists all commands."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class RunsOn(TypedDict):
    """How a compiled model really runs: on which devices, in how many sub-models, in which precisions and threads.

    int8_kernels: names of what runs in int8; None where other plug-ins than the CPU's run it, which name nothing alike.
    cached: whether it was taken from a folder of compiled models. compilations: of segments, how many were compiled.
    reported: the properties of one compiled model on one device, as its plug-in reports them.
    """

    executed_on: list[str]
    subgraphs: int
    precisions: dict[str, str]
    int8_kernels: list[str] | None
    threads: dict[str, int]
    cached: NotRequired[bool]
    compilations: NotRequired[int]
    reported: NotRequired[dict[str, str]]


class LoadAnswer(RunsOn):
    """What a loaded variant says of itself; requests: how many inferences may be in flight."""

    compile_s: float
    requests: int


class CheckedLoad(LoadAnswer):
    """The same once its outputs are compared.

    accuracy: how far they are from the reference's, an `Accuracy` as JSON. realtime: whether turns run under real-time
    scheduling.
    """

    accuracy: dict[str, Any]
    realtime: bool


class Waited(TypedDict):
    """Seconds that threads waited for a processor, and that they wanted one: waiting or running."""

    run_delay_s: float
    runnable_s: float


class RunAnswer(Waited):
    """What inferences took; samples_s: of whole batches. period_s, cpu_s: (processor) seconds per inference.

    others_s: processor seconds that other processes had meanwhile, as the system counts them, in ticks.
    """

    samples_s: list[float]
    others_s: float
    period_s: float
    cpu_s: float
