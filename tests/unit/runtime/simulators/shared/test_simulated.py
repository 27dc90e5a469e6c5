"""What the simulators share, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.core.devices import DeviceSpec, Topology
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves
from runtime.simulators.shared.local_search import shifted, summed, tree_of, update_leaf
from runtime.simulators.shared.simulated import batches, capacity_bytes, digest, expanded, over_bytes, pieces

NAMES = ("A", "B")


def test_moves_of_groups_become_moves_of_their_operations() -> None:
    ptr, node = np.array([0, 2, 2, 3]), np.array([1, 0, 2], np.int32)
    device, like = np.array([1, 0, -1], np.int32), np.array([-1, -1, 1], np.int32)
    moves = Moves(ptr, node, device, like, np.zeros(3), np.array([0.0, 1.0, 2.0]))
    found = expanded(moves, Grouping(np.array([0, 1, 0, 2, 1])))
    assert found.ptr.tolist() == [0, 4, 4, 5]
    assert found.node.tolist() == [1, 4, 0, 2, 3]
    assert found.like.tolist() == [-1, -1, 1]
    assert (found.device.tolist(), found.threshold_s.tolist()) == ([1, 0, -1], [0.0, 1.0, 2.0])


def test_priorities_are_those_of_the_moves_done() -> None:
    nodes = np.array([0, 1, 0], np.int32)
    moves = replace(Moves.single(nodes, np.zeros(3, np.int32), np.zeros(3)), shift=np.array([1.0, 2.0, 4.0]))
    start = np.array([0.5, 0.5])
    found = shifted(start, moves, np.array([True, False, True]))
    assert found is not None
    assert found.tolist() == [5.5, 0.5]
    assert start.tolist() == [0.5, 0.5]
    assert shifted(None, moves, np.ones(3, bool)) is None


def test_placements_with_priorities_are_batched_apart() -> None:
    plain, ordered = Placement(np.array([0, 1]), NAMES), Placement(np.array([1, 1]), NAMES, np.array([2.0, 1.0]))
    (first, device, none), (second, _, priority) = batches([ordered, plain, plain])
    assert (first, device.tolist(), none) == ([1, 2], [[0, 1], [0, 1]], None)
    assert second == [0]
    assert priority is not None
    assert priority.tolist() == [[2.0, 1.0]]
    assert list(batches([])) == []


def test_memory_that_is_not_known_is_never_exceeded() -> None:
    devices = (DeviceSpec("A", "X", "X", memory_bytes=5), DeviceSpec("B", "X", "X"))
    topology = Topology.uniform(devices, bytes_per_s=1.0, latency_s=0.0)
    held = np.array([[7, 2**60], [5, 0]])
    assert over_bytes(held, capacity_bytes(topology)).tolist() == [2, 0]
    assert over_bytes(held, capacity_bytes(topology, memory=False)).tolist() == [0, 0]


def test_pieces_are_connected_on_one_device() -> None:
    edges = np.array([[0, 1, 0, 2], [1, 3, 2, 3]], np.int32)
    assert pieces(edges, np.array([0, 0, 1, 0], np.int32)) == 2
    assert pieces(edges, np.array([0, 1, 1, 0], np.int32)) == 4
    assert pieces(np.zeros((2, 0), np.int32), np.array([0, 1, 1], np.int32)) == 3
    assert pieces(np.zeros((2, 0), np.int32), np.zeros(3, np.int32)) == 1  # a placement on one device is not cut


def test_a_digest_tells_where_one_array_ends() -> None:
    assert digest(np.array([1, 2]), np.array([3])) != digest(np.array([1]), np.array([2, 3]))
    assert digest("a", np.array([1])) == digest("a", np.array([1]))


def test_a_renewed_sum_is_the_sum_made_anew_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 64):
        kept = tree_of(n)
        for _ in range(50):
            update_leaf(
                kept, int(rng.integers(n)), float(rng.choice([rng.random() * 10.0 ** rng.integers(-9, 9), np.inf]))
            )
            again = tree_of(n)
            again[again.size // 2 :] = kept[kept.size // 2 :]
            summed(again)
            assert kept[1:].tobytes() == again[1:].tobytes()
