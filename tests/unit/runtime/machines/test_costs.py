"""Where seconds come from, and the files they can be given in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import UsageError
from pipeline.core.workload import Tags, Workload
from runtime.machines.cost_file import read_costs, write_costs
from runtime.machines.costs import cost_table
from runtime.machines.machine import Machine, simulated_device
from runtime.machines.roofline import CHIPS, roofline_s
from runtime.machines.topology import preset_machine
from tests.strategies import graph_of

GRAPH = graph_of(3, [(0, 1), (1, 2)], flops=[1e9, 2e9, 0.0])
MACHINE = preset_machine("cpu+gpu")
DEVICES = MACHINE.topology.devices


def workload(**times: list[float]) -> Workload:
    """Return the graph with times; the keyword `any` stands for "*"."""
    kept = {"*" if key == "any" else key: np.array(t, float) for key, t in times.items()}
    return Workload(GRAPH, Tags.none(3), kept)


def read(text: str, folder: Path, name: str = "costs.csv") -> dict[str, list[float]]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return {key: t.tolist() for key, t in read_costs(path, GRAPH.names, DEVICES).items()}


def test_without_times_a_chip_models_them() -> None:
    costs = cost_table(workload(), MACHINE)
    assert costs.origin == ("modelled", "modelled")
    assert costs.op_s[:, 0].tolist() == roofline_s(GRAPH, CHIPS["desktop-cpu"]).tolist()
    assert costs.op_s[:, 1].tolist() == roofline_s(GRAPH, CHIPS["desktop-gpu"]).tolist()
    assert not costs.launch_s.any()


def test_equal_chips_give_equal_times() -> None:
    costs = cost_table(workload(), preset_machine("equal:3"))
    assert np.all(costs.op_s == costs.op_s[:, :1])


def test_the_graphs_own_times_count_by_name_then_kind_then_for_every_device() -> None:
    machine = Machine(
        Topology.uniform(
            (simulated_device("A", "gpu"), simulated_device("B", "gpu"), simulated_device("C", "cpu")),
            bytes_per_s=1e9,
            latency_s=0.0,
        ),
        (None, None, None),
    )
    costs = cost_table(workload(A=[1, 1, 1], gpu=[2, 2, 2], any=[3, 3, np.inf]), machine)
    assert costs.op_s.T.tolist() == [[1, 1, 1], [2, 2, 2], [3, 3, np.inf]]
    assert costs.origin == ("given",) * 3


def test_a_file_of_costs_comes_before_the_graphs_times_even_if_less_precise() -> None:
    costs = cost_table(workload(cpu=[1, 1, 1], gpu=[2, 2, 2]), MACHINE, {"*": np.array([7.0, 8.0, 9.0])})
    assert costs.op_s.tolist() == [[7, 7], [8, 8], [9, 9]]


def test_a_device_that_a_file_leaves_out_takes_its_times_from_the_graph_or_the_chip() -> None:
    given = {"cpu": np.array([7.0, 8.0, 9.0])}
    assert cost_table(workload(gpu=[2, 2, 2]), MACHINE, given).op_s[:, 1].tolist() == [2, 2, 2]
    assert cost_table(workload(), MACHINE, given).origin == ("given", "modelled")


def test_a_device_without_times_and_chip_is_named() -> None:
    with pytest.raises(UsageError, match="times on the device cpu are unknown"):
        cost_table(workload(), Machine(MACHINE.topology, (None, None)))


def test_times_for_other_devices_and_no_flops_are_not_taken_for_free_operations() -> None:
    bare = graph_of(3, [(0, 1), (1, 2)], flops=[0.0] * 3)
    with pytest.raises(UsageError, match="times for npu, but none for the cpu cpu"):
        cost_table(Workload(bare, Tags.none(3), {"npu": np.ones(3)}), MACHINE)


def test_a_column_per_device_in_any_order_of_rows(tmp_path: Path) -> None:
    found = read("gpu,operation,cpu\n0.2,op1,2\n0.1,op0,1e0\ninf,op2,\n", tmp_path)
    assert found == {"gpu": [0.1, 0.2, np.inf], "cpu": [1, 2, np.inf]}


def test_a_row_per_operation_and_device(tmp_path: Path) -> None:
    rows = [f"op{i},*,{i}" for i in range(3)]
    assert read("\n".join(["operation,device,seconds", *rows]), tmp_path) == {"*": [0, 1, 2]}


def test_json_with_null_for_what_is_not_supported(tmp_path: Path) -> None:
    text = json.dumps({"op0": {"gpu": 1}, "op1": {"gpu": None}, "op2": {"gpu": "inf"}})
    assert read(text, tmp_path, "costs.json") == {"gpu": [1, np.inf, np.inf]}


def test_a_mark_of_spreadsheets_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    assert read("\ufeffoperation,gpu\n\nop0,1\nop1,1\nop2,1\n\n", tmp_path) == {"gpu": [1, 1, 1]}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("operation,gpu\nop0,1\nop1,1\n", "no times for: op2 on gpu"),
        ("operation,gpu\nop0,1\nop1,1\nop2,1\nopp2,1\n", r"does not have: opp2 \(did you mean op2"),
        ("operation,gp\nop0,1\nop1,1\nop2,1\n", r"topology does not have: gp \(did you mean gpu"),
        (
            "operation,gpu\nop0,-1\nop1,nan\nop2,x\n",
            "gpu of op0 is '-1', .*; gpu of op1 is 'nan', .*; gpu of op2 is 'x', but must be a number",
        ),
        ("operation,gpu\nop0,1,2\n", "Line 2 .* has 3 of 2 columns"),
        ("gpu,cpu\n1,2\n", "begins with the columns gpu, cpu"),
        ("operation\nop0\n", "begins with the columns operation"),
        ("", "begins with the columns none"),
        ("operation,gpu\n", "holds no times"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(text: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=cause):
        read(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "is not valid JSON"),
        ("[]", r"the file is \[\], but must be a table"),
        ('{"op0": 1}', "op0 is 1, but must be a table"),
        ('{"op0": {"gpu": true}}', "True"),
    ],
)
def test_a_wrong_json_file_says_what_is_wrong(text: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=cause):
        read(text, tmp_path, "costs.json")


def test_an_operation_given_twice_is_named(tmp_path: Path) -> None:
    name = GRAPH.names[0]
    rows = "".join(f"{n},1,2\n" for n in (*GRAPH.names, name))
    with pytest.raises(UsageError, match=f"given twice: {name} on cpu, {name} on gpu"):
        read(f"operation,cpu,gpu\n{rows}", tmp_path)


def test_a_missing_file_and_a_binary_one_are_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_costs(tmp_path / "none.csv", GRAPH.names, DEVICES)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not text"):
        read_costs(tmp_path / "binary.csv", GRAPH.names, DEVICES)


def test_written_costs_read_back_exactly(tmp_path: Path) -> None:
    op_s = np.array([[0.1, np.inf], [1 / 3, 2e-9], [0.0, 5.0]])
    costs = CostTable(GRAPH.names, MACHINE.topology.names, op_s, np.zeros(2), ("given", "given"))
    write_costs(tmp_path / "costs.csv", costs)
    found = read_costs(tmp_path / "costs.csv", GRAPH.names, DEVICES)
    assert np.array_equal(np.stack([found["cpu"], found["gpu"]], axis=1), op_s)


def test_names_with_commas_and_quotes_survive_writing(tmp_path: Path) -> None:
    costs = CostTable(('a,"b"', "c\nd"), ("cpu",), np.array([[1.0], [2.0]]), np.zeros(1), ("given",))
    write_costs(tmp_path / "costs.csv", costs)
    assert read_costs(tmp_path / "costs.csv", costs.names, DEVICES)["cpu"].tolist() == [1, 2]


def test_costs_that_cannot_be_written_are_a_wrong_option(tmp_path: Path) -> None:
    costs = CostTable(("a",), ("cpu",), np.ones((1, 1)), np.zeros(1), ("given",))
    with pytest.raises(UsageError, match="cannot be written"):
        write_costs(tmp_path / "none" / "costs.csv", costs)
