"""The simulator of a pipeline in its steady state."""
