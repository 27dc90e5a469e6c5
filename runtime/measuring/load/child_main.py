"""Starts the measuring child that holds several models at once."""

from __future__ import annotations

from runtime.measuring.process.child_main import main

if __name__ == "__main__":
    main("runtime.measuring.load.worker")
