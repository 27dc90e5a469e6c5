"""The machine and its processes: starting them, talking to them, locks, folders."""
