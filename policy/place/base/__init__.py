"""What placers are made of: the search, its history, groups of operations and their hierarchies, threads, training."""
