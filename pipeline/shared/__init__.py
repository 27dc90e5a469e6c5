"""What several stages stand on: compiled kernels, seeded draws of torch, METIS and repairs of groupings."""
