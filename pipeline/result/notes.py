"""What a result says of devices left out, of measurements that were disturbed, of states, and of missing packages."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.shared import payload
from pipeline.shared.checks import FACTS, ReferenceFacts
from pipeline.shared.model_inputs import GIVEN_KIND, SEQUENCE
from pipeline.stages.choices import HALVES
from pipeline.store.store import Entry
from pipeline.store.task import Outcome, list_disturbances


def device_notes(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return sentences on devices that a run left out, on outputs that are NaN or empty, and on what is measured again.

    outcomes: by stage, `profile` among them.
    """
    from runtime.measuring.profile.left_out import left_out_notes

    profile = payload.read_json(outcomes["profile"].entry.path("profile.json"))
    params, left_out = outcomes["profile"].task.params, profile["left_out"]
    replaced = "whole" in params and {d["name"] for d in params["devices"]} <= left_out.keys()
    sentences = left_out_notes(left_out, [d["name"] for d in params["whole"]] if replaced else ())
    shares = [f"{100 * share:.3g} % of {name} is NaN" for name, share in profile["nan"].items()]
    shares += [f"{name} has no entries" for name in profile["empty"]]
    if shares:
        sentences.append(
            f"Also in f32 on the CPU, {', '.join(shares)}: such outputs cannot show whether a device is right. Pass "
            "representative inputs with --input."
        )
    if profile["slowdown"] is None:
        sentences.append(
            "The mutual slow-down of devices that run at the same time was not measured, because other processes kept "
            "the processors busy; predictions assume none."
        )
    disturbed = list(
        dict.fromkeys(words for outcome in outcomes.values() for words in list_disturbances(outcome.entry))
    )
    if disturbed:
        sentences.append(f"Measurements were disturbed; the next run repeats them: {'; '.join(disturbed)}.")
    return sentences


def placing_notes(place: Outcome, devices: int) -> list[str]:
    """Return a sentence on splits over halves of one CPU, which are not searched, or come after all settings."""
    if place.task.params["settings_first"] != HALVES:
        return []
    if devices == 1:
        return [
            "The CPU is the only device, so nothing was placed; its properties were tried. Pass --devices or --runtime "
            "auto to search placements on parts of it."
        ]
    searches = payload.read_json(place.entry.path("searches.json"))
    best = min((s["value_s"] for s in searches if s["value_s"] is not None), default=None)
    least = max((s["lower_bound_s"] for s in searches), default=0.0)
    if best is None:
        return []
    bound = f" (lower bound {least * 1e3:.2f} ms)" if least else ""
    return [
        "The devices are halves of one CPU, which HETERO runs one after another; the best placement is predicted to "
        f"take {best * 1e3:.2f} ms{bound}. Device properties were therefore tried before splits. Pass --devices or "
        "--runtime auto to search further."
    ]


def sequence_notes(read: Entry) -> list[str]:
    """Return a sentence on a model with state of which every inference begins a sequence; read: its artifact."""
    if SEQUENCE not in read.files:
        return []
    why = payload.read_json(read.path(SEQUENCE))["why"]
    return [f"Every inference starts from the initial state, because a second one with these input sizes fails: {why}."]


def reference_notes(read: Entry) -> list[str]:
    """Return sentences on what outputs are compared with, and on remedies where those of the usual reading are wrong.

    read: the artifact of the stage.
    """
    from runtime.measuring.outputs.outputs import SHOWN

    if FACTS not in read.files:
        return []
    facts = ReferenceFacts(**payload.read_json(read.path(FACTS)))
    sentences = [why if why.endswith(".") else f"{why}." for why in facts.why_not]
    if facts.executor:
        sentences.append(
            f"Outputs are compared with the source in {facts.executor}, on {', '.join(facts.kinds)}"
            + (f", in low precisions also on {facts.samples} more samples of these" if facts.samples else "")
            + f" ({facts.seconds:.1f} s)."
        )
    else:
        sentences.append("The source was not run: outputs are compared with the measured model on the CPU in f32.")
    if facts.unstable:
        given = GIVEN_KIND in facts.kinds
        whose = "your" if given else "generated"
        sentences.append(
            f"The reference is unstable for {', '.join(facts.unstable)} on {whose} inputs: in {facts.executor}, too, "
            "a change of the inputs by one part in 100,000 changes it by more than 10 %."
            + ("" if given else " Pass representative inputs with --input.")
        )
    if facts.low and GIVEN_KIND not in facts.kinds:
        sentences.append(
            f"No generated input raises a score of {', '.join(facts.low)} above {SHOWN:g}, so how right low precisions "
            "are where it finds something is not known. Pass inputs with --input."
        )
    if facts.way:
        sentences.append(
            f"Read as usual, the model differs from its source ({facts.departed}, by {facts.executor}), a fault of the "
            f"runtime. It was read {facts.way}, which gives the right outputs and takes {facts.cost:.2f} times as long."
        )
    return sentences


def partition_notes(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return sentences on stages that were asked for METIS where pymetis is not installed."""
    others = {
        "coarsen": "coarsen.heavy_edge was used instead",
        "group": "the operations were partitioned along an order instead",
    }
    return [
        f"pymetis, which {stage}.metis needs, is not installed: {instead}."
        for stage, instead in others.items()
        if stage in outcomes
        and "pymetis" in outcomes[stage].task.version
        and "metis" in outcomes[stage].task.name.split("+")
    ]
