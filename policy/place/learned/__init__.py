"""Placers with learned scores that are used by default: list scheduling by learned scores, and the agent of tune."""
