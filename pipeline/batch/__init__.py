"""Many jobs over one store."""
