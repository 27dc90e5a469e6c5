"""Which operations are tied: small cases by hand, random graphs by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coarsen.reading.model.colocation import Operations, colocation_constraints
from pipeline.core.arrays import Bool, Int32

Pairs = list[tuple[int, int]]


def tied(kinds: list[str], edges: Int32, integer: Bool, variables: dict[int, str]) -> Int32:
    """Return the ties of operations without narrow integers and dynamic tensors."""
    return colocation_constraints(Operations(kinds, integer, np.zeros(len(kinds), bool), variables), edges)


def test_a_dequantise_chain_stays_with_whoever_takes_it() -> None:
    # 1 -> u8 | f32 2, - zero point 4, * scale 6, taken by 7 and 8; 9 takes no number that was narrow
    kinds = [
        "Parameter", "Convert", "Convert", "Constant", "Subtract", "Constant", "Multiply", "Convolution", "Add", "Relu",
    ]  # fmt: skip
    edges = np.array([[0, 1, 2, 3, 4, 5, 6, 6, 7], [1, 2, 4, 4, 6, 6, 7, 8, 9]], np.int32)
    narrow = np.array([i == 1 for i in range(10)])
    found = colocation_constraints(Operations(kinds, narrow, narrow), edges)
    assert {found[i] for i in (2, 4, 6, 7, 8)} == {2}
    assert all(found[i] == -1 for i in (0, 1, 3, 5, 9))


def test_quantised_integers_stay_with_what_makes_them_numbers_again() -> None:
    # a FakeQuantize 1, u8 2, which 3 reshapes, f32 4, taken by 5; the u8 input 6 was not quantised here
    kinds = ["Parameter", "FakeQuantize", "Convert", "Reshape", "Convert", "MatMul", "Parameter", "Reshape", "Relu"]
    edges = np.array([[0, 1, 2, 3, 4, 6, 7], [1, 2, 3, 4, 5, 7, 8]], np.int32)
    narrow = np.array([i in (2, 3, 6, 7) for i in range(9)])
    found = colocation_constraints(Operations(kinds, narrow, narrow), edges)
    assert {found[i] for i in (1, 2, 3, 4, 5)} == {1}
    assert all(found[i] == -1 for i in (0, 6, 7, 8))


def test_ids_made_into_numbers_are_no_dequantisation() -> None:
    kinds, integer = ["Parameter", "Convert", "Multiply"], np.array([True, False, False])
    edges = np.array([[0, 1], [1, 2]], np.int32)
    assert np.all(colocation_constraints(Operations(kinds, integer, np.zeros(3, bool)), edges) == -1)


def test_who_makes_and_who_takes_a_dynamic_tensor_are_tied() -> None:
    kinds, edges = ["Parameter", "NonZero", "Relu", "Relu"], np.array([[0, 1, 0], [1, 2, 3]], np.int32)
    found = colocation_constraints(Operations(kinds, np.zeros(4, bool), np.zeros(4, bool), dynamic=[(1, 2)]), edges)
    assert found.tolist() == [-1, 1, 1, -1]


def test_two_states_are_two_ties() -> None:
    # 0 and 1 are read; 2 = 0 + input 6; 3 writes 2 to "a"; 4 = 1 + 2; 5 writes 4 to "b"
    kinds = ["ReadValue", "ReadValue", "Add", "Assign", "Add", "Assign", "Relu"]
    edges = np.array([[0, 1, 2, 2, 4, 4], [2, 4, 3, 4, 5, 6]], np.int32)
    found = tied(kinds, edges, np.zeros(7, bool), {0: "a", 1: "b", 3: "a", 5: "b"})
    assert found[0] == found[2] == found[3] >= 0
    assert found[1] == found[4] == found[5] >= 0
    assert found[0] != found[1]
    assert found[6] == -1


def test_states_that_share_an_operation_are_one_tie() -> None:
    # 2 = 0 + 1 lies between the ends of "a" and between those of "b": none of the six can be elsewhere.
    kinds = ["ReadValue", "ReadValue", "Add", "Assign", "Relu", "Assign"]
    edges = np.array([[0, 1, 2, 2, 4], [2, 2, 3, 4, 5]], np.int32)
    found = tied(kinds, edges, np.zeros(6, bool), {0: "a", 1: "b", 3: "a", 5: "b"})
    assert len(set(found.tolist())) == 1
    assert found[0] >= 0


def test_a_shape_made_a_float_is_taken_there() -> None:
    # ShapeOf 1, Convert 2 to float, Sqrt 3: the conversion takes the shape, what follows is data.
    kinds = ["Parameter", "ShapeOf", "Convert", "Sqrt"]
    edges = np.array([[0, 1, 2], [1, 2, 3]], np.int32)
    found = tied(kinds, edges, np.array([False, True, False, False]), {})
    assert found[1] == found[2] >= 0
    assert found[0] == found[3] == -1


def test_a_state_written_from_elsewhere_is_tied_with_the_producer() -> None:
    kinds = ["Parameter", "ReadValue", "Relu", "Assign", "Tanh"]
    edges = np.array([[0, 1, 2], [2, 4, 3]], np.int32)
    found = tied(kinds, edges, np.zeros(5, bool), {1: "a", 3: "a"})
    assert found[1] == found[2] == found[3] >= 0
    assert found[0] == found[4] == -1


def test_a_shape_that_several_operations_take_is_free() -> None:
    # ShapeOf 1 feeds Gather 2, which feeds Reshape 3 and Reshape 5; Gather 4 of it feeds Reshape 5 alone.
    kinds = ["Parameter", "ShapeOf", "Gather", "Reshape", "Gather", "Reshape"]
    edges = np.array([[0, 0, 1, 1, 2, 2, 3, 4], [1, 3, 2, 4, 3, 5, 5, 5]], np.int32)
    integer = np.array([False, True, True, False, True, False])
    assert tied(kinds, edges, integer, {}).tolist() == [-1, -1, -1, -1, 4, 4]


def test_data_that_a_shape_selects_is_not_shape_arithmetic() -> None:
    # Gather 2 picks integers of input 0 at indices that come from a shape: it takes the shape, it is none.
    kinds = ["Parameter", "ShapeOf", "Gather", "Add", "Result"]
    edges = np.array([[0, 0, 1, 2, 3], [1, 2, 2, 3, 4]], np.int32)
    found = tied(kinds, edges, np.ones(5, bool), {})
    assert found[1] == found[2] >= 0
    assert found[3] == found[4] == -1


TYPES = ("Parameter", "Constant", "Add", "Reshape", "ShapeOf", "FakeQuantize", "ReadValue", "Assign", "Convert")
ARITHMETIC = ("Add", "Reshape", "Convert", "Subtract", "Multiply")  # also of integers that are a shape
# Ties of one kind hide those of another: most graphs are of one kind only.
FOCUS = (
    ("ShapeOf", "Add", "Reshape", "Constant"),
    ("FakeQuantize", "Reshape", "Constant", "Constant"),
    ("ReadValue", "Add", "Assign"),
    ("Convert", "Convert", "Subtract", "Multiply", "FakeQuantize", "Constant"),
)


class Drawn(NamedTuple):
    kinds: list[str]
    edges: Pairs
    integer: list[bool]
    variables: dict[int, str]
    narrow: list[bool]
    dynamic: Pairs


@st.composite
def typed_graphs(draw: st.DrawFn) -> Drawn:
    """Draw types, edges from lower to higher numbers, which outputs are integers, and variables read and written."""
    n = draw(st.integers(1, 10))
    focus = draw(st.sampled_from((TYPES, *FOCUS)))
    kinds = [draw(st.sampled_from(("Parameter", "Constant"))), *(draw(st.sampled_from(focus)) for _ in range(n - 1))]
    edges = [
        (i, j)
        for j, kind in enumerate(kinds)
        if j and kind not in ("Parameter", "Constant")
        for i in draw(st.lists(st.integers(max(0, j - 4), j - 1), min_size=1, max_size=3, unique=True))
    ]
    integer = [kind == "ShapeOf" or draw(st.booleans()) for kind in kinds]
    variables = {i: draw(st.sampled_from("ab")) for i, kind in enumerate(kinds) if kind in ("ReadValue", "Assign")}
    narrow = [whole and draw(st.booleans()) for whole in integer]
    dynamic = [edge for edge in edges if draw(st.integers(0, 9)) == 0]
    return Drawn(kinds, sorted(edges), integer, variables, narrow, dynamic)


def reach(n: int, edges: Pairs) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return bool [n, n], whether a path of any length leads from row to column."""
    path = np.eye(n, dtype=bool)
    for i, j in edges:
        path[i, j] = True
    for middle in range(n):
        path |= path[:, [middle]] & path[[middle], :]
    return path


