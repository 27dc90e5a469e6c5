"""Reads graphs from files that hold no model."""
