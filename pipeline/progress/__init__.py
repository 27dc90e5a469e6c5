"""What is told while something runs: a line, curves, event files, timelines; and how it is interrupted."""
