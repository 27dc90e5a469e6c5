"""Which operations of a model must run in one sub-model, because the runtime fails or silently loses speed if not.

Four kinds are colocated:

- state: the ReadValue and Assign of a variable, the Assign's producer, and every operation on a path between them
  (were one of these elsewhere, the variable's two ends could not be in one sub-model);
- quantisation: a FakeQuantize and its consumers, which run in int8 only if they see it, and what makes the constants
  of it. Where it is followed by integers of 8 bits or less (QuantizeLinear), and these by what turns them back into
  numbers (Convert, Subtract, Multiply, as a DequantizeLinear becomes), all of that and whoever takes it. Sending bytes
  would be cheap, but a sub-model without a FakeQuantize runs nothing in int8;
- dynamic tensors: who makes one and who takes it, because HETERO fails where one is cut;
- shapes: arithmetic on shapes that is left after constant folding, and the operation that takes the shape. A shape
  value that several operations take is left free: tying it would chain all of them together, and it is a few bytes.

A tie restricts placements, it never rules all of them out: any one device that runs every member will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.core.arrays import Bool, Int32
from pipeline.core.graph import components

Pairs = list[tuple[int, int]]

_SHIFTED_OR_SCALED = frozenset({"Subtract", "Multiply"})
_SOURCES = frozenset({"Parameter", "ReadValue"})
_NOT_SHAPE_ARITHMETIC = frozenset({"Result", "Assign", "ReadValue", "If", "Loop", "TensorIterator", "FakeQuantize"})


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """What colocation asks of n operations in topological order.

    types: n. integer: bool [n], whether all outputs are integers. narrow: bool [n], whether they have 8 bits or less.
    variables: operation -> name of the variable it reads (ReadValue) or writes (Assign). dynamic: (producer, consumer)
    of tensors of dynamic shape.
    """

    types: Sequence[str]
    integer: Bool
    narrow: Bool
    variables: Mapping[int, str] = field(default_factory=dict)
    dynamic: Sequence[tuple[int, int]] = ()


def colocation_constraints(operations: Operations, edges: Int32) -> Int32:
    """Return int32 [n], equal numbers in [0, n) for operations that must run in one sub-model, -1 for free ones.

    edges: int32 [2, m], sorted by (producer, consumer), every producer before its consumer.
    """
    types, integer = operations.types, operations.integer
    n = len(types)
    producers: list[list[int]] = [[] for _ in range(n)]
    consumers: list[list[int]] = [[] for _ in range(n)]
    for producer, consumer in edges.T.tolist():
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    # whether each operation's value depends on an input or a state: what is false is weights
    fed: list[bool] = []
    for op_type, before in zip(types, producers, strict=True):
        fed.append(op_type in _SOURCES or any(fed[i] for i in before))
    pairs = _state_pairs(types, producers, consumers, operations.variables)
    pairs += _quantisation_pairs(types, producers, consumers, fed)
    pairs += _dequantisation_pairs(operations, producers, consumers, fed)
    pairs += _shape_pairs(types, producers, consumers, fed, integer)
    pairs += operations.dynamic
    if not pairs:
        return np.full(n, -1, np.int32)
    a, b = np.array(pairs, np.int32).T
    group = components(n, a, b).group
    return np.where(np.bincount(group)[group] > 1, group, -1).astype(np.int32)


def _state_pairs(
    types: Sequence[str],
    producers: Sequence[Sequence[int]],
    consumers: Sequence[Sequence[int]],
    variables: Mapping[int, str],
) -> Pairs:
    """Return pairs that join both ends of every variable and what lies on a path between them."""
    bit = {name: 1 << k for k, name in enumerate(dict.fromkeys(variables.values()))}
    n = len(types) if variables else 0
    read, written = [0] * n, [0] * n  # bit sets: variables above, and below, each operation
    for i in range(n):
        own = bit[variables[i]] if types[i] == "ReadValue" and i in variables else 0
        for j in producers[i]:
            own |= read[j]
        read[i] = own
    for i in reversed(range(n)):
        own = bit[variables[i]] if types[i] == "Assign" and i in variables else 0
        for j in consumers[i]:
            own |= written[j]
        written[i] = own
    first: dict[str, int] = {}
    pairs = [(first.setdefault(name, i), i) for i, name in variables.items()]
    anchor = {bit[name]: i for name, i in first.items()}
    for i in range(n):
        between = read[i] & written[i]
        while between:
            lowest = between & -between
            pairs.append((anchor[lowest], i))
            between ^= lowest
    return pairs + [(j, i) for i in variables if types[i] == "Assign" for j in producers[i]]


def _quantisation_pairs(
    types: Sequence[str],
    producers: Sequence[Sequence[int]],
    consumers: Sequence[Sequence[int]],
    fed: Sequence[bool],
) -> Pairs:
    """Return pairs that join every FakeQuantize with its consumers and with what makes its constants.

    From a quantised weight the chain goes on through what only reshapes it, to the operation that takes the weight. A
    constant that several operations read is left free: it is shared, not moved, and would tie them all together.
    """
    pairs: Pairs = []
    below = [False] * len(types)  # whether a FakeQuantize or a quantised weight
    for i, op_type in enumerate(types):
        below[i] = op_type == "FakeQuantize" or (not fed[i] and any(below[j] for j in producers[i]))
        if below[i]:
            pairs += [(i, j) for j in consumers[i]]
    above = [False] * len(types)  # whether weights that only a FakeQuantize reads
    for i in reversed(range(len(types))):
        if not fed[i] and len(consumers[i]) == 1:
            reader = consumers[i][0]
            above[i] = types[reader] == "FakeQuantize" or above[reader]
            if above[i]:
                pairs.append((i, reader))
    return pairs


def _dequantisation_pairs(
    operations: Operations, producers: Sequence[Sequence[int]], consumers: Sequence[Sequence[int]], fed: Sequence[bool]
) -> Pairs:
    """Return pairs that join quantised integers with what turns them back into numbers, and that with who takes it."""
    types, integer, narrow = operations.types, operations.integer, operations.narrow
    pairs: Pairs = []
    quantised = [False] * len(types)  # whether narrow integers that a FakeQuantize leads to
    below = [False] * len(types)  # whether a number that was a narrow integer, no more than shifted and scaled since
    for i, op_type in enumerate(types):
        before = [j for j in producers[i] if fed[j]]
        quantised[i] = bool(narrow[i]) and any(quantised[j] or types[j] == "FakeQuantize" for j in before)
        if op_type == "Convert":
            below[i] = not integer[i] and any(narrow[j] for j in before)
        elif op_type in _SHIFTED_OR_SCALED:
            below[i] = len(before) == 1 and below[before[0]]
        if quantised[i] or below[i]:
            pairs += [(i, j) for j in consumers[i]]
    return pairs


def _shape_pairs(
    types: Sequence[str],
    producers: Sequence[Sequence[int]],
    consumers: Sequence[Sequence[int]],
    fed: Sequence[bool],
    integer: Bool,
) -> Pairs:
    """Return pairs that join arithmetic on shapes with the one operation that takes the shape."""
    is_shape = [False] * len(types)
    for i, op_type in enumerate(types):
        of_shapes = [is_shape[j] for j in producers[i] if fed[j]]
        arithmetic = bool(integer[i]) and op_type not in _NOT_SHAPE_ARITHMETIC and bool(of_shapes) and all(of_shapes)
        is_shape[i] = op_type == "ShapeOf" or arithmetic
    taker = [-1] * len(types)  # the one operation that takes the shape in the end, -1 if there are several
    pairs: Pairs = []
    for i in reversed(range(len(types))):
        if is_shape[i]:
            ends = {taker[j] if is_shape[j] else j for j in consumers[i]}
            taker[i] = ends.pop() if len(ends) == 1 else -1
            if taker[i] >= 0:
                pairs.append((i, taker[i]))
    return pairs
