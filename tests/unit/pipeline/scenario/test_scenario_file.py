"""The scenario file: what it says, and what is wrong with it in one line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipeline.core.errors import ModelError, UsageError
from pipeline.scenario.scenario_file import ModelSource, ScenarioFile, phase_ranges, read_scenario
from runtime import zoo

TWO = """
[[models]]
name = "detector"
model = "zoo:resnet50"
rate = 15
deadline = "60ms"
[[models]]
name = "reader"
model = "zoo:bert-base"
after = "detector"
calls = 3.2
deadline = "0.1s"
late = "drop"
"""


def read(folder: Path, text: str) -> ScenarioFile:
    path = folder / "box.toml"
    path.write_text(text)
    return read_scenario(path)


def test_a_scenario_has_loads_deadlines_and_chains(tmp_path: Path) -> None:
    file = read(tmp_path, TWO)
    detector, reader = file.scenario.models
    assert (detector.rate, detector.deadline_s, detector.percentile, detector.late) == (15, 0.06, 99, "queue")
    assert (reader.after, reader.calls, reader.deadline_s, reader.late) == ("detector", 3.2, 0.1, "drop")
    assert file.scenario.rates() == {"detector": 15, "reader": 48}
    assert (file.scenario.objective, file.scenario.isolation) == ("load", "process")
    assert not file.plain


def test_the_scenarios_of_the_documentation_can_be_read() -> None:
    docs = Path(__file__).parents[4] / "docs"
    box, decoder = read_scenario(docs / "box.toml"), read_scenario(docs / "decoder.toml")
    assert [load.name for load in box.scenario.models] == ["detector", "reader", "speech"]
    assert decoder.scenario.families() == {"decoder": ["decoder-prefill", "decoder-decode"]}
    ranges = phase_ranges([decoder.sources[name] for name in decoder.scenario.families()["decoder"]])
    assert "input_ids=1x64|1" in ranges
    inputs = {port.any_name for port in zoo.build_model("decoder").inputs}
    assert {text.partition("=")[0] for text in ranges} == inputs


def test_models_without_rates_run_in_closed_loops(tmp_path: Path) -> None:
    text = '[[models]]\nname = "a"\nmodel = "zoo:resnet50"\n[[models]]\nname = "b"\nmodel = "zoo:resnet50"\n'
    assert read(tmp_path, text).scenario.objective == "throughput"
    stated = read(tmp_path, 'objective = "throughput"\n' + TWO).scenario
    assert [load.rate for load in stated.models] == [0, 0]


def test_one_model_without_a_load_is_tuned_as_a_model(tmp_path: Path) -> None:
    assert read(tmp_path, '[[models]]\nname = "a"\nmodel = "zoo:resnet50"\nshape = ["x[1,3,32,32]"]\n').plain
    assert not read(tmp_path, '[[models]]\nname = "a"\nmodel = "zoo:resnet50"\nconcurrency = 2\n').plain


def test_limits_have_units_and_paths_are_those_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.xml").touch()
    text = 'memory = "2GB"\nload_time = "5s"\nprocessor = 1.5\n[[models]]\nname = "a"\nmodel = "a.xml"\n'
    file = read(tmp_path, text)
    assert (file.scenario.memory_bytes, file.scenario.load_s, file.scenario.processor_s) == (2 * 10**9, 5.0, 1.5)
    assert file.sources["a"].model == str(tmp_path / "a.xml")
    assert math.isinf(file.scenario.models[0].deadline_s)


def test_a_trace_has_the_mean_rate_of_its_arrivals(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("0\n0.1\n0.4\n")
    text = TWO.replace("rate = 15", 'arrivals = "trace:t.txt"')
    load = read(tmp_path, text).scenario.models[0]
    assert (load.arrivals, load.trace_s, load.rate) == ("trace", (0.0, 0.1, 0.4), 5.0)


def test_phases_share_the_requests_of_their_model(tmp_path: Path) -> None:
    text = TWO.partition('[[models]]\nname = "reader"')[0]
    text += '[[models.phases]]\nname = "short"\nshape = ["x[1,3,64,64]"]\nshare = 3\n'
    text += '[[models.phases]]\nname = "long"\nshape = ["x[1,3,224,224]"]\n'
    file = read(tmp_path, text)
    assert {load.name: load.rate for load in file.scenario.models} == {"detector-short": 11.25, "detector-long": 3.75}
    assert file.sources["detector-long"].shapes == ("x[1,3,224,224]",)
    assert file.scenario.families() == {"detector": ["detector-short", "detector-long"]}
    assert phase_ranges(list(file.sources.values())) == ("x=1x3x64|224x64|224",)


@pytest.mark.parametrize(
    "shapes",
    [
        [("x[1,8]",), ("y[1,8]",)],
        [("x[1,8]",), ("x[1,8,8]",)],
        [("x[1,8]",), ("x[1,4]",), ("x[1,8]",)],
        [("x[1,?]",), ("x[1,4]",)],
    ],
)
def test_phases_whose_sizes_no_one_model_can_take_have_none(shapes: list[tuple[str, ...]]) -> None:
    assert phase_ranges([ModelSource("m.onnx", each, "") for each in shapes]) == ()


def test_phases_of_one_name_are_refused(tmp_path: Path) -> None:
    phase = '[[models.phases]]\nname = "p"\nshape = ["x[1,3,64,64]"]\n'
    path = tmp_path / "s.toml"
    path.write_text(f'[[models]]\nname = "m"\nmodel = "zoo:resnet50"\n{phase}{phase}', encoding="utf-8")
    with pytest.raises(UsageError, match="several models are called 'm-p'"):
        read_scenario(path)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("rate = 15", "rat = 15", "has an unknown key 'rat' (did you mean 'rate'?)"),
        ("rate = 15", "rate = 0", "rate of model detector is 0, but must be above 0"),
        (
            "rate = 15",
            "rate = 15\nconcurrency = 1",
            "model detector has rate and concurrency, of which it may have one",
        ),
        ('deadline = "60ms"', 'deadline = "60 ms!"', "The deadline of model detector '60 ms!' is not a duration"),
        (
            'after = "detector"',
            'after = "detectr"',
            "reader is after an unknown 'detectr' (Did you mean 'detector'?)",
        ),
        ("rate = 15", 'after = "reader"', "detector after reader after detector is a cycle"),
        ('name = "reader"', 'name = "detector"', "several models are called 'detector'"),
        ('name = "reader"', 'name = "a/b"', "is 'a/b', but must be letters, digits, dashes and underlines"),
        ("rate = 15", 'arrivals = "trace:no.txt"', "no.txt, cannot be read: No such file"),
        ("rate = 15", 'arrivals = "burst"', 'must be "poisson", "periodic" or "trace:FILE"'),
        ('deadline = "60ms"', "", None),
        ('deadline = "0.1s"\n', "", 'model reader has late = "drop", but no deadline'),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, before: str, after: str, said: str | None) -> None:
    text = TWO.replace(before, after, 1)
    assert text != TWO
    if said is None:  # one deadline is enough
        assert read(tmp_path, text).scenario.objective == "load"
        return
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert said in caught.value.cause
    assert "\n" not in caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["det.onnx", "x" * 300])
def test_a_model_that_is_not_there_is_no_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=f"The model detector, .*{name}, does not exist") as caught:
        read(tmp_path, TWO.replace('model = "zoo:resnet50"', f'model = "{name}"', 1))
    assert caught.value.exit_code == 3


def test_the_objective_load_needs_a_rate_and_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='"load" needs a model with a rate, and one with a deadline'):
        read(tmp_path, 'objective = "load"\n[[models]]\nname = "a"\nmodel = "zoo:resnet50"\n')
    with pytest.raises(UsageError, match='"latency" needs a rate, concurrency or after of model a'):
        read(tmp_path, 'objective = "latency"\n[[models]]\nname = "a"\nmodel = "zoo:resnet50"\n')
