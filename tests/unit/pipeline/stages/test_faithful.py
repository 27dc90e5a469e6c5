"""A model is read so that it computes what its source does, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coarsen.reading.model.reading_options import Way
from coarsen.reading.sizes.shapes import ChosenShape, InputShapes
from pipeline.core.deadline import Deadline
from pipeline.core.errors import ModelError, OutputMismatchError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.result.notes import reference_notes
from pipeline.shared.checks import (
    CHECKS,
    FACTS,
    FLOAT,
    NORMALISED,
    REFERENCE,
    SHAKEN,
    TIMING,
    ReferenceFacts,
    ReferenceOrder,
    load_by_kind,
    save_by_kind,
)
from pipeline.shared.model_inputs import GIVEN
from pipeline.shared.payload import save_graph
from pipeline.stages.repair_outputs import Departure, Source, find_departures, read_faithfully
from runtime.measuring.outputs.quality import accept_outputs, reference_beside
from tests.strategies import graph_of

ORDER = ReferenceOrder(source=True, seconds=1.0, limit_s=5.0, inferences=1)
RIGHT = np.linspace(1, 2, 6).reshape(1, 6)


@dataclass
class Runtime:
    """A runtime that computes a model rightly only if it is read in one way; ids [?,?] are its input.

    right: whether it does so with a way and with shapes. declared: what the file says of its input. refuses: what it
    does not read at all. types: of its operations. source_gives: what the source does; gives: what the model
    does once it is read rightly.
    """

    right: Callable[[Way, InputShapes], bool]
    declared: str = "[?,?]"
    refuses: Callable[[Way, InputShapes], bool] = lambda way, shapes: False
    located: str = ""
    given: bool = True
    types: tuple[str, ...] = ("Add",)
    source_gives: Any = field(default_factory=lambda: RIGHT)
    gives: Any = field(default_factory=lambda: RIGHT)
    passed_over: list[dict[str, str]] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)

    def read(self, out: Path, way: Way, shapes: InputShapes, order: ReferenceOrder, unfit: Mapping[str, str]) -> None:
        words = f"{'' if way.fold else 'unfolded'}{way.prepared}{way.exposed}"
        self.tried.append(f"{','.join(shapes.given)} {words}".strip())
        if self.refuses(way, shapes):
            raise ModelError("It cannot be read so.")
        for name in ("model.xml", "model.bin"):
            (out / name).write_text(self.tried[-1])
        save_graph(out / "graph.npz", replace(graph_of(1, []), type_names=self.types))
        length = 6 + len(unfit)
        self.passed_over.append(dict(unfit))
        chosen = [ChosenShape("ids", self.declared, f"[1,{length}]", self.given)] if "?" in self.declared else []
        (out / "shapes.json").write_text(json.dumps([asdict(shape) for shape in chosen]))
        if order.source:
            save_by_kind(out / CHECKS, {"noise": {"ids": np.ones((1, 6), np.int64)}})
            save_by_kind(out / REFERENCE, {"noise": {"output_0": self.source_gives}})
            (out / FACTS).write_text(json.dumps(asdict(ReferenceFacts("ONNX Runtime 1", kinds=["noise"]))))
        save_by_kind(out / NORMALISED, {"noise": {"output_0": self.gives * (1 if self.right(way, shapes) else 1.5)}})
        (out / TIMING).write_text(json.dumps({"inference_s": 0.002 if order.source else 0.003}))

    def locate(self, out: Path, departure: Departure) -> str:
        return self.located

    def facts(self, out: Path) -> ReferenceFacts:
        """Return what reading a model into a folder with this runtime came to."""
        out.mkdir()
        read_faithfully(Source(Path("m.onnx"), self.read, self.locate), out, InputShapes(("ids=1x6",)), ORDER)
        return ReferenceFacts(**json.loads((out / FACTS).read_text()))


def test_right_outputs_leave_the_model_as_it_is_read_usually(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: True)
    facts = runtime.facts(tmp_path / "out")
    assert (facts.way, facts.departed, runtime.tried) == ("", "", ["ids=1x6"])
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"model.xml", "model.bin", "graph.npz", "shapes.json", CHECKS, REFERENCE, NORMALISED, FACTS}


def test_a_dimension_that_stays_open_mends_it(tmp_path: Path) -> None:
    facts = Runtime(lambda way, shapes: "?" in shapes.given[0]).facts(tmp_path / "out")
    assert facts.way == "with dimension 0 of ids left open"
    assert facts.departed == "output_0: 50 % off on the inputs 'noise'"
    assert facts.cost == pytest.approx(1.5)
    assert (tmp_path / "out" / "model.xml").read_text() == "ids=?x6"
    with np.load(tmp_path / "out" / GIVEN) as timed:  # of what stays open the arrays tell the size
        assert timed["ids"].shape == (1, 6)
    assert json.loads((tmp_path / "out" / "shapes.json").read_text())[0]["shape"] == "[1,6]"


def test_what_helps_is_tried_in_order(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: way.exposed == "mul", located="mul")
    facts = runtime.facts(tmp_path / "out")
    assert runtime.tried == ["ids=1x6", "ids=?x6", "ids=1x?", "ids=?x?", "ids=1x6 unfolded", "ids=1x6 mul"]
    assert facts.way == "with mul as a further output"
    assert not (tmp_path / "out" / GIVEN).exists()


def test_quantisation_as_arithmetic_comes_first_where_a_model_quantises(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: way.prepared == "arithmetic", types=("FakeQuantize",))
    facts = runtime.facts(tmp_path / "out")
    assert runtime.tried == ["ids=1x6", "ids=1x6 arithmetic"]
    assert facts.way == "with quantisation written as arithmetic"
    assert facts.cost == pytest.approx(1.5)


def test_a_scale_for_zeros_comes_first_where_a_model_quantises_dynamically(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: way.prepared == "guarded", types=("ReduceMax", "ReduceMin", "Round"))
    facts = runtime.facts(tmp_path / "out")
    assert runtime.tried == ["ids=1x6", "ids=1x6 guarded"]
    assert facts.way == "with dynamic quantisation of zeros guarded"
    runtime = Runtime(lambda way, shapes: "?" in shapes.given[0], types=("ReduceMax", "ReduceMin"))
    assert runtime.facts(tmp_path / "other").way == "with dimension 0 of ids left open"
    assert "ids=1x6 guarded" not in runtime.tried


def test_local_responses_of_bias_1_are_tried_where_a_model_has_any(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: way.prepared == "unit bias", types=("LRN",))
    assert runtime.facts(tmp_path / "out").way == "with local responses of bias 1 and a factor"
    assert runtime.tried == ["ids=1x6", "ids=1x6 unit bias"]


def test_what_cannot_be_read_in_some_way_is_read_in_the_next(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: not way.fold, refuses=lambda way, shapes: "?" in shapes.given[0])
    assert runtime.facts(tmp_path / "out").way == "with constants not folded"


def test_of_a_file_with_concrete_shapes_single_dimensions_are_opened(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: shapes.given == ("ids=1x?",), declared="[1,6]")
    assert runtime.facts(tmp_path / "out").way == "with dimension 1 of ids left open"


def test_a_model_that_nothing_mends_is_refused_with_the_first_operation_that_departs(tmp_path: Path) -> None:
    with pytest.raises(OutputMismatchError, match=r"50 % off.*by ONNX Runtime 1.*departs is mul") as caught:
        Runtime(lambda way, shapes: False, located="mul").facts(tmp_path / "out")
    assert caught.value.exit_code == 6


def test_where_the_source_gives_nan_inputs_are_asked_for_and_nothing_is_tried(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: False, source_gives=np.full((1, 6), np.nan))
    with pytest.raises(OutputMismatchError, match="gives NaN in output_0 of ") as caught:
        runtime.facts(tmp_path / "out")
    assert "--input" in caught.value.remedy
    assert runtime.tried == ["ids=1x6"]


def test_numbers_that_depart_beside_nan_in_both_are_mended(tmp_path: Path) -> None:
    partly = RIGHT.copy()
    partly[0, 0] = np.nan
    runtime = Runtime(lambda way, shapes: "?" in shapes.given[0], source_gives=partly, gives=partly)
    assert runtime.facts(tmp_path / "out").way == "with dimension 0 of ids left open"


def test_sizes_that_nobody_gave_are_passed_over_where_outputs_depart(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: len(runtime.passed_over) > 5, given=False)
    runtime.facts(tmp_path / "out")
    *_, last = runtime.passed_over
    assert list(last) == ["ids [1,6]"]
    assert "50 % off" in last["ids [1,6]"]
    with pytest.raises(OutputMismatchError):
        Runtime(lambda way, shapes: False, given=False).facts(tmp_path / "never")


def test_a_source_that_does_not_run_is_told_and_not_compared(tmp_path: Path) -> None:
    def without_reference(
        out: Path, way: Way, shapes: InputShapes, order: ReferenceOrder, unfit: Mapping[str, str]
    ) -> None:
        runtime.read(out, way, shapes, order, unfit)
        (out / REFERENCE).unlink()

    runtime = Runtime(lambda way, shapes: False)
    read_faithfully(Source(Path("m"), without_reference, runtime.locate), tmp_path, InputShapes(), ORDER)
    assert not (tmp_path / CHECKS).exists()
    assert json.loads((tmp_path / FACTS).read_text())["way"] == ""


def written(folder: Path, **files: np.ndarray) -> Path:
    """Write outputs of one kind of inputs to files."""
    names = {"ours": NORMALISED, "theirs": REFERENCE, "twin": FLOAT, "shaken": SHAKEN}
    for name, array in files.items():
        save_by_kind(folder / names[name], {"noise": {"output_0": array}})
    return folder


def test_f32_may_differ_by_the_order_of_additions_alone(tmp_path: Path) -> None:
    assert find_departures(written(tmp_path, ours=RIGHT * 1.0009, theirs=RIGHT)) == []
    [found] = find_departures(written(tmp_path, ours=RIGHT * 1.002, theirs=RIGHT))
    assert found.difference.difference == pytest.approx(0.002)


def test_a_quantised_model_may_differ_by_what_its_rounding_does(tmp_path: Path) -> None:
    folder = written(tmp_path, ours=RIGHT * 1.04, theirs=RIGHT, twin=RIGHT * 0.97)
    assert find_departures(folder) == []
    assert find_departures(written(folder, ours=RIGHT * 1.06))  # 6 % from the source, 9 % from the float
    assert find_departures(written(folder, ours=RIGHT * 0.95)) == []  # 5 % from the source, 2 % from the float


def test_an_output_that_hangs_by_a_hair_may_differ_as_far_as_it_moves(tmp_path: Path) -> None:
    folder = written(tmp_path, ours=RIGHT * 1.2, theirs=RIGHT, shaken=RIGHT * 1.1)
    assert find_departures(folder) == []
    assert find_departures(written(folder, ours=RIGHT * 1.302))  # 3 times 10 %, and 0.1 %


def test_an_output_that_changes_its_shape_with_a_hair_is_not_compared(tmp_path: Path) -> None:
    assert find_departures(written(tmp_path, ours=RIGHT * 2, theirs=RIGHT, shaken=np.ones((1, 5)))) == []


def test_what_measured_candidates_may_differ_by_is_what_the_model_as_it_was_read_may(tmp_path: Path) -> None:
    folder = written(tmp_path, theirs=RIGHT, twin=RIGHT * 0.97, shaken=RIGHT * 1.001)
    for off in (0.9, 0.92, 0.93, 0.95, 1.04, 1.048, 1.051, 1.06):
        outputs = {"noise": {"output_0": RIGHT * off}}
        judged = accept_outputs(outputs, reference_beside(folder), {"CPU": "f32"}, MeasureSettings())
        read = find_departures(written(folder, ours=RIGHT * off))
        assert bool(read) == isinstance(judged, MeasurementFailed), off


def test_kinds_that_a_slow_way_to_read_a_model_left_out_are_not_compared(tmp_path: Path) -> None:
    folder, spare = tmp_path / "out", tmp_path / "spare"
    folder.mkdir()
    spare.mkdir()
    save_by_kind(folder / REFERENCE, {"noise": {"output_0": RIGHT}, "zeros": {"output_0": RIGHT}})
    written(spare, ours=RIGHT)
    assert find_departures(folder, spare) == []


def test_outputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputMismatchError, match="has shape"):
        find_departures(written(tmp_path, ours=RIGHT[:, :5], theirs=RIGHT))


def test_what_is_left_is_what_later_stages_compare_with(tmp_path: Path) -> None:
    Runtime(lambda way, shapes: True).facts(tmp_path / "out")
    np.testing.assert_array_equal(load_by_kind(tmp_path / "out" / REFERENCE)["noise"]["output_0"], RIGHT)


def test_when_time_is_up_nothing_else_is_tried(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: False)
    source = Source(Path("m.onnx"), runtime.read, runtime.locate, Deadline.after(0.0))
    with pytest.raises(OutputMismatchError, match="budget ended before all workarounds") as caught:
        read_faithfully(source, tmp_path, InputShapes(("ids=1x6",)), ORDER)
    assert "--budget" in caught.value.remedy
    assert len(runtime.tried) == 1


@dataclass
class Artifact:
    """What the read step has left in a folder."""

    folder: Path
    files: tuple[str, ...] = (FACTS,)

    def path(self, name: str) -> Path:
        return self.folder / name


def test_what_outputs_are_compared_with_and_what_was_done_is_told(tmp_path: Path) -> None:
    runtime = Runtime(lambda way, shapes: "?" in shapes.given[0])
    runtime.facts(tmp_path / "out")
    compared, mended = reference_notes(Artifact(tmp_path / "out"))  # type: ignore[arg-type]  # all it takes
    assert compared == "Outputs are compared with the source in ONNX Runtime 1, on noise (0.0 s)."
    assert "50 % off on the inputs 'noise'" in mended
    assert (
        "read with dimension 0 of ids left open, which gives the right outputs and takes 1.50 times as long" in mended
    )
    facts = ReferenceFacts(why_not=["It crashed"], unstable=["output_0"], low=["output_1"])
    (tmp_path / FACTS).write_text(json.dumps(asdict(facts)))
    crashed, unknown, unstable, low = reference_notes(Artifact(tmp_path))  # type: ignore[arg-type]
    assert (crashed, unknown.startswith("The source was not run")) == ("It crashed.", True)
    assert "--input" in unstable
    assert low.startswith("No generated input raises a score of output_1 above 0.05, so how right")
    (tmp_path / FACTS).write_text(json.dumps(asdict(replace(facts, kinds=["given"]))))
    assert "on your inputs" in reference_notes(Artifact(tmp_path))[2]  # type: ignore[arg-type]
    assert not any("raises a score" in told for told in reference_notes(Artifact(tmp_path)))  # type: ignore[arg-type]
    assert reference_notes(Artifact(tmp_path, ())) == []  # type: ignore[arg-type]
