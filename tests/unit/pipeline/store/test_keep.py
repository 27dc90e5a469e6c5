"""Snapshots of learning placers: what is kept is found again whole, or not at all."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

import pipeline
import policy.place
from pipeline.core.errors import StoreError, UsageError
from pipeline.core.graph import Grouping
from pipeline.core.learning import Checkpointer, Snapshot
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, ProgressHook
from pipeline.core.stages import Answer, Candidate, Evaluator
from pipeline.core.tensors import INFERRED
from pipeline.store.checkpoint import (
    FolderCheckpointer,
    collect_policies,
    problem_digest,
    read_policy,
    replace_file,
    with_checkpointer,
)
from tests.toys import toy_graph, toy_problem

TYPES = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64")


def snapshot(value: float = 1.0) -> Snapshot:
    rng = np.random.default_rng(3)
    arrays = {f"of.{kind}": (rng.random((3, 4)) * 100).astype(kind) for kind in TYPES}
    arrays |= {
        "w": np.array([value, np.nan, -0.0, np.inf]),
        "number": np.array(value),
        "none": np.zeros((0, 5), np.int32),
    }
    facts = {"recipe": {"grouper": "edge_score", "width": 64}, "value": value, "rng": 2**127 + 1, "steps": [1, 2]}
    return Snapshot(arrays, facts)


def assert_same(found: Snapshot | None, expected: Snapshot) -> None:
    assert found is not None
    assert found.facts == expected.facts
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)
        assert found.arrays[name].tobytes() == array.tobytes()


def test_a_state_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    checkpointer: Checkpointer = FolderCheckpointer(tmp_path / "new", "c")
    assert checkpointer.load() is None
    checkpointer.save(snapshot())
    assert_same(FolderCheckpointer(tmp_path / "new", "c").load(), snapshot())


def test_the_last_state_counts(tmp_path: Path) -> None:
    checkpointer = FolderCheckpointer(tmp_path, "c")
    checkpointer.save(snapshot(1.0))
    checkpointer.save(snapshot(2.0))
    assert_same(checkpointer.load(), snapshot(2.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.json", "state.safetensors"]


def test_arrays_in_any_order_of_memory_keep_their_values(tmp_path: Path) -> None:
    checkpointer = FolderCheckpointer(tmp_path, "c")
    turned, swapped = np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">i4")
    checkpointer.save(Snapshot({"turned": turned, "swapped": swapped}, {}))
    found = checkpointer.load()
    assert found is not None
    np.testing.assert_array_equal(found.arrays["turned"], turned)
    np.testing.assert_array_equal(found.arrays["swapped"], swapped)


def test_numbers_that_json_has_no_words_for_are_read_back(tmp_path: Path) -> None:
    checkpointer = FolderCheckpointer(tmp_path, "c")
    checkpointer.save(Snapshot({}, {"best": float("inf"), "tenth": 0.1}))
    found = checkpointer.load()
    assert found is not None
    assert found.facts == {"best": float("inf"), "tenth": 0.1}


def test_objects_are_not_written(tmp_path: Path) -> None:
    checkpointer = FolderCheckpointer(tmp_path, "c")
    checkpointer.save(snapshot())
    with pytest.raises(TypeError):
        checkpointer.save(Snapshot({}, {"path": tmp_path}))
    with pytest.raises(SafetensorError, match="object"):
        checkpointer.save(Snapshot({"o": np.array([{}], dtype=object)}, {}))
    assert_same(checkpointer.load(), snapshot())


def test_a_state_of_another_search_is_not_gone_on_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FolderCheckpointer(tmp_path, "one").save(snapshot())
    with caplog.at_level(logging.WARNING):
        assert FolderCheckpointer(tmp_path, "other").load() is None
    assert "another search" in caplog.text
    assert_same(FolderCheckpointer(tmp_path, "one").load(), snapshot())


def damages(content: bytes) -> dict[str, bytes]:
    """Return what may become of a file, by the name of the mishap."""
    flipped = bytearray(content)
    flipped[-3] ^= 1
    return {
        "empty": b"",
        "cut": content[:-5],
        "cut in its head": content[:40],
        "one bit flipped": bytes(flipped),
        "facts changed": content.replace(b"edge_score", b"edge_sc0re"),
        "context changed": content.replace(b'"context":"c"', b'"context":"d"'),
        "zeros": bytes(len(content)),
        "something else": b"PK\x03\x04 an archive of something else, long enough to have a head",
    }


@pytest.mark.parametrize("mishap", damages(bytes(3)))
def test_a_damaged_state_is_absent_and_a_damaged_policy_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mishap: str
) -> None:
    checkpointer = FolderCheckpointer(tmp_path, "c")
    checkpointer.save(snapshot())
    checkpointer.publish(snapshot())
    for name in ("state", "policy"):
        path = tmp_path / f"{name}.safetensors"
        content = path.read_bytes()
        changed = damages(content)[mishap]
        assert changed != content
        path.write_bytes(changed)
    with caplog.at_level(logging.WARNING):
        assert checkpointer.load() is None
    assert "state.safetensors" in caplog.text
    with pytest.raises(UsageError, match="cannot be used as a policy"):
        read_policy(tmp_path)


@pytest.mark.parametrize("step", range(1, 5))
def test_a_process_killed_at_any_step_of_saving_leaves_a_whole_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The steps: facts for people written, renamed, the state written, renamed; the kill comes amid the `step`-th."""
    checkpointer = FolderCheckpointer(tmp_path, "c")
    checkpointer.save(snapshot(1.0))
    left = step

    class KilledError(BaseException):
        pass

    def mortal(name: str) -> Any:
        whole = getattr(Path, name)

        def method(self: Path, *args: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if name == "write_bytes":
                    whole(self, args[0][: len(args[0]) // 2])
                raise KilledError
            return whole(self, *args)

        return method

    with monkeypatch.context() as patched:
        for name in ("write_bytes", "replace"):
            patched.setattr(Path, name, mortal(name))
        with pytest.raises(KilledError):
            checkpointer.save(snapshot(2.0))
    assert_same(checkpointer.load(), snapshot(1.0))
    checkpointer.save(snapshot(3.0))
    assert_same(checkpointer.load(), snapshot(3.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.json", "state.safetensors"]


def test_what_cannot_be_written_is_a_store_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = FolderCheckpointer(tmp_path, "c")
    checkpointer.save(snapshot(1.0))

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(StoreError, match="No space left"):
            checkpointer.save(snapshot(2.0))
    assert_same(checkpointer.load(), snapshot(1.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.json", "state.safetensors"]
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be written"):
        replace_file(tmp_path / "file" / "below", b"")


def test_a_policy_is_read_from_its_file_and_from_its_folder(tmp_path: Path) -> None:
    FolderCheckpointer(tmp_path, "c").publish(snapshot())
    assert_same(read_policy(tmp_path), snapshot())
    assert_same(read_policy(tmp_path / "policy.safetensors"), snapshot())


def test_people_can_read_the_recipe_beside_the_policy(tmp_path: Path) -> None:
    FolderCheckpointer(tmp_path, "c").publish(snapshot())
    told = json.loads((tmp_path / "policy.json").read_text(encoding="utf-8"))
    assert told["facts"] == snapshot().facts
    assert told["arrays"]["of.int32"] == ["int32", 3, 4]


def test_a_policy_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Policy not found"):
        read_policy(tmp_path)
    with pytest.raises(UsageError, match="Policy not found"):
        read_policy(tmp_path / "absent.safetensors")
    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "foreign.safetensors")
    with pytest.raises(UsageError, match="holds no policy"):
        read_policy(tmp_path / "foreign.safetensors")
    FolderCheckpointer(tmp_path, "c").save(snapshot())
    with pytest.raises(UsageError, match="holds no policy"):
        read_policy(tmp_path / "state.safetensors")


def test_policies_of_several_placers_have_names_of_their_own(tmp_path: Path) -> None:
    FolderCheckpointer(tmp_path / "kept" / "a", "c").publish(snapshot(1.0))
    for turn, value, changed in (("1", 5.0, 1), ("2", 0.0, 3), ("3", 6.0, 2)):
        FolderCheckpointer(tmp_path / "kept" / "b" / turn, "c").publish(snapshot(value))
        os.utime(tmp_path / "kept" / "b" / turn / "policy.safetensors", ns=(changed, changed))
    FolderCheckpointer(tmp_path / "kept" / "learns_on", "c").save(snapshot())
    collect_policies(tmp_path / "kept", ["greedy", "b", "learns_on", "a", "b"], tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        *("policy-a.json", "policy-a.safetensors", "policy.json", "policy.safetensors")
    ]
    assert_same(read_policy(tmp_path / "out"), snapshot(0.0))
    assert_same(read_policy(tmp_path / "out" / "policy-a.safetensors"), snapshot(1.0))


def problem() -> Problem:
    return toy_problem(toy_graph(3, [(0, 1), (1, 2)]), np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]]))


def test_a_problem_is_kept_only_where_something_learns(tmp_path: Path) -> None:
    found = with_checkpointer(problem(), tmp_path, "hsdag", 1).policy
    assert found is not None
    assert found.checkpointer == FolderCheckpointer(tmp_path, problem_digest(problem(), "hsdag", 1))
    silent = replace(problem(), policy=None)
    assert with_checkpointer(silent, tmp_path, "hsdag", 1) is silent


def test_equal_problems_have_equal_digests_whatever_keeps_them(tmp_path: Path) -> None:
    assert problem_digest(problem(), "hsdag", 1) == problem_digest(problem(), "hsdag", 1)
    assert problem_digest(with_checkpointer(problem(), tmp_path, "c"), 1) == problem_digest(problem(), 1)


def test_whatever_a_search_depends_on_changes_the_digest() -> None:
    p = problem()
    assert p.policy is not None
    assert p.costs is not None
    cheaper = replace(p.costs, op_s=p.costs.op_s * 0.5)
    others = [
        p.on(costs=cheaper),
        p.on(costs=None),
        replace(p, ordered=True),
        p.on(allowed=np.array([[True, False], [True, True], [True, True]])),
        p.on(grouping=Grouping(np.array([0, 0, 1], np.int32))),
        p.on(graph=replace(p.graph, edges=np.array([[0, 0], [1, 2]], np.int32), reads=INFERRED)),
        p.on(topology=replace(p.topology, link_latency_s=p.topology.link_latency_s * 2)),
        replace(p, policy=None),
        replace(p, policy=replace(p.policy, features=p.policy.features + 1)),
        replace(p, policy=replace(p.policy, embedder=toy_embedder())),
        replace(p, policy=replace(p.policy, encoder_weights={"w": np.zeros(2, np.float32)})),
        replace(p, policy=replace(p.policy, learned=snapshot(1.0))),
        replace(p, policy=replace(p.policy, learned=snapshot(2.0))),
    ]
    digests = {problem_digest(p, 0), problem_digest(p, 1), *(problem_digest(other, 0) for other in others)}
    assert len(digests) == len(others) + 2


def toy_embedder() -> Any:
    from pipeline.settings.registry import build_implementation

    return build_implementation("embed", "directed", {"width": 7})


@dataclass(frozen=True, slots=True)
class Counts:
    """Stands for a placer that learns: it counts its searches, and begins with what a policy counted."""

    version: ClassVar[int] = 1
    keeps: ClassVar[bool] = True
    step: int = param(1, "counted per search")

    @property
    def recipe(self) -> None:
        """Bring no stages along."""

    def place(
        self, problem: Problem, evaluator: Evaluator, budget: Budget, *, seed: int, progress: ProgressHook
    ) -> Answer:
        """Return the one placement on the first device, found by as many searches as were counted."""
        policy = problem.policy
        assert policy is not None
        state = None if policy.checkpointer is None else policy.checkpointer.load()
        begun = state or policy.learned
        count = self.step + (0 if begun is None else begun.facts["count"])
        if policy.checkpointer is not None:
            policy.checkpointer.save(Snapshot({}, {"count": count}))
            policy.checkpointer.publish(Snapshot({}, {"count": 10 * count}))
        placement = Placement.single(problem.graph.n, 0, problem.topology.names)
        (result,) = evaluator.evaluate([placement])
        return Answer((Candidate(placement, result, f"search {count}"),))


@pytest.fixture
def found_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that searches with the placer `counts` and tells who found the placement."""
    monkeypatch.setitem(policy.place.TABLE, "counts", f"{__name__}:Counts")
    graph = tmp_path / "graph.json"
    operations = [{"name": name, "time_s": 0.001, "output_bytes": 8} for name in "ab"]
    graph.write_text(json.dumps({"operations": operations, "edges": [{"from": "a", "to": "b"}]}), encoding="utf-8")

    def search(*, seed: int = 0, step: int = 1, checkpoint: Path | None = None, policy: Path | None = None) -> str:
        scenario = pipeline.Scenario(str(graph), "equal:2", seed=seed, settings={"place.counts.step": step})
        effort = pipeline.Effort("counts", checkpoint=checkpoint, policy=policy)
        return str(pipeline.search(scenario, effort)["found_by"])

    return search


def test_the_same_search_goes_on_where_its_checkpoint_is(tmp_path: Path, found_by: Callable[..., str]) -> None:
    assert [found_by(), found_by()] == ["search 1", "search 1"]
    assert [found_by(checkpoint=tmp_path / "c") for _ in range(3)] == ["search 1", "search 2", "search 3"]


def test_another_search_begins_from_scratch_in_the_same_checkpoint(
    tmp_path: Path, found_by: Callable[..., str]
) -> None:
    where = tmp_path / "c"
    assert [found_by(checkpoint=where), found_by(checkpoint=where)] == ["search 1", "search 2"]
    assert found_by(checkpoint=where, seed=1) == "search 1"
    assert found_by(checkpoint=where, seed=1, step=2) == "search 2"
    assert found_by(checkpoint=where, seed=1, step=2) == "search 4"


def test_a_search_begins_with_the_policy_it_is_given(tmp_path: Path, found_by: Callable[..., str]) -> None:
    found_by(checkpoint=tmp_path / "c")
    assert found_by(policy=tmp_path / "c") == "search 11"
    assert found_by(policy=tmp_path / "c" / "policy.safetensors", checkpoint=tmp_path / "d") == "search 11"
    assert found_by(policy=tmp_path / "c", checkpoint=tmp_path / "d") == "search 12"
    with pytest.raises(UsageError, match="Policy not found"):
        found_by(policy=tmp_path / "absent")


def test_a_placer_that_learns_nothing_has_nothing_to_keep(tmp_path: Path, found_by: Callable[..., str]) -> None:
    found_by(checkpoint=tmp_path)
    scenario = pipeline.Scenario(str(tmp_path / "graph.json"), "equal:2")
    greedy = pipeline.Effort("greedy", evaluations=9)
    for effort in (replace(greedy, checkpoint=tmp_path), replace(greedy, policy=tmp_path)):
        with pytest.raises(UsageError, match="greedy has no policy"):
            pipeline.search(scenario, effort)
    published = pipeline.Effort("hsdag_paper", evaluations=9, checkpoint=tmp_path)
    with pytest.raises(UsageError, match="hsdag_paper has no policy"):
        pipeline.search(scenario, published)


def test_a_checkpoint_that_cannot_be_written_is_said_before_the_search(
    tmp_path: Path, found_by: Callable[..., str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        found_by(checkpoint=tmp_path / "file")
