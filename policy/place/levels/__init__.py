"""Clusters of many sizes, for graphs of which only few placements can be tried."""
