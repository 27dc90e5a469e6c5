"""The store: artifacts by key, tasks that make them, checkpoints of searches."""
