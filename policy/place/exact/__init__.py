"""Proofs: lower bounds, minimum cuts, constraint programs."""
