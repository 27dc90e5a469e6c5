"""search, simulate and bound from a file to the answer, and what they say of bad input."""

from __future__ import annotations

import gzip
import json
import pkgutil
import threading
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.cli.main import run_command_line
from pipeline.core.errors import UsageError
from pipeline.core.placement import Placement
from pipeline.offline.scenario import Scenario, load

Ran = Callable[..., Any]
Fails = Callable[..., tuple[str, str]]

KEYS = {
    *(
        "schema",
        "single_device",
        "single_s",
        "graph",
        "topology",
        "evaluator",
        "level",
        "mode",
        "memory",
        "ties",
        "placer",
        "seed",
        "operations",
        "edges",
    ),
    *("devices", "costs", "value_s", "lower_bound_s", "gap", "proven", "bound_by", "found_by", "evaluations"),
    *("seconds", "planned_s", "fifo_s", "priority_s", "feasible", "over_bytes", "busy_s", "peak_bytes", "cut_bytes"),
    *("placement", "priority", "contiguity", "stages", "calls", "replicated", "own_s", "notes"),
    *("regret", "near", "robust"),
}

# Two branches between a and f; b must run with c.
GRAPH: dict[str, Any] = {
    "operations": [
        {"name": "a", "time_s": 0.001, "output_bytes": 1_000_000, "weight_bytes": 3_000},
        {"name": "b", "time_s": 0.004, "output_bytes": 2_000_000, "weight_bytes": 5_000, "colocate": 1},
        {"name": "c", "time_s": 0.003, "output_bytes": 2_000_000, "weight_bytes": 4_000, "colocate": 1},
        {"name": "d", "time_s": 0.002, "output_bytes": 500_000, "weight_bytes": 2_000},
        {"name": "e", "time_s": 0.005, "output_bytes": 500_000, "weight_bytes": 6_000},
        {"name": "f", "time_s": 0.001, "output_bytes": 8},
    ],
    "edges": [{"from": x, "to": y} for x, y in ("ab", "ad", "bc", "de", "cf", "ef")],
    "link_bytes_per_s": 2e9,
}
QUICK = ["--placer", "greedy", "--evaluations", "200"]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return written(tmp_path / "graph.json", GRAPH)


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Return a function that runs a command, which must fail with a code, and gives the lines of cause and remedy."""

    def command(code: int, *arguments: object) -> tuple[str, str]:
        capsys.readouterr()
        found = run_command_line([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert found == code, err
        assert out == ""
        cause, fix = [line for line in err.splitlines() if line.strip()][-2:]
        assert cause.startswith("error: ")
        assert fix.startswith("  fix: ")
        assert "Traceback" not in err
        return cause, fix

    return command


def weights_only(**more: Any) -> dict[str, Any]:
    """Return the graph without anything flowing: 20,000 bytes of weights are all it needs of memory."""
    return {**GRAPH, "operations": [{**op, "output_bytes": 0} for op in GRAPH["operations"]], **more}


def written(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def test_the_answer_has_the_documented_keys(graph: Path, ran: Ran) -> None:
    found = ran("search", str(graph), "--topology", "equal:2", "--level", "T0", *QUICK)
    assert set(found) == KEYS
    assert found["schema"] == "placewright.search/1"
    assert (found["single_device"], found["single_s"]) == ("gpu0", pytest.approx(0.016))
    assert (found["evaluator"], found["level"], found["mode"]) == ("listsched", "T0", "placement")
    assert (found["operations"], found["edges"], found["devices"]) == (6, 6, ["gpu0", "gpu1"])
    assert found["feasible"]
    assert found["value_s"] == found["fifo_s"]
    assert found["priority_s"] is found["priority"] is None
    assert list(found["placement"]) == list("abcdef")
    assert sum(found["busy_s"].values()) == pytest.approx(0.016)
    assert 0 <= found["gap"] < 1


def test_an_answer_that_is_written_can_be_simulated(graph: Path, ran: Ran, tmp_path: Path) -> None:
    machine = (str(graph), "--topology", "equal:2")
    found = ran("search", *machine, "--out", str(tmp_path / "answer.json"), *QUICK)
    assert json.loads((tmp_path / "answer.json").read_text()) == found
    again = ran("simulate", *machine, "--placement", str(tmp_path / "answer.json"))
    assert (again["schema"], again["value_s"]) == ("placewright.simulate/1", found["value_s"])


def test_an_edited_graph_is_placed_near_the_earlier_placement(tmp_path: Path, graph: Path, ran: Ran) -> None:
    first = ran("search", str(graph), "--topology", "equal:2", "--out", str(tmp_path / "first.json"), *QUICK)
    near = ("--topology", "equal:2", "--near", str(tmp_path / "first.json"), *QUICK)
    same = ran("search", str(graph), *near, "--moves", "0")
    assert same["placement"] == first["placement"]
    assert (same["near"]["moved"], same["near"]["before_s"]) == ([], first["value_s"])
    renamed = [{**op, "name": op["name"].replace("f", "g")} for op in GRAPH["operations"]]
    edges = [{key: end.replace("f", "g") for key, end in edge.items()} for edge in GRAPH["edges"]]
    edited = written(tmp_path / "edited.json", {**GRAPH, "operations": renamed, "edges": edges})
    found = ran("search", str(edited), *near, "--moves", "1")
    assert (found["near"]["added"], found["near"]["removed"]) == (["g"], ["f"])
    changed = [name for name in "abcde" if found["placement"][name] != first["placement"][name]]
    assert [row["operation"] for row in found["near"]["moved"]] == changed
    assert len(changed) <= 1


def test_a_robust_answer_is_told_beside_the_nominal_one(graph: Path, ran: Ran) -> None:
    found = ran("search", str(graph), "--topology", "equal:2", "--robust", "20%", "--evaluations", "2000")
    robust = found["robust"]
    assert (robust["residual"], robust["quantile"]) == (0.2, 0.9)
    assert found["value_s"] >= robust["nominal_s"] * (1 - 1e-9)
    assert robust["value_s"] <= robust["nominal_value_s"]


def test_the_residual_of_a_calibration_is_the_deviation_of_its_median_error(
    tmp_path: Path, graph: Path, ran: Ran, fails: Fails
) -> None:
    costs = written(tmp_path / "costs.json", {op["name"]: {"*": op["time_s"]} for op in GRAPH["operations"]})
    asked = ("search", str(graph), "--topology", "equal:2", "--robust", "calibration", *QUICK)
    assert "No calibrated costs" in fails(2, *asked)[0]
    assert "calibration.json cannot be read" in fails(2, *asked, "--costs", str(costs))[0]
    written(tmp_path / "calibration.json", {"left_out_error": None})
    assert "states no error" in fails(2, *asked, "--costs", str(costs))[0]
    written(tmp_path / "calibration.json", {"left_out_error": 0.13490})
    assert ran(*asked, "--costs", str(costs))["robust"]["residual"] == pytest.approx(0.2)


def test_what_search_returns_can_be_simulated(graph: Path) -> None:
    scenario = pipeline.Scenario(str(graph), "equal:2")
    found = pipeline.search(scenario, pipeline.Effort("heft", evaluations=9))
    for placement in (found, found["placement"]):
        assert pipeline.simulate(scenario, placement)["value_s"] == found["value_s"]
    with pytest.raises(UsageError, match="The placement"):
        pipeline.simulate(scenario, {"a": 1})  # type: ignore[dict-item]


def test_a_rule_that_is_slower_than_one_device_says_by_how_much(
    graph: Path, ran: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {**GRAPH, "link_bytes_per_s": 2e6}  # no parting pays
    written(graph, slow)
    found = ran("search", str(graph), "--topology", "equal:2", "--placer", "round_robin", "--evaluations", "9")
    assert found["found_by"] == "single"
    assert found["own_s"] > 2 * found["value_s"]
    (note,) = found["notes"]
    times = f"{found['own_s'] / found['value_s']:.5g} times as long as the best single device, which is the answer."
    assert note == f"round_robin's own placement takes {found['own_s'] * 1e3:.6g} ms, {times}"
    assert (
        run_command_line(
            ["search", str(graph), "--topology", "equal:2", "--placer", "round_robin", "--evaluations", "9"]
        )
        == 0
    )
    assert f"note: {note}" in capsys.readouterr().err


def test_a_placer_that_cannot_finish_an_episode_says_what_that_takes(graph: Path, ran: Ran) -> None:
    written(graph, {**GRAPH, "link_bytes_per_s": 2e6})
    found = ran("search", str(graph), "--topology", "equal:2", "--placer", "placeto", "--evaluations", "3")
    assert found["notes"][0].startswith("placeto has not finished its first update: it takes up to ")
    assert "2 of 3 were left for that" in found["notes"][0]


@pytest.mark.parametrize("evaluator", ["listsched", "sequential"])
def test_a_small_graph_is_placed_no_worse_than_any_placement_a_trial_of_all_finds(
    evaluator: str, graph: Path, ran: Ran
) -> None:
    found = ran("search", str(graph), "--topology", "equal:2", "--evaluator", evaluator, *QUICK)
    case = load(Scenario(str(graph), "equal:2", evaluator=evaluator))
    plans = np.array([d for d in product(range(2), repeat=6) if d[1] == d[2]], np.int32)
    best_s = float(case.simulator().simulate(plans).value_s.min())
    assert found["value_s"] == pytest.approx(best_s)
    assert found["lower_bound_s"] <= best_s * (1 + 1e-9)


def test_tied_operations_stay_together_and_pins_are_kept(graph: Path, tmp_path: Path, ran: Ran) -> None:
    pins = written(tmp_path / "pins.json", {"c": "gpu1", "a": "gpu0"})
    found = ran("search", str(graph), "--topology", "equal:2", "--pins", str(pins), *QUICK)["placement"]
    assert (found["a"], found["b"], found["c"]) == ("gpu0", "gpu1", "gpu1")


def test_without_ties_operations_may_part(graph: Path) -> None:
    assert load(Scenario(str(graph), "equal:2")).problem.grouping.k == 5
    assert load(Scenario(str(graph), "equal:2", ties=False)).problem.grouping.k == 6


def test_simulating_an_answer_gives_its_figures(graph: Path, tmp_path: Path, ran: Ran) -> None:
    options = [str(graph), "--topology", "equal:2", "--level", "T1"]
    answer = ran("search", *options, *QUICK)
    for name, document in (("answer.json", answer), ("flat.json", answer["placement"])):
        again = ran("simulate", *options, "--placement", str(written(tmp_path / name, document)))
        same = ("value_s", "fifo_s", "busy_s", "peak_bytes", "cut_bytes", "placement", "feasible", "over_bytes")
        assert {k: again[k] for k in same} == {k: answer[k] for k in same}
    bound = ran("bound", *options)
    assert bound["lower_bound_s"] <= answer["value_s"]
    assert bound["bound_by"]


def test_a_plan_with_an_order_is_run_by_it_and_without(graph: Path, tmp_path: Path, ran: Ran) -> None:
    options = [str(graph), "--topology", "equal:1"]
    placement = dict.fromkeys("abcdef", "gpu0")
    priority = {name: float(i) for i, name in enumerate("adebcf")}
    plan = written(tmp_path / "plan.json", {"placement": placement, "priority": priority})
    found = ran("simulate", *options, "--placement", str(plan), "--trace", str(tmp_path / "t.json"))
    assert found["priority"] == priority
    assert found["value_s"] == found["priority_s"] == pytest.approx(found["fifo_s"])
    events = json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == list("adebcf")


def test_an_order_that_matters_is_told_apart_from_first_come_first_served(tmp_path: Path, ran: Ran) -> None:
    operations = [{"name": n, "time_s": t} for n, t in (("y", 0.003), ("x", 0.001), ("z", 0.005))]
    graph = written(tmp_path / "g.json", {"operations": operations, "edges": [{"from": "x", "to": "z"}]})
    placement = {"y": "gpu0", "x": "gpu0", "z": "gpu1"}
    plan = written(tmp_path / "p.json", {"placement": placement, "priority": {"x": 0, "y": 1, "z": 2}})
    found = ran("simulate", str(graph), "--topology", "equal:2", "--level", "T0", "--placement", str(plan))
    assert found["value_s"] == found["priority_s"] == pytest.approx(0.006)
    assert found["fifo_s"] == pytest.approx(0.009)


def test_with_mode_order_all_three_executions_are_told(graph: Path, ran: Ran) -> None:
    found = ran("search", str(graph), "--topology", "equal:2", "--mode", "order", *QUICK)
    assert found["mode"] == "order"
    assert set(found) == KEYS
    assert found["value_s"] in (found["fifo_s"], found["priority_s"])


def test_a_trace_is_written_compressed(graph: Path, tmp_path: Path, ran: Ran) -> None:
    path = tmp_path / "new" / "t.json.gz"
    found = ran("search", str(graph), "--topology", "equal:2", *QUICK, "--trace", str(path))
    trace = json.loads(gzip.decompress(path.read_bytes()))
    computed = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    assert sorted(e["name"] for e in computed) == list("abcdef")
    assert trace["otherData"]["value_s"] == pytest.approx(found["value_s"])


def test_equal_seeds_and_evaluations_give_equal_answers(graph: Path, ran: Ran) -> None:
    arguments = ["search", str(graph), "--topology", "equal:3", "--placer", "random", "--evaluations", "30"]
    one, two = (ran(*arguments, "--seed", "5") for _ in range(2))
    assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in two.items() if k != "seconds"}
    assert one["evaluations"] <= 30


def test_parameters_of_placer_and_evaluator_can_be_set(graph: Path, ran: Ran) -> None:
    options = ["search", str(graph), "--topology", "equal:2", "--level", "T1", *QUICK]
    few = ran(*options, "--set", "place.greedy.passes=0")
    assert few["evaluations"] < ran(*options)["evaluations"]
    slow = ran(*options, "--set", "measure.listsched.block_s=1.0")
    assert slow["value_s"] > 1


def test_the_official_format_is_searched_with_its_own_links_and_memory(tmp_path: Path, ran: Ran) -> None:
    node = {"supportedOnFpga": True, "cpuLatency": 10.0, "fpgaLatency": 1.0, "size": 2e6}
    nodes = [{**node, "id": i, "name": f"n{i}"} for i in range(3)]
    edges = [{"sourceId": 0, "destId": i, "cost": 0.5} for i in (1, 2)]
    problem = {"maxSizePerFPGA": 3.9e6, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}
    path = written(tmp_path / "problem.json", problem)
    options = ["search", str(path), "--topology", "equal:3", "--level", "T0", *QUICK]
    found = ran(*options)
    assert found["value_s"] == pytest.approx(2.5e-3, rel=1e-6)
    assert max(found["peak_bytes"].values()) <= 3.9e6
    free = ran(*options, "--no-memory")
    assert free["value_s"] == pytest.approx(2.5e-3, rel=1e-6)
    assert ran(*options, "--cost-scale", "4", "--no-memory")["value_s"] == pytest.approx(3e-3, rel=1e-6)


MACHINE = """
[links]
bytes_per_s = 1e9
latency_s = 1e-6
[[device]]
name = "A"
kind = "cpu"
[[device]]
name = "B"
kind = "gpu"
chip = "p100"
"""


def test_a_model_with_a_topology_file_and_costs_gets_a_device_for_all_its_operations(
    model: Path, tmp_path: Path, ran: Ran
) -> None:
    machine, costs = written(tmp_path / "machine.toml", MACHINE), tmp_path / "costs.csv"
    options = [str(model), "--topology", str(machine)]
    bound = ran("bound", *options, "--write-costs", str(costs))
    assert bound["costs"] == {"A": "modelled", "B": "modelled"}
    found = ran("search", *options, "--costs", str(costs), *QUICK)
    assert found["costs"] == {"A": "given", "B": "given"}
    case = load(Scenario(str(model), str(machine)))
    assert case.members is not None
    assert set(found["placement"]) == set(case.members[0]) > set(case.graph.names)
    answer = written(tmp_path / "answer.json", found)
    assert ran("simulate", *options, "--placement", str(answer))["value_s"] == pytest.approx(found["value_s"])
    folded = {name: found["placement"][name] for name in case.graph.names}
    again = ran("simulate", *options, "--placement", str(written(tmp_path / "folded.json", folded)))
    assert again["placement"] == found["placement"]


def test_a_pin_of_a_weight_binds_the_operation_it_is_folded_into(model: Path, tmp_path: Path, fails: Fails) -> None:
    case = load(Scenario(str(model), "equal:2"))
    assert case.members is not None
    names, grouping = case.members
    home = [case.graph.names[g] for g in grouping.group]
    weight, operation = next((n, h) for n, h in zip(names, home, strict=True) if n != h)
    pins = written(tmp_path / "pins.json", {weight: "gpu1"})
    pinned = load(Scenario(str(model), "equal:2", pins=pins))
    assert pinned.problem.allowed[case.graph.names.index(operation)].tolist() == [False, True]
    written(pins, {weight: "gpu1", operation: "gpu0"})
    cause, _ = fails(2, "bound", model, "--topology", "equal:2", "--pins", pins)
    assert weight in cause
    assert operation in cause


def test_a_placer_that_learns_gets_what_it_needs(graph: Path, ran: Ran) -> None:
    arguments = ["--topology", "equal:2", "--placer", "hsdag", "--evaluations", "12"]
    found = ran("search", str(graph), *arguments)
    assert found["feasible"]
    assert found["placement"]["b"] == found["placement"]["c"]


def test_a_graph_of_the_zoo_takes_options(ran: Ran) -> None:
    found = ran("search", "zoo:layered?n=20", "--topology", "equal:2", *QUICK)
    assert found["operations"] == 20
    assert found["graph"] == "zoo:layered?n=20"


def test_the_zoo_lists_models_and_graphs(ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    found = ran("zoo", "list")
    assert "inference" in found["models"]["resnet50"]
    assert "training step" in found["graphs"]["resnet50-training"]
    assert run_command_line(["zoo", "list"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told and text in told for kind in found.values() for name, text in kind.items())


def test_the_zoos_model_is_searched_under_its_name_and_its_training_step_under_another(ran: Ran) -> None:
    common = ("--topology", "cpu+gpu", "--evaluator", "sequential", "--placer", "single", "--evaluations", "2")
    model = ran("search", "zoo:resnet50", *common)
    assert model["operations"] == 178  # of 396, without what is computed from weights alone
    assert model["costs"] == {"cpu": "modelled", "gpu": "modelled"}
    assert len(model["placement"]) == 396
    step = ran("search", "zoo:resnet50-training", *common)
    assert step["operations"] == len(step["placement"]) > 1000


def test_limits_of_reading_hold_for_models_of_the_zoo(fails: Fails) -> None:
    slow = ("--set", "coarsen.read_timeout_s=0.001")
    cause, fix = fails(3, "search", "zoo:resnet50", "--topology", "equal:2", *slow, *QUICK)
    assert "longer than 0.001 s" in cause
    assert "coarsen.read_timeout_s" in fix


def test_directions_are_searched_one_by_one_if_asked_for(ran: Ran) -> None:
    question = ("search", "zoo:bilstm-128", "--topology", "equal:2", *QUICK)
    whole = ran(*question)
    split = ran(*question, "--set", "coarsen.split_directions=true")
    assert "layer0/reverse" in set(split["placement"]) - set(whole["placement"])
    assert split["operations"] > whole["operations"]


def test_what_is_no_model_has_no_directions_to_split(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    for graph in (str(tmp_path / "graph.json"), "zoo:chainmm"):
        asked = ("--set", "coarsen.split_directions=true")
        cause, fix = fails(2, "search", graph, "--topology", "equal:2", *asked, *QUICK)
        assert "not a model" in cause
        assert "coarsen.split_directions" in fix


def test_a_model_of_the_zoo_takes_no_options(fails: Fails) -> None:
    cause, fix = fails(2, "search", "zoo:resnet50?batch=2", "--topology", "equal:2", *QUICK)
    assert "resnet50 has no options" in cause
    assert "zoo list" in fix


def test_answers_go_to_standard_output_and_nothing_else_is_said_in_a_pipe(
    graph: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = written(tmp_path / "plan.json", dict.fromkeys("abcdef", "gpu0"))
    options = [str(graph), "--topology", "equal:2"]
    for arguments in (
        ["search", *options, *QUICK, "--trace", str(tmp_path / "t.json")],
        ["simulate", *options, "--placement", str(plan)],
        ["bound", *options],
    ):
        assert run_command_line(arguments) == 0
        out, err = capfd.readouterr()
        assert "6 operations" in out
        assert " ms" in out
        assert err == ""


def test_a_placement_that_exceeds_memory_is_simulated_and_said_not_to_fit(tmp_path: Path, ran: Ran) -> None:
    graph = written(tmp_path / "graph.json", weights_only())
    machine = MACHINE.replace('kind = "gpu"', 'kind = "gpu"\nmemory_bytes = 10_000')
    plan = written(tmp_path / "plan.json", dict.fromkeys("abcdef", "B"))
    options = [str(graph), "--topology", str(written(tmp_path / "m.toml", machine)), "--placement", str(plan)]
    found = ran("simulate", *options, "--level", "T0")
    assert not found["feasible"]
    assert found["over_bytes"] == 10_000
    assert found["value_s"] == pytest.approx(0.016)
    assert ran("simulate", *options, "--no-memory")["feasible"]


def test_the_memory_that_an_error_names_suffices(tmp_path: Path, ran: Ran, fails: Fails) -> None:
    graph = written(tmp_path / "graph.json", weights_only(memory_bytes=9_000))
    options = [str(graph), "--topology", "equal:2", "--level", "T0", *QUICK]
    cause, fix = fails(4, "search", *options)
    assert "20 kB" in cause
    needed = int(next(word for word in fix.split() if word.isdecimal()))
    assert needed == 11_000  # 9 + 2 and 6 + 3, or 9 and 6 + 3 + 2
    written(graph, weights_only(memory_bytes=needed))
    assert ran("search", *options)["feasible"]


def test_the_memory_that_an_error_names_holds_what_operations_put_out_too(
    tmp_path: Path, ran: Ran, fails: Fails
) -> None:
    chain = [{"name": n, "time_s": 0.001, "weight_bytes": 400, "output_bytes": 10} for n in "abcdef"]
    edges = [{"from": x, "to": y} for x, y in pairwise("abcdef")]
    path = tmp_path / "graph.json"
    options = [str(path), "--topology", "equal:2", "--level", "T0", *QUICK]
    for limit in (500, 1_200):  # too little for the weights, and for the weights only
        written(path, {"operations": chain, "edges": edges, "memory_bytes": limit})
        _, fix = fails(4, "search", *options)
        assert (
            int(next(word for word in fix.split() if word.isdecimal())) == 1_220
        )  # three weights, what one reads, and what it puts out
    written(path, {"operations": chain, "edges": edges, "memory_bytes": 1_220})
    assert ran("search", *options)["feasible"]


def test_an_interrupted_search_is_not_said_to_go_on(graph: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.offline.search.load", interrupt)
    assert "starts from scratch" in fails(130, "search", graph, "--topology", "equal:2")[1]


def test_nothing_compiled_runs_where_an_interrupt_would_meet_it(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    for name in ("pipeline.offline.search.compile_kernels", "policy.place.exact.shared.proofs.lower_bound"):
        whole = pkgutil.resolve_name(name)

        def told(*args: Any, whole: Callable[..., Any] = whole, **options: Any) -> Any:
            threads.append(threading.current_thread())
            return whole(*args, **options)

        monkeypatch.setattr(name, told)
    pipeline.bound(pipeline.Scenario(str(graph), "equal:2", level="T0"))
    assert threads
    assert threading.main_thread() not in threads


def test_python_asks_the_same_questions(graph: Path, tmp_path: Path) -> None:
    scenario = pipeline.Scenario(str(graph), "equal:2", level="T0")
    answer = pipeline.search(scenario, pipeline.Effort("greedy", evaluations=200))
    plan = written(tmp_path / "plan.json", answer["placement"])
    assert pipeline.simulate(scenario, plan)["value_s"] == answer["value_s"]
    assert pipeline.bound(scenario)["lower_bound_s"] <= answer["value_s"]


def test_nodes_placed_by_a_search_are_the_graphs_operations(graph: Path) -> None:
    case = load(Scenario(str(graph), "equal:2", ordered=True))
    assert case.problem.ordered
    assert case.problem.grouping.k == 5
    plan = Placement(np.zeros(6, np.int32), case.topology.names, np.arange(6.0))
    assert case.lifted(plan)["priority"] == {name: float(i) for i, name in enumerate("abcdef")}


@pytest.mark.parametrize(
    ("arguments", "code", "cause", "fix"),
    [
        (["--topology", "equl:4"], 2, "Unknown topology file or preset 'equl:4'", "equal:4"),
        (["--topology", "equal"], 2, "equal:N needs N >= 1, got none", "equal:4"),
        (["--topology", "none.toml"], 2, "none.toml cannot be read", "preset"),
        (["--evaluator", "listshed"], 2, "'listshed'", "listsched"),
        (["--evaluator", "hetero"], 2, "hetero is not a simulator", "listsched"),
        (["--evaluator", "sequential", "--level", "T1"], 2, "sequential has no levels", "--level"),
        (["--evaluator", "sequential", "--mode", "order"], 2, "ignores the order", "placement"),
        (["--level", "T9"], 2, "'T9'", "T2"),
        (["--mode", "orders"], 2, "'orders'", "--help"),
        (["--placer", "gredy"], 2, "'gredy'", "greedy"),
        (["--budget", "soon"], 2, "is not a duration", "120s"),
        (["--evaluations", "0"], 2, "'--evaluations'", "--help"),
        (["--set", "place.greedy.pass=1"], 2, "'place.greedy.pass'", "place.greedy.passes"),
        (["--set", "place.use=greedy"], 2, "does not use place.use", "place.NAME.KEY"),
        (["--set", "passes"], 2, "is not key=value", "--set"),
        (["--cost-scale", "2"], 2, "bytes on its edges", "--cost-scale"),
        (["--costs", "none.csv"], 2, "none.csv cannot be read", "CSV"),
        (["--seed", "-1"], 2, "-1 is not in the range", "--help"),
        (["--near", "none.json"], 2, "none.json cannot be read", "JSON"),
        (["--moves", "1"], 2, "operations of an earlier placement", "--near"),
        (["--near", "none.json", "--robust", "10%"], 2, "exclude each other", "one of them"),
        (["--pins", "none.json"], 2, "none.json cannot be read", "JSON"),
        (["--trace", "graph.json/t.json"], 2, "cannot be written", "another path"),
    ],
)
def test_a_wrong_option_is_said_in_one_line_of_cause_and_one_of_remedy(
    arguments: list[str], code: int, cause: str, fix: str, graph: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(graph.parent)
    said = fails(code, "search", "graph.json", "--topology", "equal:2", *QUICK, *arguments)
    assert cause in said[0]
    assert fix in said[1]


def test_a_missing_topology_is_asked_for(graph: Path, fails: Fails) -> None:
    assert "--topology" in fails(2, "search", graph)[0]


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("cycle.json", {"operations": [{"name": "a"}], "edges": [{"from": "a", "to": "a"}]}, "has a cycle: a -> a"),
        ("negative.json", {"operations": [{"name": "a", "time_s": -1}], "edges": []}, "time_s of operation a is -1"),
        ("nan.json", '{"operations": [{"name": "a", "time_s": NaN}], "edges": []}', "time_s of operation a is nan"),
        ("other.json", {"layers": []}, "is not a graph"),
        ("broken.json", "{", "is not valid JSON"),
        ("broken.xml", "<html/>", "is not OpenVINO IR"),
        ("none.json", None, "cannot be read"),
        ("none.onnx", None, "File not found"),
    ],
)
def test_a_graph_that_cannot_be_read_ends_with_3(
    name: str, content: Any, cause: str, tmp_path: Path, fails: Fails
) -> None:
    if content is not None:
        written(tmp_path / name, content)
    assert cause in fails(3, "search", tmp_path / name, "--topology", "equal:2", *QUICK)[0]


def test_an_unknown_graph_of_the_zoo_gets_the_nearest(fails: Fails) -> None:
    cause, fix = fails(2, "search", "zoo:rnlm2", "--topology", "equal:2", *QUICK)
    assert "'rnlm2'" in cause
    assert "rnnlm2" in fix


def test_an_operation_that_no_device_supports_ends_with_4(tmp_path: Path, fails: Fails) -> None:
    document = {"operations": [{"name": "a", "time_s": {"cpu": 1, "*": None}}], "edges": []}
    graph = written(tmp_path / "graph.json", document)
    cause, fix = fails(4, "search", graph, "--topology", "equal:2", *QUICK)
    assert "No device supports 1 operation(s): a." in cause
    assert "Add a device" in fix


def test_tied_operations_without_a_common_device_end_with_4(graph: Path, tmp_path: Path, fails: Fails) -> None:
    pins = written(tmp_path / "pins.json", {"b": "gpu0", "c": "gpu1"})
    cause, _ = fails(4, "search", graph, "--topology", "equal:2", "--pins", pins, *QUICK)
    assert "colocation constraint: b, c" in cause


def test_pins_to_devices_that_do_not_support_the_operation_are_named(tmp_path: Path, fails: Fails) -> None:
    operations = [{"name": "a", "time_s": {"A": 1, "B": None}}]
    graph = written(tmp_path / "graph.json", {"operations": operations, "edges": []})
    machine, pins = written(tmp_path / "m.toml", MACHINE), written(tmp_path / "pins.json", {"a": "B"})
    cause, fix = fails(4, "search", graph, "--topology", machine, "--pins", pins, *QUICK)
    assert "a -> B" in cause
    assert "Pin them to other devices" in fix


def test_pins_of_what_is_not_there_are_named(graph: Path, tmp_path: Path, fails: Fails) -> None:
    pins = written(tmp_path / "pins.json", {"z": "gpu0", "a": "gpu7"})
    cause, _ = fails(2, "bound", graph, "--topology", "equal:2", "--pins", pins)
    assert "z -> gpu0, a -> gpu7" in cause


def test_a_topology_without_a_link_lists_it(graph: Path, tmp_path: Path, fails: Fails) -> None:
    machine = written(tmp_path / "machine.toml", '[[device]]\nname = "A"\n[[device]]\nname = "B"\n')
    assert "A -> B, B -> A" in fails(2, "search", graph, "--topology", machine, *QUICK)[0]
    written(machine, "[links]\nbytes_per_s = 1e9\n")
    assert "names no device" in fails(4, "search", graph, "--topology", machine, *QUICK)[0]


@pytest.mark.parametrize(
    ("costs", "cause"),
    [
        ("operation,gpu\n" + "".join(f"{x},1\n" for x in "abcde"), "no times for: f on gpu"),
        ("operation,gpu\n" + "".join(f"{x},1\n" for x in "abcdefz"), "does not have: z"),
        ("operation,gpu\n" + "".join(f"{x},-1\n" for x in "abcdef"), "gpu of a is '-1', but must be at least 0"),
        ("operation,tpu\n" + "".join(f"{x},1\n" for x in "abcdef"), "topology does not have: tpu"),
    ],
)
def test_costs_that_do_not_fit_name_what_is_wrong(
    costs: str, cause: str, graph: Path, tmp_path: Path, fails: Fails
) -> None:
    path = written(tmp_path / "costs.csv", costs)
    assert cause in fails(2, "search", graph, "--topology", "equal:2", "--costs", path, *QUICK)[0]


@pytest.mark.parametrize(
    ("plan", "code", "cause"),
    [
        (
            {"a": "gpu0", "q": "gpu1"},
            2,
            "operations without a device: b, c, d, e, f; operations the model does not have: q",
        ),
        (dict.fromkeys("abcdef", "gpu9"), 2, "unknown devices: gpu9"),
        (dict.fromkeys("abcdef", 0), 2, "does not name one device per operation"),
        ({"placement": dict.fromkeys("abcdef", "gpu0"), "priority": {"a": 1}}, 2, "not one number per operation"),
        ({"placement": dict.fromkeys("abcdef", "gpu0"), "priority": [1]}, 2, "not one number per operation"),
        ([], 2, "holds no JSON object"),
        ("{", 2, "is not valid JSON"),
        (None, 2, "cannot be read"),
    ],
)
def test_a_placement_that_does_not_fit_the_graph_names_what_is_wrong(
    plan: Any, code: int, cause: str, graph: Path, tmp_path: Path, fails: Fails
) -> None:
    path = tmp_path / "plan.json" if plan is None else written(tmp_path / "plan.json", plan)
    assert cause in fails(code, "simulate", graph, "--topology", "equal:2", "--placement", path)[0]


def test_a_placement_on_a_device_that_does_not_support_it_ends_with_4(tmp_path: Path, fails: Fails) -> None:
    operations = [{"name": "a", "time_s": {"A": 1, "B": None}}]
    graph = written(tmp_path / "graph.json", {"operations": operations, "edges": []})
    machine, plan = written(tmp_path / "m.toml", MACHINE), written(tmp_path / "plan.json", {"a": "B"})
    cause, _ = fails(4, "simulate", graph, "--topology", machine, "--placement", plan)
    assert "a on B" in cause
