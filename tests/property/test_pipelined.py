"""The loads of a pipeline against their definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from pipeline.core.stages import Subject
from runtime.simulators.pipelined.pipelined import Pipelined
from tests.property.test_simulator_walks import subjects


def load_s(subject: Subject, device: list[int], d: int) -> float:
    """Return what one device has to do for every inference; device: per operation."""
    graph, costs, topology = subject.graph, subject.costs, subject.topology
    assert costs is not None
    total = sum(float(costs.op_s[i, d]) for i in range(graph.n) if device[i] == d)
    reads = list(graph.read_rows())
    for u, tensor in sorted({(a, t) for a, _, t, _ in reads}):
        net = {u} | {b for _, b, t, _ in reads if t == tensor}
        here = {i for i in net if device[i] == d}
        if here and here != net and topology.devices[d].kind != "cpu":
            size = max(size for _, _, t, size in reads if t == tensor)
            links = [(d, e) for e in range(topology.p) if e != d] + [(e, d) for e in range(topology.p) if e != d]
            total += max(topology.link_latency_s[x] + size / topology.link_bytes_per_s[x] for x in links)
    return total


@settings(deadline=None, max_examples=60)
@given(subjects())
def test_loads_equal_their_definition(case: tuple[Subject, np.random.Generator]) -> None:
    subject, rng = case
    placements = rng.integers(0, subject.topology.p, (3, subject.grouping.k)).astype(np.int32)
    figures = Pipelined().bind(subject).simulate(placements)
    for b, placement in enumerate(placements):
        device = placement[subject.grouping.group].tolist()
        expected = [load_s(subject, device, d) for d in range(subject.topology.p)]
        # Sums in another order: rounding at the last bits.
        np.testing.assert_allclose(figures.busy_s[b], expected, rtol=1e-12)
        assert figures.value_s[b] == figures.busy_s[b].max()
        rows = list(subject.graph.read_rows())
        read = {(t, device[c]) for a, c, t, _ in rows if device[a] != device[c]}
        size = {t: max(some for *_, other, some in rows if other == t) for t, _ in read}
        assert figures.cut_bytes[b] == sum(size[t] for t, _ in read)
