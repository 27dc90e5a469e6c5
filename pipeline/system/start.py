"""The first code of every process that placewright starts: `python -P start.py MODULE` runs one of our modules.

Our packages are taken from beside this file, whatever else Python's path holds. Otherwise a folder called `pipeline` or
`runtime` in the working directory, or earlier on PYTHONPATH, would be imported and executed in our place.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

PACKAGES = ("pipeline", "coarsen", "embed", "policy", "runtime")
ENTRY = "placewright_entry"  # knows the same names, but where it lies is known here alone
HOME = Path(__file__).absolute().parent.parent.parent


class Ours:
    """Finds our packages, and the module that checks them, where we lie."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return what Python loads one of our packages from, None for everything else."""
        return PathFinder.find_spec(name, [str(HOME)]) if name in (*PACKAGES, ENTRY) else None


def main() -> None:
    """Run the module that the first argument names, as `python -m` does."""
    sys.meta_path.insert(0, Ours)
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
