"""Several models on one machine: the scenario file, the search, the verdict, what is written of it."""
