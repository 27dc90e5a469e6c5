"""Rules of thumb: placements without a search."""
