"""A plain translation model: an encoder and a decoder of LSTM layers with attention at the top of the decoder.

Source: Luong, Pham, Manning, Effective Approaches to Attention-based Neural Machine Translation, 2015: dot-product
attention after the top layer (eq. 5 and 8), without input feeding. Chosen freely: all sizes.
Layers: 0 both embeddings, 1.. encoder and decoder layer i + 1, the attention in the top one, the last the softmax. Time
steps of the decoder follow those of the encoder.
"""

from __future__ import annotations

from pipeline.core.workload import Workload
from runtime.zoo.workloads.builder import USUAL, NetworkOptions, require
from runtime.zoo.workloads.recurrent import GLUE, Projection, dot_attention, embeddings, lstm, total_loss


def nmt(
    *,
    layers: int = 2,
    steps: int = 20,
    batch: int = 64,
    hidden: int = 512,
    vocab: int = 20_000,
    recipe: NetworkOptions = USUAL,
) -> Workload:
    """Return a training step of a translator of LSTM layers; `steps` is the length of source and target."""
    require(1, layers=layers)
    b = recipe.builder(GLUE)
    with b.at(layer=0):
        x = embeddings(b, "source", vocab=vocab, width=hidden, batch=batch, steps=steps)
        y = embeddings(b, "target", vocab=vocab, width=hidden, batch=batch, steps=steps, first_step=steps)
    for i in range(layers):
        x, state = lstm(b, f"enc{i}", x, hidden, layer=i + 1)
        y, _ = lstm(b, f"dec{i}", y, hidden, layer=i + 1, first_step=steps, state=state)
    with b.at("attention", layer=layers):
        with b.at(step=steps - 1):
            memory = b.stack(x, axis=1)
        combine = b.variable((2 * hidden, hidden), name="weights")
    with b.at("softmax", layer=layers + 1):
        projection = Projection.of(b, hidden, vocab)
    losses = []
    for t, h in enumerate(y):
        with b.at(f"attention/t{t}", layer=layers, step=steps + t):
            top = b.elementwise("Tanh", b.matmul(b.concat((dot_attention(b, h, memory), h)), combine))
        with b.at(f"softmax/t{t}", layer=layers + 1, step=steps + t):
            losses.append(projection.loss(b, top))
    with b.at("softmax", layer=layers + 1, step=2 * steps - 1):
        loss = total_loss(b, losses)
    return recipe.finish(b, loss)
