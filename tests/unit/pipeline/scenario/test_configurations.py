"""What is tried: the usual good first, phases in one copy and in several, and one step further from the best."""

from __future__ import annotations

from dataclasses import replace

from pipeline.core.scenario import LoadScenario, ModelLoad, Phase
from pipeline.scenario.configurations import USUAL, CandidateConfiguration, ConfigurationSpace
from runtime.measuring.contest.space import auto_batch_of
from runtime.measuring.load.bench import LoadConfiguration
from tests.unit.pipeline.scenario.test_search import CPU

PHASES = (
    ModelLoad("llm-prefill", phase=Phase("prefill", "llm", 0.1)),
    ModelLoad("llm-decode", phase=Phase("decode", "llm", 0.9)),
)


def space_of(*loads: ModelLoad, processors: int = 2) -> ConfigurationSpace:
    scenario = LoadScenario(loads, "throughput")
    return ConfigurationSpace(
        scenario, {load.name: {"CPU": CPU} for load in loads}, processors, families=scenario.families()
    )


def threads(configuration: LoadConfiguration) -> list[str]:
    return [variant.devices[0].properties["INFERENCE_NUM_THREADS"] for _, variant in configuration.models]


def test_one_thread_each_and_a_stream_per_processor_come_first() -> None:
    reserved, unpinned, streams = (c.configuration for c in space_of(ModelLoad("a"), ModelLoad("b")).first()[:USUAL])
    assert threads(reserved) == threads(unpinned) == ["1", "1"]
    assert "reserved" in reserved.name
    assert "unpinned" in unpinned.name
    assert [variant.requests for _, variant in streams.models] == [2, 2]


def test_phases_are_tried_in_one_copy_and_in_copies_of_their_own_by_turns() -> None:
    space = space_of(*PHASES, ModelLoad("cls"))
    made = [c.configuration for c in space.first()]
    assert [bool(c.shared) for c in made[:4]] == [True, False, True, False]
    one = made[0]
    assert one.variant("llm-prefill") == one.variant("llm-decode")
    assert [name for name, _ in space.compiled(one)] == ["llm", "cls"]
    assert [name for name, _ in space.compiled(made[1])] == ["llm-prefill", "llm-decode", "cls"]
    assert "one llm" in one.name
    assert len({c.identity for c in made}) == len(made) == len({c.name for c in made})
    kinds = {c.kind: bool(c.configuration.shared) for c in space.baselines(dict(made[1].models))}
    assert kinds.pop("tuned alone") is False
    assert all(kinds.values())


def test_steps_from_one_copy_change_all_phases_or_give_each_its_own() -> None:
    space = space_of(*PHASES, ModelLoad("cls"))
    first = space.first()[0]
    near = [c.configuration for c in space.around(first)]
    assert all(c.variant("llm-prefill") == c.variant("llm-decode") for c in near)
    (apart,) = [c for c in near if not c.shared]
    assert first.configuration.identity in {
        c.configuration.identity for c in space.around(CandidateConfiguration(apart))
    }


def test_priorities_are_steps_where_the_plug_in_has_them() -> None:
    gpu = replace(CPU, name="GPU", settable=frozenset({"MODEL_PRIORITY", "INFERENCE_PRECISION_HINT"}))
    scenario = LoadScenario((ModelLoad("a"), ModelLoad("b")), "throughput")
    space = ConfigurationSpace(scenario, {"a": {"GPU": gpu}, "b": {"CPU": CPU}}, 2)
    first = next(c for c in space.first())
    near = [c.name for c in space.around(first)]
    assert sum("high priority" in name for name in near) == sum("low priority" in name for name in near) == 1
    assert not any("priority" in name for name in [c.name for c in space_of(ModelLoad("a"), ModelLoad("b")).first()])


def test_batches_are_steps_that_other_steps_keep() -> None:
    space = space_of(ModelLoad("a"), ModelLoad("b"))
    first = space.first()[0]
    (four,) = [c for c in space.around(first) if "a: CPU 1 thread f32 reserved batches of 4" in c.name]
    batched = four.configuration.variant("a")
    assert (batched.target, batched.requests) == ("BATCH:CPU(4)", 8)
    assert batched.properties == {"AUTO_BATCH_TIMEOUT": "1"}
    assert four.configuration.variant("b") == first.configuration.variant("b")
    further = [c.configuration.variant("a") for c in space.around(four)]
    assert {auto_batch_of(variant) for variant in further} == {2, 4, 8}
    more = [v for v in further if v.devices[0].properties["INFERENCE_NUM_THREADS"] == "2"]
    assert more
    assert {(v.target, v.requests) for v in more} == {("BATCH:CPU(4)", 8)}
    assert not any("batches" in c.name for c in space.first())


def test_a_phase_on_its_own_is_a_model_like_others() -> None:
    assert space_of(PHASES[0], ModelLoad("cls")).families == {}