def state_pairs(drawn: Drawn) -> Iterator[tuple[int, int]]:
    kinds, edges, variables = drawn.kinds, drawn.edges, drawn.variables
    path = reach(len(kinds), edges)
    for a, b in itertools.product(variables, variables):
        if variables[a] == variables[b]:
            yield a, b
            if kinds[a] == "ReadValue" and kinds[b] == "Assign":
                yield from ((a, k) for k in range(len(kinds)) if path[a, k] and path[k, b])
    yield from ((i, j) for i, j in edges if kinds[j] == "Assign")


def fed_by_inputs(drawn: Drawn) -> list[bool]:
    path = reach(len(drawn.kinds), drawn.edges)
    sources = [i for i, kind in enumerate(drawn.kinds) if kind in ("Parameter", "ReadValue")]
    return [any(path[i, k] for i in sources) for k in range(len(drawn.kinds))]


def quantisation_pairs(drawn: Drawn) -> Iterator[tuple[int, int]]:
    kinds, edges = drawn.kinds, drawn.edges
    n, path, fed = len(kinds), reach(len(kinds), edges), fed_by_inputs(drawn)
    quantise = [f for f in range(n) if kinds[f] == "FakeQuantize"]
    for i, j in edges:  # from a FakeQuantize on, through weights, to whom they feed
        if any(path[f, i] and (f == i or not fed[i]) for f in quantise):
            yield i, j
    for k in range(n):  # and what makes its constants, as long as nobody else reads them
        line = [k]
        while not fed[line[-1]] and len(after := [j for i, j in edges if i == line[-1]]) == 1:
            line += after
            if after[0] in quantise:
                yield from itertools.pairwise(line)
                break


