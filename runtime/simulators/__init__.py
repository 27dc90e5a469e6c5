"""Evaluators that reckon what placements cost."""
