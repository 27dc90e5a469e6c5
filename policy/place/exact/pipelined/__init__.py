"""Pipelines: the largest load of a device."""
