"""HDP: a network groups operations, another one places the groups."""
