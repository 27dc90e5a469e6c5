"""Reads a model: its files, its operations, their work."""
