"""Three families of 32 training graphs each, re-created by kind and size: cells of a search space, and translators.

A node is a group of operations: what one operation of a cell, or one layer at one time step, does forward, or
backward with the update of its weights. Means over a family lie near 300, 500 and 190 nodes.

Sources: Addanki et al., Placeto (NeurIPS 2019), section 4.1, for the families; Pham et al., Efficient Neural
Architecture Search via Parameter Sharing (ICML 2018), for the two search spaces; Luong et al., Effective Approaches to
Attention-based Neural Machine Translation (2015), for the translators. Sizes of layers and batches are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.graph import Grouping, contract
from pipeline.core.workload import Tags, Workload
from runtime.zoo.workloads.builder import Builder
from runtime.zoo.workloads.gnmt import Attention
from runtime.zoo.workloads.nasnet import OPERATIONS
from runtime.zoo.workloads.recurrent import dot_attention, lstm

GRAPHS = 32
SPLIT = (16, 4, 12)
FAMILIES = ("nas-cnn", "nas-rnn", "nas-nmt")

CNN_OPS = ("separable3", "separable5", "average", "maximum", "identity")
ACTIVATIONS = ("Tanh", "Relu", "Sigmoid", "identity")


def split(family: str, *, seed: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the indices of 16 graphs to learn from, 4 to choose by and 12 to test on.

    Raises:
        UnknownNameError: there is no such family.
    """
    if family not in FAMILIES:
        raise UnknownNameError("family", family, FAMILIES)
    order = np.random.default_rng([seed, FAMILIES.index(family)]).permutation(GRAPHS).tolist()
    train, val, _ = SPLIT
    return tuple(order[:train]), tuple(order[train : train + val]), tuple(order[train + val :])


class CellNode(NamedTuple):
    """What a node of a convolutional cell does: an operation on each of two earlier nodes, added up."""

    inputs: tuple[int, int]
    ops: tuple[str, str]


def nas_cnn(*, seed: int = 0, index: int = 0, batch: int = 32, filters: int = 192, grouped: bool = True) -> Workload:
    """Return a training step of a convolutional network of random cells on images of 32 x 32.

    Three stages of equal cells with a reducing cell between them, which halves the image and doubles the channels.
    filters: channels of the first stage. grouped: whether nodes are groups of operations, or operations.
    """
    rng = _generator_of("nas-cnn", index, seed)
    nodes, cells = int(rng.integers(5, 8)), int(rng.integers(2, 5))
    # What each node of a random cell does; nodes 0 and 1 are the cell's inputs
    designs = {
        reduces: [
            CellNode((int(rng.integers(i)), int(rng.integers(i))), (str(rng.choice(CNN_OPS)), str(rng.choice(CNN_OPS))))
            for i in range(2, nodes + 2)
        ]
        for reduces in (False, True)
    }
    b = Builder("core")
    with b.at("stem", layer=0):
        image = b.placeholder((batch, 32, 32, 3))
        before = last = b.batch_norm(b.conv(image, filters, 3))
    reducing = (cells, 2 * cells + 1)
    for layer in range(3 * cells + 2):
        stride = 2 if layer in reducing else 1
        filters *= stride
        with b.at(f"cell{layer}", layer=layer + 1):
            before, last = last, _cell_of(b, designs[stride == 2], (before, last), filters, stride)
    with b.at("head", layer=3 * cells + 3):
        loss = b.reduce("Mean", b.cross_entropy(b.dense(b.reduce("Mean", b.elementwise("Relu", last), (1, 2)), 10)))
    return _training_step(b, loss, grouped=grouped)


