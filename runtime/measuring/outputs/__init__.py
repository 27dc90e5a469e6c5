"""Comparing the outputs of two computations of a model."""
