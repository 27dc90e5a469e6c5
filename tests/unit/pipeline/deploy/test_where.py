"""Where a model really runs: rows made of what a device says, and what a device is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from pipeline.core.errors import DeviceError, FallbackError, StoreError, UsageError
from pipeline.deploy.where import (
    LocatedRecord,
    Wanted,
    WhereRecord,
    record_of,
    refuse_fallback,
    wanted_by,
    wanted_on,
    where_run,
)
from pipeline.result.deployment import Deployment
from runtime.measuring.process.locate_operations import constant_operations, locate_operations, names_in, nodes_of
from tests.deployments import deployed, halves, measured
from tests.models import chain, quantised, through_file, two_towers, with_state
from tests.two_cpus import branchy, two_cpus, write


def node(name: str, operations: list[str], *, us: float = 0.0, part: int | None = 0, **more: Any) -> dict[str, Any]:
    """Return a node of an execution graph that takes so many microseconds, and is executed if it takes any."""
    kind = {"type": "Op", "kernel": "jit_f32", "precision": "f32", "executed": us > 0}
    return {"name": name, "operations": operations, **kind, "seconds": us * 1e-6, "part": part, **more}


def answer(nodes: list[dict[str, Any]], operations: list[tuple[str, str, bool]], **more: Any) -> dict[str, Any]:
    """Return what the measuring process answers; its counters are means of twice the median."""
    base = {"executed_on": ["CPU_A"], "assigned": {}, "refused": {}, "latency_s": 1e-3, "mean_s": 2e-3}
    return {"nodes": nodes, "operations": [list(o) for o in operations], **base, **more}


def by_name(found: WhereRecord) -> Mapping[str, LocatedRecord]:
    return {row.operation: row for row in found.operations}


A, B = two_cpus()
ON_A = Wanted("CPU_A", (A,), asked={"": "A"})
SPLIT = Wanted(
    "HETERO:CPU_A,CPU_B", (A, B), {}, {"a": "CPU_A", "b": "CPU_B", "c": "CPU_B"}, {"a": "A", "b": "B", "c": "B"}
)
OPERATIONS = [("a", "MatMul", False), ("b", "Relu", False), ("c", "Result", False)]


def test_a_kernel_is_charged_to_the_operation_that_names_it_and_the_rest_is_fused_into_that() -> None:
    found = record_of(
        answer(
            [
                node("w", ["unpack"], type="Const"),
                node("conv", ["add", "conv"], us=40),
                node("decomposed", ["soft"], us=6),
                node("other", ["soft"], us=4),
                node("conv_reorder", [], us=10, type="Reorder"),
                node("idle", [], type="Reorder"),
            ],
            [
                ("w", "Constant", True),
                ("unpack", "Convert", True),
                ("folded", "Transpose", True),
                ("conv", "Convolution", False),
                ("add", "Add", False),
                ("soft", "Softmax", False),
                ("gone", "Relu", False),
            ],
        ),
        ON_A,
        model="m.xml",
    )
    rows = by_name(found)
    assert {name: round(row.seconds * 1e6, 6) for name, row in rows.items() if row.seconds} == {
        "conv": 20.0,
        "soft": 5.0,
        "conv_reorder": 5.0,
    }
    assert {name: row.why for name, row in rows.items()} == {
        "w": "constant folded",
        "unpack": "constant folded",
        "folded": "constant folded",
        "conv": "asked for",
        "add": "fused into conv",
        "soft": "asked for",
        "gone": "rewritten by the device: no step of its own",
        "conv_reorder": "added by the device: another layout",
    }
    assert (rows["folded"].device, rows["gone"].device, rows["conv"].device) == ("", "", "A")
    assert found.operations[0].operation == "conv"
    (total,) = found.devices
    assert (total.device, round(total.seconds * 1e6, 6), total.operations) == ("A", 30.0, 5)
    refuse_fallback(found)


def test_operations_of_a_sub_model_run_on_the_device_of_what_it_executes() -> None:
    nodes = [node("a", ["a"], us=5), node("b", ["b"], us=5, part=1), node("c", ["c"], part=0)]
    found = record_of(
        answer(nodes, OPERATIONS, assigned=SPLIT.affinity, executed_on=["CPU_A", "CPU_B"]), SPLIT, model="m"
    )
    rows = by_name(found)
    assert {name: row.device for name, row in rows.items()} == {"a": "A", "b": "B", "c": "A"}
    assert rows["a"].why == rows["b"].why == "placed there"
    refuse_fallback(found)  # a Result that follows its producer computes nothing


def test_an_operation_that_ran_elsewhere_than_asked_for_is_a_fallback() -> None:
    nodes = [node("a", ["a"], us=9), node("z", ["z"], us=5), node("b", ["b"], us=5)]
    wanted = Wanted(SPLIT.target, SPLIT.devices, {}, {**SPLIT.affinity, "z": "CPU_A"}, {**SPLIT.asked, "z": "A"})
    operations = [*OPERATIONS, ("z", "Add", False)]
    found = record_of(
        answer(nodes, operations, assigned=wanted.affinity, executed_on=["CPU_A", "CPU_B"]), wanted, model="m"
    )
    assert by_name(found)["b"].why == "asked for on B"
    with pytest.raises(FallbackError, match=r"1 operation\(s\) placed on B ran on A: b\.") as caught:
        refuse_fallback(found)
    assert caught.value.exit_code == 6


def test_a_device_that_nothing_ran_on_is_not_believed() -> None:
    nodes = [node("a", ["a"], us=5), node("b", ["b"], us=5, part=1)]
    found = record_of(answer(nodes, OPERATIONS[:2], assigned=SPLIT.affinity), SPLIT, model="m")
    assert by_name(found)["b"].device == "unknown"
    with pytest.raises(FallbackError, match="placed on B ran on unknown"):
        refuse_fallback(found)


def test_what_a_device_refuses_is_told_where_hetero_gives_it_to_another() -> None:
    wanted = Wanted("HETERO:CPU_A,CPU_B", (A, B))
    nodes = [node("a", ["a"], us=5), node("b", ["b"], us=5, part=1)]
    found = record_of(
        answer(
            nodes,
            OPERATIONS[:2],
            assigned={"a": "CPU_A", "b": "CPU_B"},
            executed_on=["CPU_A", "CPU_B"],
            refused={"CPU_A": ["b"], "CPU_B": []},
        ),
        wanted,
        model="m",
    )
    rows = by_name(found)
    assert (rows["a"].why, rows["b"].why) == ("chosen by HETERO", "refused by A")
    refuse_fallback(found)  # HETERO was asked to fall back


def test_auto_on_another_device_than_the_first_is_a_fallback() -> None:
    wanted = Wanted("AUTO:CPU_A,CPU_B", (A, B), asked={"": "A"})
    said = answer([node("a", ["a"], us=5)], OPERATIONS[:1])
    refuse_fallback(record_of(said, wanted, model="m"))
    with pytest.raises(FallbackError, match="placed on A ran on B: a"):
        refuse_fallback(record_of({**said, "executed_on": ["CPU_B"]}, wanted, model="m"))


@pytest.mark.parametrize(
    ("text", "target", "asked"),
    [
        ("CPU", "CPU", {"": "CPU"}),
        ("A=CPU{INFERENCE_NUM_THREADS=1}", "CPU_A", {"": "A"}),
        ("AUTO", "AUTO:CPU", {}),
        ("AUTO:CPU", "AUTO:CPU", {"": "CPU"}),
        ("HETERO:A=CPU{INFERENCE_NUM_THREADS=1},CPU", "HETERO:CPU_A,CPU", {}),
        ("MULTI:CPU", "MULTI:CPU", {}),
    ],
)
def test_a_device_is_asked_as_it_is_written(text: str, target: str, asked: dict[str, str]) -> None:
    found = wanted_on(text)
    assert (found.target, found.asked) == (target, asked)


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(DeviceError, match="Unknown device CPPU"):
        wanted_on("CPPU")
    with pytest.raises(UsageError, match="several devices"):
        wanted_on("A=CPU,B=CPU")


def test_a_run_asks_for_its_placement_its_device_or_what_auto_chose(tmp_path: Path) -> None:
    model = through_file(chain(4), tmp_path)
    split = deployed(tmp_path / "split", model, (A, B), placement=halves(model))
    assert wanted_by(Deployment.load(split)).asked == halves(model)
    assert wanted_by(Deployment.load(deployed(tmp_path / "single", model, (B,)))).asked == {"": "B"}
    auto = deployed(measured(tmp_path / "auto", [1.0]), model, (A, B), target="AUTO:CPU_A,CPU_B")
    assert wanted_by(Deployment.load(auto)).asked == {"": "CPU"}  # as `measured` says


def test_a_run_of_devices_that_are_not_here_is_refused(tmp_path: Path) -> None:
    run = deployed(tmp_path / "run", chain(2), two_cpus()[:1])
    text = (run / "placement.json").read_text(encoding="utf-8")
    (run / "placement.json").write_text(text.replace('"plugin": "CPU"', '"plugin": "GPU"'), encoding="utf-8")
    with pytest.raises(DeviceError, match="uses GPU, which this machine does not have"):
        where_run(run)


def test_a_run_of_another_model_is_refused(tmp_path: Path) -> None:
    path, _ = write(chain(2), tmp_path)
    with pytest.raises(StoreError, match="run of another model"):
        where_run(deployed(tmp_path / "run", chain(2), two_cpus()[:1]), path)


def test_names_with_commas_are_found_in_a_list() -> None:
    assert names_in("x,y,z", {"x,y", "z"}) == ["x,y", "z"]
    assert names_in("added,x,y", {"x,y"}) == []  # what is joined with an unknown name cannot be told apart
    assert names_in("", {"x"}) == []


def test_what_follows_from_constants_alone_is_constant() -> None:
    found = constant_operations(quantised())
    assert {"w1", "w1.unpack", "fq_w", "w1.square", "fq_x.il"} <= found
    assert found.isdisjoint({"x", "fq_x", "first", "relu", "second", "out"})
    assert "read" not in constant_operations(with_state())


def located(model: ov.Model, folder: Path, wanted: Wanted) -> dict[str, Any]:
    """Return what the measuring process would answer, asked in this one."""
    path, _ = write(model, folder)
    command = {"model": str(path), "devices": [d.to_json() for d in wanted.devices], "target": wanted.target}
    more = {"properties": wanted.properties, "affinity": wanted.affinity, "seed": 0, "dynamic_size": 8}
    return locate_operations({**command, **more, "seconds": 0.0, "minimum": 3})


def test_every_operation_of_a_placed_model_is_where_the_placement_says(tmp_path: Path) -> None:
    path, graph = write(branchy(), tmp_path)
    placement = {name: "B" if "left" in name else "A" for name in graph.names}
    affinity = {name: f"CPU_{device}" for name, device in placement.items()}
    wanted = Wanted("HETERO:CPU_A,CPU_B", (A, B), {"EXCLUSIVE_ASYNC_REQUESTS": "NO"}, affinity, placement)
    found = record_of(located(branchy(), tmp_path, wanted), wanted, model=str(path))
    refuse_fallback(found)
    executed = {row.operation: row.device for row in found.operations if row.why == "placed there"}
    assert executed.items() <= placement.items()
    assert {"stem", "0.left1", "1.right", "0.skip", "sigmoid"} <= set(executed)  # whatever they take
    assert by_name(found)["0.left1.relu"].why == "fused into 0.left1"
    assert {total.device for total in found.devices} == {"A", "B"}
    assert set(found.executed_on) == {"A", "B"}


class Mute:
    """A compiled model without an execution graph."""

    def get_runtime_model(self) -> ov.Model:
        raise RuntimeError("Not implemented")


def test_a_device_without_an_execution_graph_is_told_by_its_counters() -> None:
    core = ov.Core()
    compiled = core.compile_model(two_towers(), "CPU", {"PERF_COUNT": "YES", "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    request.infer([np.zeros((1, 8), np.float32)])
    found = nodes_of(Mute(), request, {"left0", "sum"})  # type: ignore[arg-type]
    told = {n["name"]: n for n in found if n["operations"]}
    assert told["left0"]["executed"]
    assert told["left0"]["seconds"] >= 0
    assert all(n["operations"] == [n["name"]] for n in told.values())