def nas_rnn(
    *,
    seed: int = 0,
    index: int = 0,
    batch: int = 128,
    hidden: int = 1024,
    vocabulary: int = 10_000,
    grouped: bool = True,
) -> Workload:
    """Return a training step of a language model: a random recurrent cell, unrolled over 16 to 24 time steps.

    Each of a cell's 8 to 12 nodes mixes an earlier node with a function of it, by a gate; the mean of the nodes that
    no other reads is the output. grouped: whether nodes are groups of operations, or operations.
    """
    rng = _generator_of("nas-rnn", index, seed)
    nodes, steps = int(rng.integers(8, 13)), int(rng.integers(16, 25))
    source = [0, *(int(rng.integers(0, i)) for i in range(1, nodes))]
    activation = ["Tanh", *rng.choice(ACTIVATIONS, nodes - 1).tolist()]
    b = Builder("core")
    words = _embed_steps(b, "embed", (batch, steps, hidden), vocabulary)
    weights = []
    for i in range(nodes):
        with b.at(f"weights{i}", layer=i + 1):
            weights.append(b.variable((hidden if i else 2 * hidden, 2 * hidden)))
    with b.at("softmax", layer=nodes + 2):
        output = b.variable((hidden, vocabulary))
    with b.at("t0/n0", layer=1, step=0):
        state = b.placeholder((batch, hidden))
    losses = []
    for t in range(steps):
        values: list[int] = []
        for i in range(nodes):
            with b.at(f"t{t}/n{i}", layer=i + 1, step=t):
                old = values[source[i]] if i else state
                read = old if i else b.concat([words[t], state])
                values.append(_highway_node(b, old, read, weights[i], activation[i]))
        with b.at(f"t{t}/out", layer=nodes + 1, step=t):
            ends = [values[i] for i in range(nodes) if i not in source[1:]]
            state = b.elementwise("Scale", b.elementwise("Add", *ends)) if len(ends) > 1 else ends[0]
        losses.append(_step_loss(b, f"t{t}/softmax", state, output, at=(nodes + 2, t)))
    return _training_step(b, b.elementwise("Add", *losses), grouped=grouped)


def nas_nmt(
    *,
    seed: int = 0,
    index: int = 0,
    batch: int = 128,
    hidden: int = 1024,
    vocabulary: int = 16_000,
    grouped: bool = True,
) -> Workload:
    """Return a training step of an unrolled encoder and decoder of one to three LSTM layers.

    Depth, lengths, attention and whether the encoder's first layer reads both ways are random. grouped: whether nodes
    are groups of operations, or operations.
    """
    rng = _generator_of("nas-nmt", index, seed)
    depth, (length, guesses) = int(rng.integers(1, 4)), rng.integers(8, 19, 2).tolist()
    attention, both_ways = str(rng.choice(("none", "dot", "additive"))), bool(rng.integers(2))
    b = Builder("core")
    x = _embed_steps(b, "embed/source", (batch, length, hidden), vocabulary)
    y = _embed_steps(b, "embed/target", (batch, guesses, hidden), vocabulary)
    states = []
    for i in range(depth):
        x, state = lstm(b, f"encoder{i}", x, hidden, layer=i + 1)
        states.append(state)
        if i == 0 and both_ways:
            x, _ = lstm(b, "encoder0b", x[::-1], hidden, layer=1)
            x = x[::-1]
    for i, state in enumerate(states):
        y, _ = lstm(b, f"decoder{i}", y, hidden, layer=depth + i + 1, state=state)
    if attention != "none":
        y = _attend(b, x, y, layer=2 * depth + 1, additive=attention == "additive")
    with b.at("softmax", layer=2 * depth + 2):
        output = b.variable((hidden, vocabulary))
    losses = [_step_loss(b, f"softmax/t{t}", h, output, at=(2 * depth + 2, t)) for t, h in enumerate(y)]
    return _training_step(b, b.elementwise("Add", *losses), grouped=grouped)


def _generator_of(family: str, index: int, seed: int) -> np.random.Generator:
    """Return the source of all choices of one graph."""
    if not 0 <= index < GRAPHS:
        raise UsageError(f"{family} has no graph {index}.", f"Give an index from 0 to {GRAPHS - 1}.")
    return np.random.default_rng([seed, FAMILIES.index(family), index])


