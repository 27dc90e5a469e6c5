"""What figures count, by name, and the files that say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.errors import UsageError, list_some
from policy.place.learned.neural_list.constructing import DEVICE_FIGURES, KEY_FIGURES, PLANNED, Scores
from policy.place.learned.neural_list.static_features import CONTEXT

LEAST = 0.3  # what a weight's deviation is taken to be relative to at least, over the mean weight
SHIPPED = Path(__file__).with_name("neural_list.safetensors")


@dataclass(frozen=True, slots=True, eq=False)
class ListPolicy:
    """Scores as linear functions of figures, whose weights are linear functions of the problem's context.

    device: float64 [len(CONTEXT), len(DEVICE_FIGURES)]; key: float64 [len(CONTEXT), len(KEY_FIGURES)].
    """

    device: Float64
    key: Float64

    @classmethod
    def of_vector(cls, vector: Float64) -> ListPolicy:
        """Return the policy of float64 [LINEAR], see `linear`."""
        device, key = np.split(vector, [len(CONTEXT) * len(DEVICE_FIGURES)])
        return cls(device.reshape(len(CONTEXT), -1), key.reshape(len(CONTEXT), -1))

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
        return Scores(context @ self.device, context @ self.key, np.zeros((0, 0)))

    def adapted(self, context: Float64, scores: Scores) -> ListPolicy:
        """Return the nearest policy whose scores in a context, float64 [len(CONTEXT)], are these."""
        share, now = context / (context @ context), self.scores(context)
        return ListPolicy(
            self.device + np.outer(share, scores.device - now.device), self.key + np.outer(share, scores.key - now.key)
        )

    def near(self, spread: float, rng: np.random.Generator) -> ListPolicy:
        """Return a draw of relative deviation `spread`; weights of a schedule before stay."""
        size = np.hypot(self.linear, LEAST * np.abs(self.linear).mean())
        moved = self.linear + np.where(OF_PLAN, 0.0, spread * size) * rng.standard_normal(LINEAR)
        return ListPolicy.of_vector(moved)

    @property
    def named(self) -> dict[str, Float64]:
        """Return the weights by name, each float64 [1]."""
        return dict(zip(LINEAR_NAMES, self.linear.reshape(-1, 1).copy(), strict=True))

    @classmethod
    def of_named(cls, weights: Mapping[str, Float64], where: str) -> ListPolicy:
        """Return the policy of weights by name, the first if there are several; where: they come from, for messages.

        Raises:
            UsageError: they are of other figures, of other shapes, or not finite.
        """
        return cls.all_of_named(weights, where)[0]

    @classmethod
    def all_of_named(cls, weights: Mapping[str, Float64], where: str) -> tuple[ListPolicy, ...]:
        """Return the policies of weights by name, each float64 [policies]; where: they come from, for messages.

        Raises:
            UsageError: they are of other figures, of other shapes, or not finite.
        """
        remedy = "Train it again with `placewright train`, or leave place.neural_list.weights out."
        if wrong := sorted({*LINEAR_NAMES} ^ set(weights)):
            count = f"{len(weights)} weights, not the {LINEAR} of this version"
            raise UsageError(f"{where} holds {count}; they differ in {list_some(wrong)}.", remedy)
        shape = weights[LINEAR_NAMES[0]].shape
        alike = len(shape) == 1 and shape[0] > 0 and all(weights[name].shape == shape for name in LINEAR_NAMES)
        if not (alike and all(np.isfinite(weights[name]).all() for name in LINEAR_NAMES)):
            raise UsageError(f"{where} holds weights that are no finite numbers, or of another shape.", remedy)
        vectors = np.array([weights[name] for name in LINEAR_NAMES], np.float64).T
        return tuple(cls.of_vector(vector) for vector in vectors)

    @classmethod
    def read(cls, path: Path) -> tuple[ListPolicy, ...]:
        """Return the policies in a file, one or several.

        Raises:
            UsageError: the file is not there, damaged, or of another version.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return cls.all_of_named(load_file(path), str(path))
        except (SafetensorError, OSError) as error:
            raise UsageError(
                f"{path} cannot be read as weights of neural_list: {error}.",
                "Give a .safetensors file that `placewright train` has written.",
            ) from error

    @staticmethod
    def write(path: Path, policies: Sequence[ListPolicy]) -> None:
        """Write a file that `read` reads."""
        from safetensors.numpy import save_file

        named = [policy.named for policy in policies]
        save_file({name: np.concatenate([weights[name] for weights in named]) for name in LINEAR_NAMES}, path)


LINEAR_NAMES = (
    *(f"device.{name}.{context}" for context in CONTEXT for name in DEVICE_FIGURES),
    *(f"key.{name}.{context}" for context in CONTEXT for name in KEY_FIGURES),
)
LINEAR = len(LINEAR_NAMES)
OF_PLAN = np.array([f".{PLANNED}" in name for name in LINEAR_NAMES])


@cache
def shipped() -> tuple[ListPolicy, ...]:
    """Return the policies that come with the package, the best on its own first.

    Raises:
        UsageError: its file is not there or damaged.
    """
    return ListPolicy.read(SHIPPED)
