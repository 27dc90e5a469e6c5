"""HDP: a network groups operations, and a sequence-to-sequence network with attention places the groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.learning import Snapshot
from pipeline.core.params import check_params, param
from pipeline.core.stages import Recipe
from pipeline.shared.torch_tools import load_weights, torch_seeded, weights_of
from policy.place.base.groups import Groups
from policy.place.base.hierarchy import hierarchy
from policy.place.base.search import Method, Search, policy_of
from policy.place.base.training import check_policy, train
from policy.place.published.hdp.features import types_of
from policy.place.published.hdp.network import HdpNetwork
from policy.place.published.hdp.trainer import HdpHyperparameters, HdpTrainer

POLICY_SCHEMA = "placewright.policy/hdp/1"
MOST_GROUPS, GROUPS_PER_DEVICE = 256, 20


@dataclass(frozen=True, slots=True)
class Hdp(Method):
    """Learns to group operations, and to place the groups one after another.

        group of an operation ~ softmax(Linear(Linear(its 46 numbers)))
        devices of the groups ~ LSTM that reads all groups and writes devices, with attention
        loss = mean over placements of (sqrt(time) - baseline) (log p(grouping) + log p(devices))

    Per update one grouping and four placements of it. The baseline is a moving mean of decay 0.9 that begins with 10,
    the root of the 100 seconds that a placement which fails is said to take. Logits carry noise up to update 750. From
    update 500 on devices are those of the best draw, and only groupings are drawn. The step size falls by 5 % every 50
    updates from the 400th on.

    Source: Mirhoseini et al., A Hierarchical Model for Device Placement, ICLR 2018, and the hierarchical controller in
    TensorFlow's grappler, which names the numbers that the paper leaves out. Deliberate differences: an operation knows
    all its in-edges and counts of types hold no dimensions, which are faults there; indices and dimensions are scaled
    unless `raw`; an operation whose group's device it may not use goes where it is fastest, and weights that exceed a
    memory are moved; the answer is the best placement seen.
    """

    version: ClassVar[int] = 1
    keeps: ClassVar[bool] = True
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"never learns": {"frozen": True}}

    groups: int = param(0, "groups; 0: 20 per device, 256 at most")
    grouper: Literal["learned", "given"] = param(
        "learned", "learned: a network draws the groups; given: those that share most, as many"
    )
    hidden: int = param(512, "width of the decoder; the encoder has half of it in each direction", within="[1, inf)")
    samples: int = param(4, "placements drawn per grouping", within="[1, inf)")
    learning_rate: float = param(0.1, "step size of Adam, as published; 0.001 learns more steadily", within="(0, inf)")
    clip_norm: float = param(1.0, "greatest norm of a gradient", within="(0, inf)")
    first_baseline: float = param(10.0, "what the baseline begins with; 0: the mean of the first update")
    tanh_clip: float = param(5.0, "greatest absolute logit; the published code has 1", within="(0, inf)")
    temperature: float = param(10.0, "what logits are divided by; the published code has 1", within="(0, inf)")
    noise: float = param(0.5, "deviation of the noise on logits, over their root mean square")
    noise_until: int = param(750, "updates with noise")
    stop_sampling: int = param(500, "updates after which devices are no longer drawn; 0: they always are")
    seconds: bool = param(True, "count times in seconds, as published; otherwise in those of the best single device")
    raw: bool = param(False, "tell indices and dimensions as they are, as the published code does")
    frozen: bool = param(False, "never learn")
    patience: int = param(20, "end after so many updates in a row that asked about nothing", within="[1, inf)")

    def __post_init__(self) -> None:
        check_params(self)
        if self.hidden % 2:
            raise UsageError(f"hidden is {self.hidden}.", "Use an even width: each direction has half of it.")
        if self.grouper not in ("learned", "given"):
            raise UnknownNameError("grouper", self.grouper, ("learned", "given"))

    @property
    def recipe(self) -> Recipe | None:
        """Return None: it groups the groups of the run, and makes its features itself."""
        return None

    def run(self, search: Search, *, seed: int) -> None:
        """Learn until the budget ends, or nothing new is drawn.

        Raises:
            UsageError: the problem has no policy inputs, or a policy to begin with that does not fit.
        """
        inputs = policy_of(search.problem, "hdp")
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        with torch_seeded(seeds[0]):
            trainer = self.trainer(search, inputs.learned, seed=seeds[1])
            search.expect("update", self.samples)
            train(trainer, inputs, patience=self.patience)
        if inputs.checkpointer is not None:
            inputs.checkpointer.publish(published(trainer, self))

    def trainer(self, search: Search, learned: Snapshot | None = None, *, seed: int) -> HdpTrainer:
        """Return what trains fresh networks, or learned ones; weights are drawn from torch's own generator.

        Raises:
            UsageError: the policy learned before does not fit.
        """
        p = search.problem.topology.p
        most = self.groups or min(MOST_GROUPS, GROUPS_PER_DEVICE * p)
        given = None if self.grouper == "learned" else hierarchy(search.problem, least=most)[-1].groups.grouping
        sizes = {"devices": p, "groups": most if given is None else given.k, "hidden": self.hidden}
        sizes |= {"raw": self.raw}
        types = types_of(Groups.of(search.problem))
        if learned is not None:
            check_policy(learned, schema=POLICY_SCHEMA, placer="hdp", sizes=sizes)
            types = tuple(learned.facts["types"])
        network = HdpNetwork(
            len(types), sizes["groups"], self.hidden, p, clip=self.tanh_clip, temperature=self.temperature
        )
        if learned is not None:
            load_weights(network, {name: np.asarray(values, np.float32) for name, values in learned.arrays.items()})
        hyper = HdpHyperparameters(**{f.name: getattr(self, f.name) for f in fields(HdpHyperparameters)})
        return HdpTrainer(search, network, types, hyper, seed=seed, given=given)


def published(trainer: HdpTrainer, params: Hdp) -> Snapshot:
    """Return the policy for other graphs on as many devices: its parameters, and the recipe to build it again."""
    facts = {
        "schema": POLICY_SCHEMA,
        "placer": "hdp",
        "params": asdict(params),
        "devices": trainer.network.devices,
        "groups": trainer.network.groups,
        "hidden": params.hidden,
        "raw": params.raw,
        "types": list(trainer.known.types),
        "trained_on": {
            "operations": trainer.search.problem.graph.n,
            "evaluations": trainer.search.spent,
            "updates": trainer.updates,
        },
    }
    return Snapshot(weights_of(trainer.network), facts)
