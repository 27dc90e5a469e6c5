"""How likely the decisions of a schedule are when scores are logits, and the exact gradients of that.

    pi(device d of operation i | what is placed)  =  softmax_d(w . phi[i, d] + b[i, d])       over usable devices
    pi(operation i is next | what is ready)       =  softmax_i(v . psi[i] + a[i])             over ready operations

The constructor takes the greatest score, and Gumbel noise on scores makes that a draw of these probabilities, one
operation after another (`Scores.turn` says how keys are drawn). phi is what it records of its decisions, psi follows
from their order. So the gradient of log pi is known: figures of what was chosen less their mean, and for the tables one
less the probability. An operation whose group is placed has one usable device and teaches nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.shared.compiled import compiled, inlined
from policy.place.learned.neural_list.constructing import FIGURES, KEY_FIGURES, Decisions, Scores
from policy.place.learned.neural_list.instances import ListInstance
from policy.place.lists.listing import PartialSchedule


class Slopes(NamedTuple):
    """A sum over decisions, and its gradient.

    value: the sum. weight: float64 [figures], by what they count. table: float64 [n, p] of devices or [n] of
    operations, by what is added to each score.
    """

    value: float
    weight: Float64
    table: Float64


def device_slopes(figure: Float64, chosen: Int64, weight: Float64, table: Float64) -> tuple[Slopes, Slopes]:
    """Return the log-probability of devices chosen, and the entropy of these choices.

    figure: float64 [n, p, FIGURES], nan where not usable, of operations without a decision everywhere. chosen:
    int64 [n]. weight: float64 [FIGURES]. table: float64 [n, p].
    """
    by_weight, by_table = np.zeros((2, FIGURES)), np.zeros((2, *table.shape))
    value = _differentiate_devices(figure, chosen, weight, table, by_weight, by_table)
    return Slopes(value[0], by_weight[0], by_table[0]), Slopes(value[1], by_weight[1], by_table[1])


@compiled
def _differentiate_devices(
    figure: Float64, chosen: Int64, weight: Float64, table: Float64, by_weight: Float64, by_table: Float64
) -> Float64:
    """Return log-probability and entropy; add their gradients to by_weight [2, FIGURES] and by_table [2, n, p]."""
    value, (n, p) = np.zeros(2), table.shape
    logit, slope = np.empty(p), np.empty((2, p))
    for i in range(n):
        most = _logits(figure[i], weight, table[i], logit)
        if np.count_nonzero(logit > -math.inf) < 2 or logit[chosen[i]] == -math.inf:
            continue
        total = 0.0
        for d in range(p):
            total += math.exp(logit[d] - most)
        log_total, entropy = most + math.log(total), 0.0
        for d in range(p):
            if logit[d] > -math.inf:
                entropy -= math.exp(logit[d] - log_total) * (logit[d] - log_total)
        value[0] += logit[chosen[i]] - log_total
        value[1] += entropy
        for d in range(p):
            if logit[d] == -math.inf:
                continue
            share = math.exp(logit[d] - log_total)
            slope[0, d] = (1.0 if d == chosen[i] else 0.0) - share
            slope[1, d] = -share * (logit[d] - log_total + entropy)
            for q in range(2):
                by_table[q, i, d] += slope[q, d]
                for f in range(weight.size):
                    by_weight[q, f] += slope[q, d] * figure[i, d, f]
    return value


@inlined
def _logits(figure: Float64, weight: Float64, table: Float64, logit: Float64) -> float:
    """Write the logits of devices, -inf where not usable, and return the greatest; figure: float64 [p, FIGURES]."""
    most = -math.inf
    for d in range(logit.size):
        logit[d] = -math.inf
        if not math.isnan(figure[d, 0]):
            logit[d] = table[d]
            for f in range(weight.size):
                logit[d] += weight[f] * figure[d, f]
            most = max(most, logit[d])
    return most


def order_slopes(figure: Float64, order: Int64, first: Int64, key: Float64) -> Slopes:
    """Return the log-probability of an order of operations.

    figure: float64 [n, len(KEY_FIGURES)]. order: int64 [s], the operations in their order. first: int64 [n], the
    position from which on each was ready. key: float64 [n], logits.
    """
    by_key = np.zeros(key.size)
    at = np.argsort(first[order], kind="stable")
    value = _differentiate_order(order, order[at], first, key, by_key)
    weight = by_key @ figure if figure.size else np.zeros(len(KEY_FIGURES))
    return Slopes(value, weight, by_key)


@compiled
def _differentiate_order(order: Int64, by_first: Int64, first: Int64, key: Float64, by_key: Float64) -> float:
    """Return the log-probability of an order; add its gradient to by_key, float64 [n].

    by_first: int64 [s], the operations of the order by when they are ready.
    """
    ready, count, come, value = np.empty(order.size, np.int64), 0, 0, 0.0
    for t in range(order.size):
        while come < order.size and first[by_first[come]] <= t:
            ready[count] = by_first[come]
            count, come = count + 1, come + 1
        most, total, taken = -math.inf, 0.0, 0
        for q in range(count):
            most = max(most, key[ready[q]])
        for q in range(count):
            total += math.exp(key[ready[q]] - most)
        for q in range(count):
            by_key[ready[q]] -= math.exp(key[ready[q]] - most) / total
            taken = q if ready[q] == order[t] else taken
        by_key[order[t]] += 1.0
        value += key[order[t]] - most - math.log(total)
        count -= 1
        ready[taken] = ready[count]
    return value


def devices_likelihood(
    instance: ListInstance, scores: Scores, table: Float64, schedule: PartialSchedule, decisions: Decisions
) -> tuple[Slopes, Slopes]:
    """Return the log-probability of where a schedule put operations, and the entropy of that; table: float64 [n, p]."""
    chosen = schedule.homes.device[instance.work.group].astype(np.int64)
    return device_slopes(decisions.figure, chosen, scores.device, table)


def order_likelihood(
    instance: ListInstance, scores: Scores, table: Float64, schedule: PartialSchedule, decisions: Decisions
) -> Slopes:
    """Return the log-probability of the order of a schedule; table: float64 [n], added to keys, without noise."""
    work, static, order = instance.work, instance.static, decisions.order[decisions.order >= 0]
    n = work.order.size
    position, first = np.full(n, -1), np.zeros(n, np.int64)
    position[order] = np.arange(order.size)
    reader = np.repeat(np.arange(n), np.diff(work.in_ptr))
    np.maximum.at(first, reader, position[work.in_node] + 1)
    made_s = np.zeros(n)
    np.maximum.at(made_s, reader, schedule.finish_s[work.in_node])
    figure = np.column_stack([static.key, first / n, made_s / static.bound_s])
    return order_slopes(figure, order, first, figure @ scores.key + static.tie + table)
