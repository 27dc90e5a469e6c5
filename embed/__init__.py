"""Node features, and graph neural networks that turn them into embeddings."""

TABLE = {
    "identity": "embed.identity:Identity",
    "gcn": "embed.gcn:Gcn",
    "directed": "embed.directed:Directed",
    "sage": "embed.sage:Sage",
}
