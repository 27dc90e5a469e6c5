"""Settings of a run: the registry of implementations, what they declare, configuration files."""
