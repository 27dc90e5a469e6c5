"""Which placements go on to be measured, what they are called, and whether any of them ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired

import numpy as np

from pipeline.core.errors import MeasurementError, ModelError, OutputMismatchError
from pipeline.core.placement import PlacementDocument
from pipeline.core.stages import Candidate
from pipeline.placing.near import EARLIER
from pipeline.placing.records import MeasuredRow
from pipeline.shared.payload import FailureDocument

CALIBRATION = "calibration"  # stands for the placer where a placement is drawn, not searched


class FinalistRow(PlacementDocument):
    """A placement that may be measured; rank: among its placer's, from 0."""

    placer: str
    rank: int
    found_by: NotRequired[str]
    measured: NotRequired[bool]
    value_s: NotRequired[float | None]
    failed: NotRequired[FailureDocument | None]


def check_something_ran(measured: Sequence[MeasuredRow]) -> None:
    """Check that at least one candidate was measured.

    Raises:
        OutputMismatchError: all candidates that ran gave wrong outputs.
        ModelError: ONNX Runtime, which alone was asked for, does not take the model.
        MeasurementError: nothing ran.
    """
    if any(row.get("samples_s") for row in measured if not row["failed"]):
        return
    failed = [(row["name"], row["failed"]) for row in measured if row["failed"]]
    wrong = [(name, why) for name, why in failed if why["kind"] == "wrong_output"]
    words = "; ".join(f"{name}: {why['kind']} ({why['message']})" for name, why in wrong or failed)
    if wrong:
        raise OutputMismatchError(
            f"No candidate gives the reference outputs: {words[:600]}.",
            "Pin f32. Pass inputs of yours with --input if they differ less; --accuracy loose allows more.",
        )
    if failed and all(row.get("runtime") == "onnxruntime" for row in measured) and failed[0][1]["kind"] == "refused":
        raise ModelError(
            f"ONNX Runtime does not run the model: {failed[0][1]['message']}.",
            "--runtimes openvino,onnxruntime has OpenVINO's answer.",
        )
    raise MeasurementError(f"No candidate could be measured: {words[:600]}.", "Run `placewright doctor`.")


def shortlist_candidates(candidates: Sequence[Candidate], most: int) -> Sequence[Candidate]:
    """Return the best candidates, in order, until `most` of them use more than one device.

    Those on a single device come on top: they stand among the baselines anyway, and must not crowd out the others. So
    does an earlier placement, wherever it stands.
    """
    split = np.cumsum([len(c.placement.devices_used) > 1 for c in candidates])
    count = int(np.searchsorted(split, most)) + 1
    return [*candidates[:count], *(c for c in candidates[count:] if c.found_by == EARLIER)]


def distinct_finalists(rows: Sequence[FinalistRow], most: int, *, ordered: bool = True) -> list[FinalistRow]:
    """Return the placements to measure: each placer's best before any placer's second, equal placements once.

    A placement that uses a single device is left out: it stands among the baselines. An earlier placement is measured
    beyond the `most`. ordered: whether placements that differ in priorities alone are different; to real devices they
    are not.
    """
    chosen: list[FinalistRow] = []
    seen: set[tuple[object, ...]] = set()
    for row in sorted(rows, key=lambda r: (r["value_s"] is None, r["rank"], r["value_s"])):
        priority = (row.get("priority") if ordered else None) or {}
        content = (*sorted(row["placement"].items()), *sorted(priority.items()))
        if content not in seen and len(set(row["placement"].values())) > 1:
            seen.add(content)
            chosen.append(row)
    earlier = [row for row in chosen if row["placer"] == EARLIER]
    return [*earlier, *[row for row in chosen if row["placer"] != EARLIER][:most]]


def candidate_name(row: FinalistRow) -> str:
    """Return what a placer's placement is called among the candidates."""
    if row["placer"] == EARLIER and not row["rank"]:
        return EARLIER
    placer = "drawn split" if row["placer"] == CALIBRATION else row["placer"]
    return f"{placer} {row['rank'] + 1}"
