"""The simulator of single inferences: accelerators are called with sets of operations."""
