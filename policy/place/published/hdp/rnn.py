"""The RNN baseline of Placeto and HSDAG: groups that are given, placed by a sequence-to-sequence network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.core.params import check_params, param
from pipeline.core.stages import Recipe
from policy.place.base.search import Method, Search
from policy.place.published.hdp.hdp import Hdp


@dataclass(frozen=True, slots=True)
class Rnn(Method):
    """Reads the groups of a graph by an LSTM and writes a device for each by another, with attention.

        loss = mean over placements of (sqrt(time) - baseline) log p(devices)

    Source: Mirhoseini et al., Device placement optimization with reinforcement learning, ICML 2017: REINFORCE with a
    moving mean as baseline, Adam, gradient norm 1. Deliberate differences: groups are those that share most, where the
    paper has groups by hand; they are described, and the network is built, as in HDP by the same authors; times count
    in those of the best single device; the answer is the best placement seen.
    """

    version: ClassVar[int] = 1
    keeps: ClassVar[bool] = True
    placers: ClassVar[tuple[str, ...]] = ("hdp",)
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"never learns": {"frozen": True}}

    groups: int = param(64, "groups at most", within="[1, inf)")
    hidden: int = param(128, "width of the decoder; the encoder has half of it in each direction", within="[1, inf)")
    samples: int = param(10, "placements drawn per update", within="[1, inf)")
    learning_rate: float = param(1e-3, "step size of Adam", within="(0, inf)")
    frozen: bool = param(False, "never learn")

    def __post_init__(self) -> None:
        check_params(self)
        self.written()

    @property
    def recipe(self) -> Recipe | None:
        """Return None: it makes its features itself."""
        return None

    def run(self, search: Search, *, seed: int) -> None:
        """Learn until the budget ends, or nothing new is drawn.

        Raises:
            UsageError: the problem has no policy inputs, or a policy to begin with that does not fit.
        """
        self.written().run(search, seed=seed)

    def written(self) -> Hdp:
        """Return this as settings of `hdp`.

        Raises:
            UsageError: they cannot learn.
        """
        own = {name: getattr(self, name) for name in ("groups", "hidden", "samples", "learning_rate", "frozen")}
        return Hdp(**own, grouper="given", noise=0.0, stop_sampling=0, seconds=False, first_baseline=0.0)
