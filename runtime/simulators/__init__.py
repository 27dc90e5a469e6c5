"""Evaluators that predict what placements cost: one folder per execution model, and what they share."""
