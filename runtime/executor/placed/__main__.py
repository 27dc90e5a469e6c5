"""Runs a split model from the command line: python -m placed FOLDER INPUTS.npz OUTPUTS.npz.

INPUTS.npz holds an array per input, by name; OUTPUTS.npz gets output_0, output_1, ... in the model's order.
"""

from __future__ import annotations

import sys

import numpy as np

from .model import load


def main(folder: str, inputs: str, outputs: str) -> None:
    """Run one inference."""
    with load(folder) as model, np.load(inputs, allow_pickle=False) as arrays:
        results = model({name: arrays[name] for name in arrays.files})
    named = {f"output_{i}": array for i, array in enumerate(results.to_tuple())}
    np.savez(outputs, allow_pickle=False, **named)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python -m placed FOLDER INPUTS.npz OUTPUTS.npz")
    main(*sys.argv[1:])
