"""A recurrent language model: layers of LSTM cells over unrolled time steps, a softmax over the vocabulary at each.

The layers and steps make a grid: a cell waits for the one before it in time and the one below it.

Source: Jozefowicz et al., Exploring the Limits of Language Modeling, 2016; batch, width and depths as in Zhou et al.,
GDP, 2019. Chosen freely: 40 time steps, a vocabulary of 10,000, the order of the gates.
Layers: 0 the embedding, 1.. the LSTM layers, the last the softmax.
"""

from __future__ import annotations

from typing import Literal

from pipeline.core.workload import Workload
from runtime.zoo.workloads.builder import USUAL, NetworkOptions, require
from runtime.zoo.workloads.recurrent import GLUE, Projection, embeddings, lstm, total_loss


def rnnlm(
    *,
    layers: int = 2,
    steps: int = 40,
    batch: int = 64,
    hidden: int = 2048,
    vocab: int = 10_000,
    softmax: Literal["per-step", "time-major"] = "per-step",
    recipe: NetworkOptions = USUAL,
) -> Workload:
    """Return a training step of a language model of LSTM layers.

    softmax: "per-step": a product with the vocabulary per time step; "time-major": one for all steps at once.
    """
    require(1, layers=layers)
    b = recipe.builder(GLUE)
    with b.at(layer=0):
        x = embeddings(b, "embedding", vocab=vocab, width=hidden, batch=batch, steps=steps)
    for i in range(layers):
        x, _ = lstm(b, f"lstm{i}", x, hidden, layer=i + 1)
    with b.at("softmax", layer=layers + 1):
        projection = Projection.of(b, hidden, vocab)
        if softmax == "time-major":
            with b.at(step=steps - 1):
                losses = [projection.loss(b, b.reshape(b.stack(x), (steps * batch, hidden)))]
        else:
            losses = []
            for t, h in enumerate(x):
                with b.at(f"t{t}", step=t):
                    losses.append(projection.loss(b, h))
        with b.at(step=steps - 1):
            loss = total_loss(b, losses)
    return recipe.finish(b, loss)
