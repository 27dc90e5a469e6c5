"""Fitting the simulators to measurements."""
