"""Reading a model into a Graph, and merging operations that belong together."""

TABLE = {
    "identity": "coarsen.identity:Identity",
    "fold": "coarsen.fold:Fold",
    "colocate": "coarsen.colocate:Colocate",
    "fuse": "coarsen.fuse:Fuse",
    "metis": "coarsen.metis:Metis",
    "heavy_edge": "coarsen.heavy_edge:HeavyEdge",
    "contraction": "coarsen.contraction:Contraction",
}
