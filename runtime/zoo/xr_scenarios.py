"""The seven usage scenarios of XRBench, with networks of the zoo in the place of its models.

Source: Kwon et al., XRBench: An Extended Reality (XR) Machine Learning Benchmark Suite for the Metaverse, MLSys 2023;
models, rates and dependencies as in the files `usage_scenarios` of the published evaluation (for VR gaming those of
its sweep of probabilities). Frames per second are requests at equal distances, a dependency with a probability is a
chain of so many calls on average, and what is late is dropped, as there.

Deliberate differences: a deadline is the time between two frames of the model itself, from when the first request of
its chain was due; it holds if 99 % of the requests keep it, where XRBench gives scores. There a frame comes with the
jitter of its sensor; here each model begins at a moment of its own within the first frame.
"""

from __future__ import annotations

from pipeline.core.scenario import LoadScenario, ModelLoad

# Task of XRBench -> network of the zoo: convolutions for images, recurrent ones for short sound and gestures.
STANDS_IN = {
    "hand tracking": "randwire",
    "eye segmentation": "nasnet-cells",
    "gaze estimation": "ensemble",
    "keyword detection": "bilstm-128",
    "speech recognition": "bert-base",
    "semantic segmentation": "inception-v3",
    "object detection": "resnet50",
    "action segmentation": "bilstm-512",
    "depth estimation": "nasnet-cells",
    "depth refinement": "resnet50",
    "plane detection": "inception-v3",
}

_EYES = (("eye segmentation", 60.0, "", 1.0), ("gaze estimation", 60.0, "eye segmentation", 1.0))
_KEYWORD = ("keyword detection", 3.0, "", 1.0)

# Scenario -> task, frames per second, the task it depends on, and how probable it then is.
_TASKS: dict[str, tuple[tuple[str, float, str, float], ...]] = {
    "social interaction A": (*_EYES, ("depth refinement", 30.0, "", 1.0), ("hand tracking", 30.0, "", 1.0)),
    "social interaction B": (*_EYES, ("action segmentation", 30.0, "", 1.0)),
    "outdoor activity A": (
        _KEYWORD,
        ("speech recognition", 3.0, "keyword detection", 0.2),
        ("semantic segmentation", 10.0, "", 1.0),
        ("object detection", 30.0, "", 1.0),
    ),
    "outdoor activity B": (
        _KEYWORD,
        ("speech recognition", 3.0, "keyword detection", 0.2),
        ("object detection", 30.0, "", 1.0),
    ),
    "AR assistant": (
        _KEYWORD,
        ("speech recognition", 3.0, "keyword detection", 0.5),
        ("semantic segmentation", 10.0, "", 1.0),
        ("depth estimation", 30.0, "", 1.0),
        ("plane detection", 15.0, "", 1.0),
        ("object detection", 10.0, "", 1.0),
    ),
    "AR gaming": (
        ("hand tracking", 45.0, "", 1.0),
        ("depth estimation", 30.0, "", 1.0),
        ("plane detection", 15.0, "", 1.0),
    ),
    "VR gaming": (*_EYES, ("hand tracking", 45.0, "", 1.0)),
}


def xr_scenarios() -> dict[str, LoadScenario]:
    """Return scenarios by name; the names of the models are XRBench's tasks, which `STANDS_IN` has networks for."""
    return {
        name: LoadScenario(
            tuple(
                ModelLoad(
                    task,
                    rate=0.0 if after else frames,
                    arrivals="periodic",
                    deadline_s=1 / frames,
                    late="drop",
                    after=after,
                    calls=calls,
                )
                for task, frames, after, calls in tasks
            )
        )
        for name, tasks in _TASKS.items()
    }
