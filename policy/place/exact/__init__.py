"""Exact methods: what all execution models share, and one folder per execution model."""
