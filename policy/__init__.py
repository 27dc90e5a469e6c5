"""Grouping nodes, placing groups, and the algorithms that learn to do both."""
