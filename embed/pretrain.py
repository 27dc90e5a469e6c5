"""Training an encoder on the graph alone, before any placement has been measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn.models import DeepGraphInfomax

from pipeline.core.arrays import Float32
from pipeline.core.graph import Graph
from pipeline.core.learning import Embedding, Encoder
from pipeline.shared.torch_tools import torch_seeded, weights_of

LEARNING_RATE = 1e-3


def embed_graph(encoder: Encoder, features: Float32, graph: Graph, *, epochs: int, seed: int) -> Embedding:
    """Return the embeddings of float32 [n, f] and the encoder's parameters, after `epochs` of `pretrain`."""
    x = torch.tensor(features)
    edges = torch.tensor(graph.edges, dtype=torch.int64)
    if epochs > 0 and graph.n > 1 and any(True for _ in encoder.module.parameters()):
        pretrain(encoder, x, edges, epochs=epochs, seed=seed)
    encoder.module.eval()
    with torch.no_grad(), torch_seeded(seed):
        nodes = encoder(x, edges)
    return Embedding(nodes.numpy(), weights_of(encoder.module))


def pretrain(encoder: Encoder, features: Tensor, edges: Tensor, *, epochs: int, seed: int) -> list[float]:
    """Train the encoder in place to tell the graph's nodes from nodes with shuffled features; return the losses.

        maximise  mean log D(z_v, s) + mean log(1 - D(z'_v, s)),   D(z, s) = sigmoid(z^T W s)

    z are the embeddings of the features, z' those of the same rows in another order on the same edges, and s is the
    sigmoid of the mean of z.

    Source: Velickovic et al., "Deep Graph Infomax", ICLR 2019, section 3.4.
    """
    generator = torch.Generator().manual_seed(seed)

    def shuffled(x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        return x[torch.randperm(x.shape[0], generator=generator)], e

    def summary(z: Tensor, *_: Tensor) -> Tensor:
        return torch.sigmoid(z.mean(dim=0))

    drawn = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    losses = []
    with torch_seeded(seed):  # for the draws of DeepGraphInfomax's W and of dropout
        model: nn.Module = DeepGraphInfomax(encoder.width, encoder.module, summary, shuffled)
        encoder.module.load_state_dict(drawn)  # DeepGraphInfomax draws the encoder's parameters again
        optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        model.train()
        for _ in range(epochs):
            optimiser.zero_grad()
            loss: Tensor = model.loss(*model(features, edges))  # type: ignore[operator]
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(float(loss.detach()))
    return losses
