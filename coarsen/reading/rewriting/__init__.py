"""Rewrites of a model that compute the same, or tell what they change."""
