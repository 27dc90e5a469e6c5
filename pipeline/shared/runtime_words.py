"""What OpenVINO says when it refuses something, in words: without the lines that tell where in its source it failed."""

from __future__ import annotations

import re

LONGEST = 400  # characters of a message that are kept

# Where it failed, not why. What is left of a line that holds the reason behind it is kept.
_WHERE = re.compile(
    r"Exception from \S+?:\d+: ?"
    r"|Check '(?:[^']|'(?! failed at))*' failed at \S+?:\d+:? ?"
    r"|FrontEnd API failed with \w+: ?"
    r"|\[ONNXRuntimeError\] : \d+ : \w+ : ?"
    r"|Model wasn't fully converted[^\n]*"
    r"|-- \S+ with a message:"
    r"|-- Conversion is failed for:[^\n]*"
    r"|Summary:[^\n]*"
    r"|Failed to create plugin \"[^\"]*\" for device \S+\s+Please, check your environment\s*"
)
# The words around the name of an operation that a shape or a kernel does not suit.
_AT = re.compile(
    r"While validating node '.*?' with friendly_name '(?P<name>[^']+)': ?"
    r"|While validating ONNX node '<Node\(\w+\): (?P<onnx>[^']+?)(?::\d+)?>': ?"
    r"|\[CPU\] \w+ node with name '(?P<cpu>[^']+)':? ?"
    r"|\[cpu\]\w*: ?"
)
_NO_REASON = re.compile(r"(?:Shape inference input shapes \{.*?\}(?: ,)? ?|Please check that.*)", re.DOTALL)
# The receiving part of a model gets what a tensor is before anything has run: a size of 0.
_DYNAMIC_CUT = re.compile(
    r"model input \(shape=.*?\) and the tensor \(shape=\((?:\d+\.)*0(?:\.\d+)*\)\) are incompatible"
)
_SIZES = re.compile(r"Eltwise shape infer input shapes dim index: (?P<axis>\d+) mismatch")
_UNDECLARED = re.compile(r"Model references undeclared parameters: \S+ (?P<name>\S+)")
# HETERO puts together what the whole model takes from what its parts take, and goes wrong where several take one input.
_SHARED_INPUT = re.compile(
    r"runtime_graph->inputs\(\)\.size\(\) == inputs\(\)\.size\(\)"
    r"|add_parameters\(\): Tried to add parameter .*already have the same parameter"
)
_ABSENT = re.compile(r'Device with "(?P<name>[^"]+)" name is not registered in the OpenVINO Runtime')


def refusal_in_words(message: str) -> str:
    """Return why OpenVINO refuses something, in one line without its source lines, and without a full stop.

    >>> refusal_in_words("Exception from src/core.cpp:117: Check 'a == b' failed at src/x.cpp:3: No such layout.")
    'No such layout'
    """
    if _DYNAMIC_CUT.search(message):
        return "it is cut through a dynamic tensor, whose size is known only while it runs"
    if _SHARED_INPUT.search(message):
        return "HETERO cannot join its parts, of which several read the same input"
    undeclared = _UNDECLARED.search(message)
    if undeclared:
        return f"it is cut so that a part of it lacks the input {undeclared['name']}"
    absent = _ABSENT.search(message)
    if absent:
        return f"there is no device {absent['name']}"
    words = _WHERE.sub("", message)
    at = [name for match in _AT.finditer(words) if (name := match["name"] or match["onnx"] or match["cpu"])]
    words = _SIZES.sub(r"its inputs differ in dimension \g<axis>", _NO_REASON.sub("", _AT.sub("", words)))
    words = " ".join(words.split()).strip(" .!,:")
    if at:
        words = f"at {at[-1]}, {words}" if words else f"at {at[-1]}"
    if len(words) > LONGEST:
        words = words[:LONGEST] + " ..."
    return words or "no reason given"
