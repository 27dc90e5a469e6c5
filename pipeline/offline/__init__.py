"""Searching without hardware: what a user names, and what search, simulate and bound answer."""
