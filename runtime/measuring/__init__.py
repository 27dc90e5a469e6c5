"""Measuring on this machine's devices: processes, variants taking turns, profiles, precisions."""
