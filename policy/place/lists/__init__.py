"""List scheduling: plans made operation by operation."""
