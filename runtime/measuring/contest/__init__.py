"""Comparing variants by turns: the space of settings, starts, the final, claims."""
