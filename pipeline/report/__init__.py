"""The face of a run: a self-contained page made of the records of its directory, and the same for other tools."""
