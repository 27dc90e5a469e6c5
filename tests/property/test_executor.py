"""Random placements of random models: in segments they give what they give whole, by every runner."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.executor.placed import PlacedModel, SegmentCompiler, load
from runtime.executor.segments import segment_graph
from runtime.executor.splitting import HowToRun, placed_in_memory, split_model
from tests import executor_models as executor
from tests.models import through_file

ROUNDED = 2e-2  # relative L2: where FakeQuantize rounds the other way, the value jumps by a 255th of its range


@cache
def normal(seed: int, size: int, *, dynamic: bool, state: bool) -> ov.Model:
    """Return a random model as the reader makes it."""
    with tempfile.TemporaryDirectory() as folder:
        return through_file(executor.random_model(seed, size, dynamic=dynamic, state=state), Path(folder))


def agree(found: Sequence[Any], expected: Sequence[Any], *, rounded: bool) -> bool:
    """Return whether outputs are equal but for rounding."""
    far = ROUNDED if rounded else 1e-5
    norms = [(np.linalg.norm(f - e), np.linalg.norm(e)) for f, e in zip(found, expected, strict=True)]
    return len(found) == len(expected) and all(difference <= far * (1 + norm) for difference, norm in norms)


def check(model: ov.Model, placed: PlacedModel, *, dynamic: bool) -> None:
    """Compare two inferences, of different sizes where that may be, with those of the whole model."""
    request = executor.whole(model)
    rounded = any(o.get_type_name() == "FakeQuantize" for o in model.get_ops())
    for seed, rows in ((0, 2), (1, 3 if dynamic else 2)):
        arrays = executor.arrays_for(model, seed, rows)
        request.infer(arrays)
        expected = [np.array(t.data) for t in request.output_tensors[: len(model.outputs)]]
        assert agree(placed(arrays).to_tuple(), expected, rounded=rounded)


CASES = st.tuples(st.integers(0, 2**20), st.integers(2, 14))


@settings(max_examples=5, deadline=None)
@given(case=CASES, dynamic=st.booleans(), runner=st.sampled_from(("serial", "level", "threads", "pipeline")))
def test_segments_give_what_the_whole_model_gives(case: tuple[int, int], dynamic: bool, runner: Any) -> None:
    model = normal(*case, dynamic=dynamic, state=False)
    graph = executor.graph_with_dynamic_cuts(model)
    placement = executor.random_placement(graph, np.random.default_rng(case[0]))
    found = segment_graph(graph, placement)
    with placed_in_memory(model, found, executor.two_threads(), HowToRun(runner), SegmentCompiler()) as placed:
        check(model, placed, dynamic=dynamic)


@settings(max_examples=4, deadline=None)
@given(case=CASES, runner=st.sampled_from(("serial", "threads")))
def test_segments_keep_states_and_forget_them_when_asked(case: tuple[int, int], runner: Any) -> None:
    model = normal(*case, dynamic=False, state=True)
    graph = executor.graph_with_dynamic_cuts(model)
    found = segment_graph(graph, executor.random_placement(graph, np.random.default_rng(case[0])))
    with placed_in_memory(model, found, executor.two_threads(), HowToRun(runner, 3), SegmentCompiler()) as placed:
        check(model, placed, dynamic=False)
        placed.reset_state()
        check(model, placed, dynamic=False)


@settings(max_examples=3, deadline=None)
@given(case=CASES, dynamic=st.booleans())
def test_a_folder_gives_what_the_whole_model_gives(case: tuple[int, int], dynamic: bool) -> None:
    model = normal(*case, dynamic=dynamic, state=False)
    graph = executor.graph_with_dynamic_cuts(model)
    placement = executor.random_placement(graph, np.random.default_rng(case[0]))
    with tempfile.TemporaryDirectory() as folder:
        split_model(model, graph, placement, executor.two_threads(), Path(folder), HowToRun())
        with load(folder) as placed:
            check(model, placed, dynamic=dynamic)


def together(model: ov.Model) -> Iterator[set[str]]:
    """Yield names of operations that must not be parted: both ends of a state, FakeQuantize and who takes from it."""
    for op in model.get_ordered_ops():
        readers = {i.get_node().get_friendly_name() for out in op.outputs() for i in out.get_target_inputs()}
        if op.get_type_name() == "FakeQuantize":
            yield readers | {op.get_friendly_name()}
        if op.get_type_name() == "Assign":
            yield {op.get_friendly_name(), op.input_value(0).get_node().get_friendly_name()}


@settings(max_examples=25, deadline=None)
@given(case=CASES, state=st.booleans())
def test_no_segment_parts_what_belongs_together(case: tuple[int, int], state: bool) -> None:
    model = normal(*case, dynamic=False, state=state)
    graph = executor.graph_with_dynamic_cuts(model)
    placement = executor.random_placement(graph, np.random.default_rng(case[0]))
    found = segment_graph(graph, placement)
    home = {name: i for i, spec in enumerate(found.segments) for name in spec.operations}
    for names in together(model):
        assert len({home[name] for name in names if name in home}) <= 1
    unpacked = {o.get_friendly_name() for o in model.get_ops() if o.get_type_name() in ("Constant", "Convert")}
    assert not unpacked & set(home)  # weights are in every segment that reads them


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    case=st.tuples(st.integers(0, 2**20), st.integers(2, 40)),
    dynamic=st.booleans(),
    runner=st.sampled_from(("serial", "level", "threads", "pipeline")),
)
def test_many_more_models_in_segments(case: tuple[int, int], dynamic: bool, runner: Any) -> None:
    test_segments_give_what_the_whole_model_gives.hypothesis.inner_test(case, dynamic, runner)
