"""One device after another: sums of operations, transfers and launches."""
