"""The simulator of a dataflow machine: devices and links work at the same time."""
