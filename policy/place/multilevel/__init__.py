"""Clusters of many sizes, refined level by level, for graphs of which only few placements can be tried."""
