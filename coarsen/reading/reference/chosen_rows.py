"""Outputs whose rows are chosen by comparing numbers that the model computes, as a detector chooses boxes.

Where two such numbers are near, rounding exchanges a whole row: on few inputs, so that a handful of them shows nothing.
"""

from __future__ import annotations

from typing import Any

import openvino as ov

from coarsen.reading.model.flops import FORMULAS
from coarsen.reading.model.read import bodies_of, models_within

CHOOSING = frozenset(
    {
        *("NonMaxSuppression", "NMSRotated", "MatrixNms", "MulticlassNms", "NonZero", "Unique"),
        *("DetectionOutput", "Proposal", "GenerateProposals", "ExperimentalDetectronDetectionOutput"),
        *("ExperimentalDetectronGenerateProposalsSingleImage", "ExperimentalDetectronTopKROIs"),
    }
)
GATHERING = ("Gather", "GatherElements", "GatherND")  # their second input says which rows
GIVEN = ("Constant", "Parameter", "Convert")  # compute nothing that a low precision rounds


def chosen_outputs(model: ov.Model) -> list[str]:
    """Return the outputs of chosen rows, as "output_0".

    Between choice and output rows are moved and changed one by one; what sums over them is compared as numbers are.
    """
    return [f"output_{i}" for i, result in enumerate(model.get_results()) if _has_chosen_rows(result)]


def _has_chosen_rows(result: Any) -> bool:
    seen: set[tuple[str, int, bool]] = set()
    ahead = [(result.input_value(0), False)]  # and whether a value says which rows are gathered
    while ahead:
        value, which = ahead.pop()
        node = value.get_node()
        kind, key = node.get_type_name(), (node.get_name(), value.get_index(), which)
        if key in seen or kind in FORMULAS:
            continue
        seen.add(key)
        chooses = kind in CHOOSING or (kind == "TopK" and which and value.get_index() == 1)
        if (chooses and _compares_computed(node)) or _body_chooses(node):
            return True
        ahead += [(each, which or (kind in GATHERING and i == 1)) for i, each in enumerate(node.input_values())]
    return False


def _compares_computed(node: Any) -> bool:
    """Return whether an operation depends on floating numbers that the model computes."""
    seen, ahead = {node.get_name()}, [node]
    while ahead:
        for value in ahead.pop().input_values():
            before = value.get_node()
            if value.get_element_type().is_real() and before.get_type_name() not in GIVEN:
                return True
            if before.get_name() not in seen:
                seen.add(before.get_name())
                ahead.append(before)
    return False


def _body_chooses(node: Any) -> bool:
    within = (inner for body, _ in bodies_of(node) for inner in models_within(body))
    return any(op.get_type_name() in CHOOSING for inner in within for op in inner.get_ops())
