"""Placeto: one node after another is placed again by a network that sees the whole graph."""
