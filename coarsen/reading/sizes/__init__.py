"""Sizes of open dimensions: stated, guessed, tried, in ranges."""
