"""Evaluators that predict what placements cost."""
