"""Placements run concurrently: a model cut into segments, one per device and stage, and run as a dataflow."""
