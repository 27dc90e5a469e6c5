"""What figures count, by name, and the files that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.errors import NAMED, UsageError
from policy.place.neural.constructing import DEVICE_FIGURES, KEY_FIGURES, Scores
from policy.place.neural.scenes import CONTEXT

SHIPPED = Path(__file__).with_name("neural_list.safetensors")
HIDDEN = "hidden"


@dataclass(frozen=True, slots=True, eq=False)
class ListPolicy:
    """Scores as linear functions of figures, whose weights are linear functions of the problem's context.

    device: float64 [len(CONTEXT), len(DEVICE_FIGURES)]; key: float64 [len(CONTEXT), len(KEY_FIGURES)]. inner: float64
    [h, len(DEVICE_FIGURES)], bias, outer: float64 [h], a hidden layer that adds to a device's score; h may be 0.
    """

    device: Float64
    key: Float64
    inner: Float64
    bias: Float64
    outer: Float64

    @classmethod
    def of_vector(cls, vector: Float64) -> ListPolicy:
        """Return the policy without a hidden layer of `vector`, see `linear`."""
        device, key = np.split(vector, [len(CONTEXT) * len(DEVICE_FIGURES)])
        return cls(
            device.reshape(len(CONTEXT), -1),
            key.reshape(len(CONTEXT), -1),
            np.zeros((0, len(DEVICE_FIGURES))),
            np.zeros(0),
            np.zeros(0),
        )

    @classmethod
    def uniform(cls) -> ListPolicy:
        """Return the policy that prefers nothing."""
        return cls.of_vector(np.zeros(LINEAR))

    @classmethod
    def untrained(cls, rng: np.random.Generator) -> ListPolicy:
        """Return a policy of normally distributed weights."""
        return cls.of_vector(rng.standard_normal(LINEAR))

    @property
    def linear(self) -> Float64:
        """Return float64 [LINEAR], the weights of figures of devices, then of keys."""
        return np.concatenate([self.device.ravel(), self.key.ravel()])

    def scores(self, context: Float64) -> Scores:
        """Return the scores in a context, float64 [len(CONTEXT)], without noise."""
        return Scores(
            context @ self.device,
            context @ self.key,
            self.inner.copy(),
            self.bias.copy(),
            self.outer.copy(),
            np.zeros((0, 0)),
            np.zeros(0),
        )

    def named(self) -> dict[str, Float64]:
        """Return every weight by the name of its figure and context: what a file holds."""
        linear = dict(zip(LINEAR_NAMES, self.linear.reshape(-1, 1), strict=True))
        columns = {f"{HIDDEN}.{name}": self.inner[:, f] for f, name in enumerate(DEVICE_FIGURES)}
        rest = {f"{HIDDEN}/bias": self.bias, f"{HIDDEN}/outer": self.outer}
        return linear | (columns | rest if self.bias.size else {})

    @classmethod
    def of_named(cls, weights: Mapping[str, Float64], where: str) -> ListPolicy:
        """Return the policy of weights by name; where: the file they come from, for messages.

        Raises:
            UsageError: they are of other figures, of other shapes, or not finite.
        """
        hidden = any(name.startswith(HIDDEN) for name in weights)
        wanted = {*LINEAR_NAMES, *(HIDDEN_NAMES if hidden else ())}
        remedy = "Train it again with `placewright train`, or leave place.neural_list.weights out."
        if wrong := sorted(wanted ^ set(weights)):
            some = ", ".join(wrong[:NAMED])
            raise UsageError(
                f"{where} holds {len(weights)} weights, not the {len(wanted)} of this version; they differ in {some}.",
                remedy,
            )
        h = weights[f"{HIDDEN}/bias"].size if hidden else 0
        shapes = {name: weights[name].shape == ((h,) if name in HIDDEN_NAMES else (1,)) for name in wanted}
        if not all(shapes.values()) or not all(np.isfinite(weights[name]).all() for name in wanted):
            raise UsageError(f"{where} holds weights that are no finite numbers, or of another shape.", remedy)
        linear = cls.of_vector(np.array([weights[name][0] for name in LINEAR_NAMES], np.float64))
        if not hidden:
            return linear
        inner = np.stack([weights[f"{HIDDEN}.{name}"] for name in DEVICE_FIGURES], axis=1).astype(np.float64)
        bias, outer = (weights[f"{HIDDEN}/{name}"].astype(np.float64) for name in ("bias", "outer"))
        return cls(linear.device, linear.key, np.ascontiguousarray(inner), bias, outer)

    @classmethod
    def read(cls, path: Path) -> ListPolicy:
        """Return the policy in a file.

        Raises:
            UsageError: the file is not there, damaged, or of another version.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return cls.of_named(load_file(path), str(path))
        except (SafetensorError, OSError) as error:
            raise UsageError(
                f"{path} cannot be read as weights of neural_list: {error}.",
                "Give a .safetensors file that `placewright train` has written.",
            ) from error

    def write(self, path: Path) -> None:
        """Write a file that `read` reads."""
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(weight) for name, weight in self.named().items()}, path)


LINEAR_NAMES = (
    *(f"device.{name}.{context}" for context in CONTEXT for name in DEVICE_FIGURES),
    *(f"key.{name}.{context}" for context in CONTEXT for name in KEY_FIGURES),
)
HIDDEN_NAMES = (*(f"{HIDDEN}.{name}" for name in DEVICE_FIGURES), f"{HIDDEN}/bias", f"{HIDDEN}/outer")
LINEAR = len(LINEAR_NAMES)


@cache
def shipped() -> ListPolicy:
    """Return the policy that comes with the package.

    Raises:
        UsageError: its file is not there or damaged.
    """
    return ListPolicy.read(SHIPPED)
