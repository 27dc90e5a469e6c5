"""Search by moves from placement to placement, and by crossing and sampling them."""
