"""What the exact methods of all execution models share."""
