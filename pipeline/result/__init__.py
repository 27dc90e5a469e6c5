"""What a run found: its records, its verdict in words, its folder."""
