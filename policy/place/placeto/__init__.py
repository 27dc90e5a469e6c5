"""Placeto: one node after another is placed anew by a network that sees the whole graph."""
