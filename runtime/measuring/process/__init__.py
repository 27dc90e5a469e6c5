"""The measuring process: what it loads, runs and answers."""
