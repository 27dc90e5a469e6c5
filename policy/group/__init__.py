"""Groupers: nodes to groups that are placed as one."""

TABLE = {
    "identity": "policy.group.identity:Identity",
    "edge_score": "policy.group.edge_score:EdgeScore",
    "metis": "policy.group.metis:Metis",
    "cluster": "policy.group.cluster:Cluster",
    "contraction": "policy.group.contraction:Contraction",
}
