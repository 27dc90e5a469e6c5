"""How large constants become once they are folded, by hand, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading.model.constant_growth import FACTOR, Growth, ReadLimits, check_growth, constant_growth
from coarsen.reading.model.read import _keep_packed, models_within, read_model, save_model
from pipeline.core.errors import ModelError
from tests.models import SMALL, broadcast_model, constant


def of(model: ov.Model) -> Growth:
    packed = {o.get_name() for o in _keep_packed(model)}
    return constant_growth(models_within(model), keeps=lambda o: o.get_name() in packed)


def stored_bytes(model: ov.Model) -> int:
    """Return the bytes of all constants of a model, its bodies included."""
    constants = [o for m in models_within(model) for o in m.get_ordered_ops() if o.get_type_name() == "Constant"]
    return sum(-(-o.get_output_size() * int(np.prod(o.shape)) * o.get_element_type().bitwidth // 8) for o in constants)


@pytest.mark.parametrize("build", SMALL)
def test_the_bytes_foretold_are_those_of_the_folded_model(build: Callable[[], ov.Model], tmp_path: Path) -> None:
    foretold = of(build()).total_bytes
    save_model(build(), tmp_path / "m.xml")
    assert foretold == stored_bytes(read_model(tmp_path / "m.xml"))


def test_a_broadcast_number_counts_as_what_it_becomes() -> None:
    found = of(broadcast_model(300))
    assert (found.largest, found.largest_bytes) == ("big", 4 * 300 * 300)
    assert found.total_bytes == 4 * 300 * 300 + 16  # and two int64 axes of the sum


def test_a_large_tensor_on_the_way_to_a_small_one_counts() -> None:
    x = op.parameter([1], np.float32, name="x")
    big = op.tile(constant([1.0], "one"), constant([1000], "times", np.int64), name="big")
    small = op.reduce_sum(big, constant([0], "axes", np.int64), True, name="small")
    found = of(ov.Model([op.result(op.add(x, small))], [x], "m"))
    assert found == Growth(total_bytes=4, largest_bytes=4000, largest="big")


def test_what_is_known_only_when_the_model_runs_does_not_count() -> None:
    limits = [constant(v, f"limit{v}") for v in (0.0, 1.0)]
    drawn = op.random_uniform(constant([1000], "shape", np.int64), *limits, "f32", 1, 2)
    x = op.parameter([1000], np.float32, name="x")
    found = of(ov.Model([op.result(op.add(x, drawn))], [x], "m"))
    assert found == Growth(total_bytes=16, largest_bytes=0, largest="")


def test_a_constant_of_two_readers_is_stored_once() -> None:
    x, shift = op.parameter([1000], np.float32, name="x"), constant(np.zeros(1000), "shift")
    found = of(ov.Model([op.result(op.add(op.add(x, shift), shift))], [x], "m"))
    assert found == Growth(total_bytes=4000, largest_bytes=0, largest="")


def test_the_shape_of_an_input_is_known_beforehand() -> None:
    x = op.parameter([500], np.float32, name="x")
    ones = op.broadcast(constant(1.0, "one"), op.shape_of(x, name="shape"), name="ones")
    assert of(ov.Model([op.result(op.add(x, ones))], [x], "m")).total_bytes == 2000


def test_the_limit_is_eight_times_the_files_and_what_the_setting_adds() -> None:
    limits = ReadLimits(growth_bytes=1000)
    assert FACTOR == 8
    check_growth(Growth(1800, 1800, "big"), Path("m.xml"), file_bytes=100, limits=limits)
    for over in (Growth(1801, 7, "big"), Growth(7, 1801, "big")):
        with pytest.raises(ModelError, match=r"m\.xml.*'big'.*coarsen\.growth_bytes") as raised:
            check_growth(over, Path("m.xml"), file_bytes=100, limits=limits)
        assert raised.value.exit_code == 3
        assert "--set coarsen.growth_bytes=1001" in raised.value.remedy
    check_growth(Growth(1801, 7, "big"), Path("m.xml"), file_bytes=100, limits=ReadLimits(growth_bytes=1001))
