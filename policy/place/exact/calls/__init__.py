"""Single inferences in which accelerators are called with sets of operations."""
