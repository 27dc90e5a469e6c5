"""Graph parsing: the clusters of scores, the features of clusters, and rounds of both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipeline.core.graph import Graph, Grouping, components
from policy.place.published.hsdag.clusters import Clusters, Links, joined, parse_in_turn, parse_symmetric
from policy.place.published.hsdag.network import EdgeScorer, Entries, Parsing, ParsingRounds, Pool
from tests.strategies import graphs

RELEASED = ParsingRounds(to_fixed_point=True, noisy_scores=True, score_layers=2, pool_layers=1, dropout=0.2)


def links_of(n: int, *edges: tuple[int, int]) -> Links:
    a, b = np.array(edges, dtype=np.int32).reshape(-1, 2).T
    return Links.of(n, a, b)


def scores(links: Links, of: dict[tuple[int, int], float]) -> np.ndarray:
    pairs = zip(links.row.tolist(), links.column.tolist(), strict=True)
    return np.array([of[pair] for pair in pairs], dtype=np.float32)


def sets(grouping: Grouping) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(grouping.group == c).tolist()) for c in range(grouping.k)}


def plain(links: Links, score: np.ndarray) -> tuple[set[frozenset[int]], list[bool]]:
    """Return the clusters and inside entries of DOM, EXP and GEN, step by step and set by set."""
    pairs: list[tuple[float, int, int, int]] = []
    for i in range(links.n):
        at = [e for e in range(links.row.size) if links.row[e] == i]
        if at:
            best = min(at, key=lambda e: (-score[e], e))
            pairs.append((-float(score[best]), best, i, int(links.column[best])))
    pairs.sort()
    cluster_of: dict[int, int] = {}
    inside = [False] * links.row.size
    count = 0
    while pairs:
        _, _, first, second = pairs.pop(0)
        members = {first, second}
        while joining := [p for p in pairs if p[3] in members]:
            members |= {p[2] for p in joining}
            pairs = [p for p in pairs if p not in joining]
        for e in range(links.row.size):
            inside[e] |= int(links.row[e]) in members and int(links.column[e]) in members
        cluster_of |= dict.fromkeys(members, count)
        count += 1
    labels = [cluster_of.get(i, count + i) for i in range(links.n)]
    return sets(Grouping.of_labels(np.array(labels))), inside


def drawn(data: st.DataObject, graph: Graph, *, symmetric: bool) -> tuple[Links, np.ndarray]:
    """Return the links of a graph and scores; symmetric ones are distinct, others often equal."""
    links = Links.of(graph.n, *graph.edges)
    if symmetric:
        order = np.array(data.draw(st.permutations(range(links.e))), dtype=np.float32)
        return links, order[links.pair]
    few = st.lists(st.integers(0, 5), min_size=2 * links.e, max_size=2 * links.e)
    return links, np.array(data.draw(few), dtype=np.float32)


@settings(deadline=None, max_examples=100)
@given(graphs(min_n=1), st.data())
def test_parsing_in_turn_is_dom_exp_and_gen(graph: Graph, data: st.DataObject):
    links, score = drawn(data, graph, symmetric=False)
    found = parse_in_turn(links, score)
    assert (sets(found.grouping), found.inside.tolist()) == plain(links, score)


@settings(deadline=None, max_examples=100)
@given(graphs(min_n=1), st.data())
def test_symmetric_scores_connect_what_parsing_in_turn_clusters(graph: Graph, data: st.DataObject):
    links, score = drawn(data, graph, symmetric=True)
    found, expected = parse_symmetric(links, score), parse_in_turn(links, score)
    assert sets(found.grouping) == sets(expected.grouping)
    assert np.array_equal(found.inside, expected.inside)
    assert found.pooled(links).e == expected.pooled(links).e


@settings(deadline=None, max_examples=100)
@given(graphs(min_n=1), st.data())
def test_symmetric_clusters_are_connected_and_at_most_half_as_many_as_nodes_with_edges(
    graph: Graph, data: st.DataObject
):
    links, score = drawn(data, graph, symmetric=True)
    found = parse_symmetric(links, score)
    row, column = (side[found.inside].astype(np.int32) for side in (links.row, links.column))
    assert sets(components(graph.n, row, column)) == sets(found.grouping)
    isolated = graph.n - np.unique(links.row).size
    assert found.grouping.k - isolated <= (graph.n - isolated) / 2


@settings(deadline=None, max_examples=50)
@given(graphs(min_n=1), st.integers(0, 2**32 - 1))
def test_repeated_to_the_fixed_point_symmetric_parsing_finds_the_connected_components(graph: Graph, seed: int):
    rng = np.random.default_rng(seed)
    links, grouping = Links.of(graph.n, *graph.edges), Grouping.identity(graph.n)
    while links.e:
        found = parse_symmetric(links, rng.random(links.e).astype(np.float32)[links.pair])
        grouping, links = grouping.then(found.grouping), found.pooled(links)
    assert sets(grouping) == sets(components(graph.n, *graph.edges))


def test_asymmetric_scores_lose_an_edge():
    # On the path 0 - 1 - 2 - 3, 0 points at 1 (0.9), 1 at 2 (0.8), 2 at 3 (0.7), 3 at 2 (0.6). First comes {0, 1}:
    # nobody points at either. Then 1 begins {1, 2}, 3 points into it, and 2 at 3. Node 1 stays with the later cluster,
    # and the edge 0 - 1 is inside the earlier one: between the two clusters nothing is left.
    links = links_of(4, (0, 1), (1, 2), (2, 3))
    score = scores(links, {(0, 1): 0.9, (1, 0): 0.1, (1, 2): 0.8, (2, 1): 0.2, (2, 3): 0.7, (3, 2): 0.6})
    found = parse_in_turn(links, score)
    assert found.grouping.group.tolist() == [0, 1, 1, 1]
    assert found.inside.all()
    assert found.pooled(links).e == 0


def test_the_first_of_equal_scores_dominates_and_isolated_nodes_come_last():
    # The centre 1 of a star takes 0, the first of its neighbours; 3 and 4 point at it; 2 is alone.
    links = links_of(5, (1, 0), (1, 3), (1, 4))
    assert parse_in_turn(links, np.ones(6, np.float32)).grouping.group.tolist() == [0, 0, 1, 0, 0]


def test_pooled_links_are_distinct_and_leave_out_what_is_inside():
    # 0 - 1 and 2 - 3 are clusters, joined by 0 - 2, 1 - 3, and both by 4.
    links = links_of(5, (0, 1), (2, 3), (0, 2), (1, 3), (0, 4), (3, 4))
    group = np.array([0, 0, 1, 1, 2], dtype=np.int32)
    pooled = Clusters(Grouping(group), group[links.row] == group[links.column]).pooled(links)
    assert pooled.row.tolist() == [0, 0, 1, 1, 2, 2]
    assert pooled.column.tolist() == [1, 2, 0, 2, 0, 1]


def bare_pool() -> Pool:
    """Return pooling whose two layers double what they are given."""
    pool = Pool(2)
    for layer in (pool.before, pool.after):
        layer.norm = nn.Identity()
        nn.init.eye_(layer.linear.weight)
        nn.init.zeros_(layer.linear.bias)
    return pool


def test_features_of_clusters_by_hand():
    # Clusters {0, 1} and {2}: (1, 2) + (3, 4) and (5, 6), doubled twice, times 0.5 + 0.25 and 1.
    links = links_of(3, (0, 1), (1, 2))
    clusters = Clusters(Grouping(np.array([0, 0, 1])), np.array([True, True, False, False]))
    score = torch.tensor([0.5, 0.25, 0.125, 0.0625], requires_grad=True)
    found = bare_pool()(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), links, clusters, score)
    assert found.tolist() == [[4 * 4 * 0.75, 4 * 6 * 0.75], [4 * 5.0, 4 * 6.0]]
    (gradient,) = torch.autograd.grad(found.sum(), score)
    assert gradient.tolist() == [40.0, 40.0, 0.0, 0.0]


def test_a_lost_edge_counts_where_its_row_ended():
    links = links_of(3, (0, 1), (1, 2))  # entries 0 1, 1 0, 1 2, 2 1
    clusters = Clusters(Grouping(np.array([0, 1, 1])), np.ones(4, bool))
    score = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    found = bare_pool()(torch.ones(3, 2), links, clusters, score)
    assert found[:, 0].tolist() == [4 * 0.5, 8 * (0.25 + 0.125 + 0.0625)]


def test_convolutions_weight_neighbours_by_degrees_that_count_the_node_itself():
    at = Entries.of(links_of(4, (0, 1), (1, 2)))  # degrees 2, 3, 2, 1
    assert at.weight[:, 0].tolist() == pytest.approx([6**-0.5] * 4)
    assert at.own[:, 0].tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 2, 1])


def test_only_noise_while_training_tells_the_two_directions_of_an_edge_apart():
    torch.manual_seed(0)
    links = path(20)
    z = torch.randn(20, 8)

    def differ(scorer: EdgeScorer) -> bool:
        score = scorer(z, links).detach().numpy()
        return bool(np.abs(score[np.argsort(links.pair, kind="stable")].reshape(-1, 2) @ [1, -1]).max() > 1e-6)

    noisy, quiet = EdgeScorer(8, 16, 0.5, noisy=True), EdgeScorer(8, 16, 0.5, noisy=False)
    assert differ(noisy)
    assert not noisy.symmetric
    assert not differ(noisy.eval())
    assert noisy.symmetric
    assert not differ(quiet)


@settings(deadline=None, max_examples=30)
@given(graphs(min_n=2), st.integers(0, 2**32 - 1))
def test_a_score_is_that_of_the_nodes_at_the_ends(graph: Graph, seed: int):
    links = Links.of(graph.n, *graph.edges)
    z = torch.from_numpy(np.random.default_rng(seed).normal(size=(graph.n, 4)).astype(np.float32))
    scorer = EdgeScorer(4, 8, 0.0, noisy=False)
    ends = zip(links.row.tolist(), links.column.tolist(), strict=True)
    by_hand = [float(torch.sigmoid(scorer.phi((z[i] * z[j])[None])).detach()) for i, j in ends]
    assert scorer(z, links).tolist() == pytest.approx(by_hand, abs=1e-5)  # float32


def test_links_leave_out_what_leads_from_a_node_to_itself():
    assert links_of(3, (1, 1), (2, 0)).row.tolist() == [0, 2]


def path(n: int) -> Links:
    return links_of(n, *((i, i + 1) for i in range(n - 1)))


@pytest.mark.parametrize("seed", range(3))
def test_the_fixed_point_of_a_connected_graph_is_one_cluster_but_for_noise(seed: int):
    torch.manual_seed(seed)
    links, x = path(400), torch.randn(400, 16)
    parsing = Parsing(16, 32, RELEASED)
    assert joined(parsing.eval()(x, links)[0]).k == 1
    assert joined(parsing.train()(x, links)[0]).k > 1


def test_one_round_leaves_many_clusters():
    torch.manual_seed(0)
    once = ParsingRounds(to_fixed_point=False, noisy_scores=False, score_layers=0, pool_layers=0, dropout=0.0)
    rounds, features = Parsing(16, 32, once)(torch.randn(400, 16), path(400))
    grouping = joined(rounds)
    assert 40 < grouping.k <= 200
    assert features.shape == (grouping.k, 16)


def test_a_graph_without_edges_is_parsed_to_its_nodes():
    rounds, features = Parsing(4, 8, RELEASED)(torch.ones(3, 4), links_of(3))
    assert joined(rounds).group.tolist() == [0, 1, 2]
    assert features.shape == (3, 4)
