"""What every module that runs torch needs: parameters as arrays, and seeded draws on one thread."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt
import torch
from torch import nn

from pipeline.core.arrays import Float32
from pipeline.core.errors import UsageError

Layer = TypeVar("Layer", bound=nn.Module)


def leaving_no_file(layer: Layer) -> Layer:
    """Return a convolution of torch_geometric, its code no longer in the folder for temporary files.

    The library writes the code of each kind of convolution there, once per process, and does not remove it.
    """
    written = Path(sys.modules[layer.propagate.__module__].__file__ or "")
    if written.parent == Path(tempfile.gettempdir()):
        written.unlink(missing_ok=True)
    return layer


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Let torch draw from `seed` and compute on one thread inside, and as before afterwards.

    torch.manual_seed would reach the generators of other devices as well, which fork_rng does not restore. On graphs
    of some hundred nodes a second thread costs more than it brings, and much more where others use the processors.
    """
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def weights_of(module: nn.Module) -> dict[str, Float32]:
    """Return copies of a module's parameters by name."""
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def load_weights(module: nn.Module, weights: Mapping[str, Float32]) -> None:
    """Put arrays into a module's parameters; no arrays at all leave it as it is.

    Raises:
        UsageError: names or shapes are not those of the module.
    """
    if not weights:
        return
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    given = {name: value.shape for name, value in weights.items()}
    if expected != given:
        wrong = sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name))
        raise UsageError(
            f"The weights do not fit {type(module).__name__}: {', '.join(wrong[:5])}.",
            "Use weights that the same implementation left with the same parameters and the same devices.",
        )
    module.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})


def moments_of(optimiser: torch.optim.Optimizer) -> dict[str, npt.NDArray[Any]]:
    """Return copies of what an optimiser remembers of its parameters, by "number.name"."""
    state = optimiser.state_dict()["state"]
    return {f"{i}.{name}": value.numpy().copy() for i, known in state.items() for name, value in known.items()}


def load_moments(optimiser: torch.optim.Optimizer, moments: Mapping[str, npt.NDArray[Any]]) -> None:
    """Let an optimiser of the same parameters remember what `moments_of` returned."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, values in moments.items():
        i, _, key = name.partition(".")
        state.setdefault(int(i), {})[key] = torch.tensor(values)
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
