"""What a simulator tells of an answer that was measured: which operations need their device, and what others cost."""

from __future__ import annotations

from pipeline.core.deadline import Deadline
from pipeline.core.devices import CostTable, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from pipeline.core.stages import Predictor, Simulator, Subject
from pipeline.placing.records import MeasuredRow
from pipeline.placing.setup import problem_of
from pipeline.placing.single_moves import RegretRecord, regrets
from pipeline.result.deployment import runs_in_segments
from pipeline.settings import registry
from pipeline.settings.config import Settings

CONCURRENT = "listsched"  # the simulator of devices that work at the same time
REGRET_S = 1.0  # that telling second-best devices takes at most
MOST = 100  # operations of which they are told


def simulator_of_answer(
    settings: Settings, graph: Graph, profile: tuple[CostTable, Topology], *, in_segments: bool
) -> Simulator | None:
    """Return the simulator that the run searched with, or that of a dataflow where the answer runs in segments.

    None where what the run asked does not predict.

    Raises:
        PlacewrightError: it is not to be had.
    """
    name = CONCURRENT if in_segments else settings.place.evaluator
    measurer = registry.build_implementation("measure", name, settings.params_of("measure", name))
    if not isinstance(measurer, Predictor):
        return None
    costs, topology = profile
    return measurer.bind(Subject(None, graph, Grouping.identity(graph.n), topology, costs, settings.seed))


def second_best_devices(
    settings: Settings, graph: Graph, profile: tuple[CostTable, Topology], answer: MeasuredRow
) -> list[RegretRecord]:
    """Return what the second-best device of operations costs, most first, by the profile and in a simulator.

    Nothing where the answer does not split the model as it was profiled, or nothing predicts.
    """
    costs, topology = profile
    used = set((answer["placement"] or {}).values())
    if len(used) < 2 or not used <= set(topology.names) or answer.get("rewrite"):
        return []
    simulator = simulator_of_answer(settings, graph, profile, in_segments=runs_in_segments(answer["target"]))
    if simulator is None:
        return []
    placement = Placement.from_document(answer, graph.names, topology.names)
    problem = problem_of(graph, topology, costs)
    return regrets(problem, simulator, placement, deadline=Deadline.after(REGRET_S))[:MOST]
