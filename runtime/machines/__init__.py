"""Devices without the hardware at hand: topologies, chips, and what operations cost on them."""
