"""Search by moves from placement to placement."""
