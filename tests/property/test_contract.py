"""The quotient, orders and components of random graphs against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.graph import Graph, Grouping, components, contract, is_acyclic, topological_order
from tests.strategies import connected, graphs, grouped_graphs, groupings


@given(grouped_graphs())
def test_contract_conserves_flops_and_weights(case: tuple[Graph, Grouping]) -> None:
    graph, grouping = case
    small = contract(graph, grouping)
    assert small.n == grouping.k
    assert small.flops.sum() == graph.flops.sum()
    assert small.weight_bytes.sum() == graph.weight_bytes.sum()


@given(grouped_graphs())
def test_contract_edges_equal_brute_force(case: tuple[Graph, Grouping]) -> None:
    graph, grouping = case
    group = grouping.group.tolist()
    tensors: dict[tuple[int, int, int], int] = {}  # (tensor, its group, reading group) -> bytes
    for a, b, tensor, size in graph.read_rows():
        if group[a] != group[b]:
            key = (tensor, group[a], group[b])
            tensors[key] = max(tensors.get(key, 0), size)
    expected: dict[tuple[int, int], int] = {}
    for (_, source, target), size in tensors.items():
        expected[source, target] = expected.get((source, target), 0) + size
    small = contract(graph, grouping)
    found = {(a, b): size for (a, b), size in zip(small.edges.T.tolist(), small.edge_bytes.tolist(), strict=True)}
    assert found == expected


@given(grouped_graphs(), st.data())
def test_contract_in_two_steps_sends_what_one_step_sends(case: tuple[Graph, Grouping], data: st.DataObject) -> None:
    graph, first = case
    step = contract(graph, first)
    second = data.draw(groupings(step))
    whole, found = contract(graph, first.then(second)), contract(step, second)
    assert found.edges.tolist() == whole.edges.tolist()
    assert found.edge_bytes.tolist() == whole.edge_bytes.tolist()
    sent = [sorted((a, b, size) for a, b, _, size in g.read_rows()) for g in (found, whole)]
    assert sent[0] == sent[1]


@given(grouped_graphs(min_n=1))
def test_contract_takes_head_and_bytes_as_brute_force_does(case: tuple[Graph, Grouping]) -> None:
    graph, grouping = case
    small = contract(graph, grouping)
    consumers: list[set[int]] = [set() for _ in range(graph.n)]
    for a, b in graph.edges.T.tolist():
        consumers[a].add(b)
    for g in range(grouping.k):
        members = np.flatnonzero(grouping.group == g).tolist()
        leaving = [i for i in members if not consumers[i] or not consumers[i] <= set(members)]
        ranked = sorted(members, key=lambda i: rank(graph, i, i in leaving))
        assert small.names[g] == graph.names[ranked[0]]
        assert small.op_type[g] == graph.op_type[ranked[0]]
        assert small.shape(g) == graph.shape(ranked[0])
        assert small.out_bytes[g] == sum(int(graph.out_bytes[i]) for i in leaving)


@given(grouped_graphs())
def test_contract_carries_kernels_as_brute_force_does(case: tuple[Graph, Grouping]) -> None:
    graph, grouping = case
    small = contract(graph, grouping)
    group = grouping.group.tolist()
    leaving = {a for a, b in graph.edges.T.tolist() if group[a] != group[b]} | set(
        np.flatnonzero(graph.out_degree == 0)
    )
    expected = []
    for g in range(grouping.k):
        members = np.flatnonzero((grouping.group == g) & (graph.kernel >= 0)).tolist()
        ranked = sorted(members, key=lambda i: rank(graph, i, i in leaving))
        expected.append(int(graph.kernel[ranked[0]]) if ranked else -1)
    assert same_partition(small.kernel.tolist(), expected)


@given(grouped_graphs())
def test_contract_ties_are_the_closure_of_shared_ties(case: tuple[Graph, Grouping]) -> None:
    graph, grouping = case
    small = contract(graph, grouping)
    sets: list[tuple[set[int], set[int]]] = []  # (groups, ties), merged while they overlap
    for g, t in zip(grouping.group.tolist(), graph.colocate.tolist(), strict=True):
        if t < 0:
            continue
        merged = ({g}, {t})
        for groups, ties in [s for s in sets if g in s[0] or t in s[1]]:
            merged = (merged[0] | groups, merged[1] | ties)
            sets.remove((groups, ties))
        sets.append(merged)
    expected = [next((i for i, (groups, _) in enumerate(sets) if g in groups), -1) for g in range(grouping.k)]
    assert same_partition(small.colocate.tolist(), expected)


@given(graphs())
def test_contract_by_identity_changes_nothing(graph: Graph) -> None:
    same = contract(graph, Grouping.identity(graph.n))
    assert (same.names, same.type_names, same.source) == (graph.names, graph.type_names, graph.source)
    for name in ("op_type", "edges", "flops", "weight_bytes", "out_bytes", "edge_bytes", "shape_ptr", "shape_dim"):
        assert np.array_equal(getattr(same, name), getattr(graph, name)), name
    assert same_partition(same.colocate.tolist(), graph.colocate.tolist())
    assert same_partition(same.kernel.tolist(), graph.kernel.tolist())


@given(st.data())
def test_contract_in_two_steps_has_the_edges_flops_and_ties_of_one(data: st.DataObject) -> None:
    graph, fine = data.draw(grouped_graphs())
    middle = contract(graph, fine)
    coarse = data.draw(groupings(middle))
    two, one = contract(middle, coarse), contract(graph, fine.then(coarse))
    assert np.array_equal(two.edges, one.edges)
    assert np.array_equal(two.flops, one.flops)
    assert np.array_equal(two.weight_bytes, one.weight_bytes)
    assert same_partition(two.colocate.tolist(), one.colocate.tolist())


@given(graphs())
def test_topological_order_puts_producers_first_and_prefers_small_numbers(graph: Graph) -> None:
    path = connected(graph)
    expected: list[int] = []
    while len(expected) < graph.n:
        free = [i for i in range(graph.n) if i not in expected and set(np.flatnonzero(path[:, i])) <= set(expected)]
        expected.append(min(free))
    assert topological_order(graph).tolist() == expected


@given(grouped_graphs())
def test_is_acyclic_agrees_with_the_transitive_closure(case: tuple[Graph, Grouping]) -> None:
    small = contract(*case)
    assert is_acyclic(small) == (not connected(small).diagonal().any())


@given(graphs())
def test_components_agree_with_the_transitive_closure(graph: Graph) -> None:
    joined = components(graph.n, graph.edges[0], graph.edges[1])
    path = np.eye(graph.n, dtype=bool)
    path[graph.edges[0], graph.edges[1]] = path[graph.edges[1], graph.edges[0]] = True
    for middle in range(graph.n):
        path |= path[:, [middle]] & path[[middle], :]
    assert np.array_equal(joined.group[:, None] == joined.group[None, :], path)


def rank(graph: Graph, i: int, leaves: bool) -> tuple[object, ...]:
    """Return what the head of a group has least of, by brute force."""
    ancestors = [*np.flatnonzero(connected(graph)[:, i]).tolist(), i]
    sources = [graph.type_names[graph.op_type[a]] for a in ancestors if a not in graph.edges[1]]
    idle = graph.type_names[graph.op_type[i]] in ("Constant", "Result")
    return set(sources) == {"Constant"}, idle, -graph.flops[i], not leaves, -graph.out_bytes[i], i


def same_partition(a: list[int], b: list[int]) -> bool:
    """Return whether two lists of numbers, -1 for none, tell the same operations apart."""
    return [i < 0 for i in a] == [i < 0 for i in b] and len({*zip(a, b, strict=True)}) == len({*a}) == len({*b})
