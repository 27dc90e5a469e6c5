"""Properties of the installed CPU plug-in: each is tuned, or left for a stated reason, and the documents say which."""

from __future__ import annotations

import openvino as ov

from runtime.machines.devices import discover_plugins
from runtime.measuring.contest.properties import LEFT, TUNED, unknown_properties
from runtime.measuring.contest.space import CACHES, FURTHER_GROUPS, GROUPS


def test_every_property_that_can_be_written_is_in_one_of_the_tables() -> None:
    assert unknown_properties(discover_plugins()["CPU"].settable) == []
    assert not TUNED.keys() & LEFT.keys()


def test_a_property_that_no_table_has_is_named() -> None:
    assert unknown_properties(["NEW_ONE", *TUNED, *LEFT]) == ["NEW_ONE"]


def test_the_plug_in_takes_every_value_that_is_tried() -> None:
    core = ov.Core()
    for size in (*GROUPS, *FURTHER_GROUPS):
        core.set_property("CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": size})
        assert str(core.get_property("CPU", "DYNAMIC_QUANTIZATION_GROUP_SIZE")) == size
    for precision in CACHES:
        core.set_property("CPU", {"KV_CACHE_PRECISION": precision})
