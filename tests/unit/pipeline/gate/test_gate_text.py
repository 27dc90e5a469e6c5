"""What a gate found as text that other programs read."""

from __future__ import annotations

from xml.etree import ElementTree

from pipeline.gate.first_look import FirstLook
from pipeline.gate.gate import GateCheck, GatedRecord, GateRecord, GateSideRecord
from pipeline.gate.gate_text import junit_text, markdown_text

SIDE = GateSideRecord("old", "old/bin/python", "3.12.0", "openvino", "2026.1.0", {})


def record(words: str) -> GateRecord:
    check = GateCheck("outputs", words, "differs")
    row = GatedRecord("model.xml", "differs", words, False, [check], [], FirstLook(), 0, 0.0)
    return GateRecord("placewright.gate/1", SIDE, SIDE, 0.95, [row], "differs", False, words)


def test_characters_that_xml_has_not_are_replaced() -> None:
    suite = ElementTree.fromstring(junit_text(record("a \x1b[31mred\x00 \ud800 word\n & <b>")))
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "a \ufffd[31mred\ufffd \ufffd word\n & <b>"


def test_markdown_holds_no_cell_or_tag_of_what_is_told() -> None:
    lines = markdown_text(record("a\\|b <script>\nnext")).splitlines()
    assert lines[2] == "a\\\\\\|b &lt;script> next"
    (row,) = [line for line in lines if line.startswith("| model.xml | outputs differ | ")][:1]
    assert "a\\\\\\|b &lt;script> next" in row
