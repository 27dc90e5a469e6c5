"""Learned contraction: how likely both ends of an edge share a device, and groups made of that."""