def dequantisation_pairs(drawn: Drawn) -> Iterator[tuple[int, int]]:
    kinds, edges, fed = drawn.kinds, drawn.edges, fed_by_inputs(drawn)
    data = {k: [i for i, j in edges if j == k and fed[i]] for k in range(len(kinds))}
    chain: set[int] = set()
    quantised: set[int] = set()
    for k, kind in enumerate(kinds):
        if drawn.narrow[k] and any(i in quantised or kinds[i] == "FakeQuantize" for i in data[k]):
            quantised.add(k)
        begins = kind == "Convert" and not drawn.integer[k] and any(drawn.narrow[i] for i in data[k])
        goes_on = kind in ("Subtract", "Multiply") and len(data[k]) == 1 and data[k][0] in chain
        if begins or goes_on:
            chain.add(k)
    yield from ((i, j) for i, j in edges if i in chain | quantised)


def shape_pairs(drawn: Drawn) -> Iterator[tuple[int, int]]:
    kinds, edges, integer = drawn.kinds, drawn.edges, drawn.integer
    fed = fed_by_inputs(drawn)
    shape: set[int] = set()
    for k, kind in enumerate(kinds):
        of_shapes = [i in shape for i, j in edges if j == k and fed[i]]
        if kind == "ShapeOf" or (integer[k] and kind in ARITHMETIC and of_shapes and all(of_shapes)):
            shape.add(k)
    for k in shape:
        below = reach(len(kinds), [(i, j) for i, j in edges if i in shape])[k]
        takers = [i for i in np.flatnonzero(below).tolist() if i not in shape]
        unused = any(i in shape and all(i != a for a, _ in edges) for i in np.flatnonzero(below).tolist())
        if len(takers) == 1 and not unused:
            yield k, takers[0]


@settings(max_examples=300, deadline=None)
@given(typed_graphs())
def test_ties_are_what_brute_force_finds(drawn: Drawn) -> None:
    n = len(drawn.kinds)
    operations = Operations(
        drawn.kinds, np.array(drawn.integer), np.array(drawn.narrow), drawn.variables, drawn.dynamic
    )
    found = colocation_constraints(operations, np.array(drawn.edges, np.int32).reshape(-1, 2).T)
    pairs = [*state_pairs(drawn), *quantisation_pairs(drawn), *dequantisation_pairs(drawn), *shape_pairs(drawn)]
    pairs += drawn.dynamic
    together = reach(n, [*pairs, *((b, a) for a, b in pairs)])
    alone = together.sum(axis=1) == 1
    assert found.dtype == np.int32
    assert np.array_equal(found == -1, alone)
    assert found.max() < n
    assert np.array_equal((found[:, None] == found) & ~alone, together & ~alone)
