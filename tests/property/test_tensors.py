"""Which edges carry the same tensor, against the plain rule and what any rule must keep."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.tensors import tensors_read
from tests.plain_tensors import tensor_of
from tests.strategies import graph_of

NUMBER = st.integers(0, 6)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Return the producer and the bytes of every edge, and what each of up to three producers produces."""
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    producer = [u for u, count in enumerate(counts) for _ in range(count)]
    return producer, [draw(NUMBER) for _ in producer], [draw(st.integers(0, 20)) for _ in counts]


@settings(deadline=None)
@given(outputs())
def test_tensors_follow_the_plain_rule(case: tuple[list[int], list[int], list[int]]) -> None:
    producer, size, out = case
    n = len(out)
    edges = [(u, n + e) for e, u in enumerate(producer)]
    graph = graph_of(
        n + len(edges), edges, out_bytes=out + [0] * len(edges), edge_bytes=dict(zip(edges, size, strict=True))
    )
    same = tensor_of(graph)
    assert len({*zip(same, graph.reads.tensor.tolist(), strict=True)}) == len({*same}) == graph.reads.t
    ports = {(producer[e], leader): int(graph.reads.port[e]) for e, leader in enumerate(same)}
    for u in range(n):
        assert sorted(port for (maker, _), port in ports.items() if maker == u) == list(
            range(len({*same} & {leader for maker, leader in ports if maker == u}))
        )


@settings(deadline=None)
@given(outputs(), st.data())
def test_what_is_received_lies_between_the_largest_edge_and_all_edges(
    case: tuple[list[int], list[int], list[int]], data: st.DataObject
) -> None:
    producer, size, out = (np.array(part, np.int64) for part in case)
    tensor = tensors_read(producer.astype(np.int32), size, out)
    assert np.array_equal(producer[tensor], producer)
    assert np.all(size[tensor] >= size)
    for u in np.unique(producer):
        mine = np.flatnonzero(producer == u)
        assert size[np.unique(tensor[mine])].sum() <= max(out[u], size[mine].max())
        here = np.array(sorted(data.draw(st.sets(st.sampled_from(mine.tolist()), min_size=1))))
        received = sum(size[here[tensor[here] == t]].max() for t in np.unique(tensor[here]))
        assert size[here].max() <= received <= size[here].sum()
