"""What outlives a process: the store and its tasks, the files in it, and the checkpoints of placers that learn."""