def _training_step(b: Builder, loss: int, *, grouped: bool) -> Workload:
    """Return the training step, its operations merged by scope: one group forward, one backward.

    The backward group of a scope updates the scope's weights, so it shares a device with the forward group.
    """
    forward = len(b.record.names)
    b.training(loss)
    whole = b.workload()
    if not grouped:
        return whole
    # Forward "scope/op"; backward "grad/scope/op/d0"; updates "scope/variable/Apply".
    scopes = [
        (i < forward, tuple(name.removeprefix("grad/").split("/")[: -1 if i < forward else -2]))
        for i, name in enumerate(whole.graph.names)
    ]
    number = {scope: k for k, scope in enumerate(dict.fromkeys(scopes))}
    graph = contract(whole.graph, Grouping(np.array([number[scope] for scope in scopes], np.int32)))
    where = {name: i for i, name in enumerate(whole.graph.names)}
    head = np.array([where[name] for name in graph.names])
    return Workload(graph, Tags(whole.tags.layer[head], whole.tags.step[head]))


def _cell_of(b: Builder, design: list[CellNode], inputs: tuple[int, int], filters: int, stride: int) -> int:
    """Return the joined outputs of the nodes of a cell that no other node reads."""
    values = []
    for side, x in enumerate(inputs):
        with b.at(f"in{side}"):
            # The input from two cells before may still have the image size of before the last reduction.
            step = b.shape(x)[1] // (b.shape(inputs[1])[1] // stride)
            values.append(b.batch_norm(b.conv(b.elementwise("Relu", x), filters, 1, step)))
    for i, choice in enumerate(design):
        first, second = (values[j] for j in choice.inputs)
        with b.at(f"n{i}a"):
            first = OPERATIONS[choice.ops[0]](b, first, 1)
        # The sum belongs to the second operation, unless that is none.
        with b.at(f"n{i}a" if choice.ops[1] == "identity" else f"n{i}b"):
            values.append(b.elementwise("Add", first, OPERATIONS[choice.ops[1]](b, second, 1)))
    used = {j for choice in design for j in choice.inputs}
    with b.at("out"):
        return b.concat([values[i] for i in range(2, len(values)) if i not in used])


def _embed_steps(b: Builder, scope: str, shape: tuple[int, int, int], vocabulary: int) -> list[int]:
    """Return the vectors of each time step's words; shape: batch, steps, width."""
    with b.at(scope, layer=0):
        rows = b.gather(b.variable((vocabulary, shape[2])), b.placeholder(shape[:2]))
        return [b.reshape(part, (shape[0], shape[2])) for part in b.split(rows, shape[1], 1)]


def _step_loss(b: Builder, scope: str, state: int, output: int, *, at: tuple[int, int]) -> int:
    """Return the loss of one time step's guess of a word; at: layer and time step."""
    with b.at(scope, layer=at[0], step=at[1]):
        return b.reduce("Sum", b.cross_entropy(b.matmul(state, output)))


def _highway_node(b: Builder, old: int, read: int, weights: int, activation: str) -> int:
    """Return old + sigmoid(a) * (activation(h) - old), where a and h are the halves of read times weights."""
    gate, new = b.split(b.matmul(read, weights), 2)
    new = new if activation == "identity" else b.elementwise(activation, new)
    change = b.elementwise("Mul", b.elementwise("Sigmoid", gate), b.elementwise("Sub", new, old))
    return b.elementwise("Add", old, change)


def _attend(b: Builder, read: Sequence[int], states: Sequence[int], *, layer: int, additive: bool) -> list[int]:
    """Return the decoder's states, each mixed with what it attends to of the encoder's outputs."""
    hidden = b.shape(read[0])[1]
    with b.at("combine", layer=layer):
        combine = b.variable((2 * hidden, hidden))
    if additive:
        attention = Attention.over(b, read, hidden)
    else:
        with b.at("memory", layer=layer):
            memory = b.stack(read, axis=1)
    mixed = []
    for t, h in enumerate(states):
        with b.at(f"attention/t{t}", layer=layer, step=t):
            context = attention.step(b, h) if additive else dot_attention(b, h, memory)
            mixed.append(b.elementwise("Tanh", b.matmul(b.concat((context, h)), combine)))
    return mixed
