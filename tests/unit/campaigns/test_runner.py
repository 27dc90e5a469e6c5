"""The runner of campaigns: journals that go on, failures that are tried again, and the row of the table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.campaigns.mutation import mutate_bytes, mutate_document
from tests.campaigns.runner import Campaign, Case, Judge, Line, read_lines, require, run_campaign, summary_row


def campaign(wrong: set[int], tried: list[int]) -> Campaign:
    """Return a campaign of which the cases `wrong` fail; tried: gets every seed."""

    def judge(case: Case) -> str:
        tried.append(case.seed)
        assert list(case.folder.iterdir()) == []
        require(case.seed not in wrong, "so it is")
        if case.seed == 7:
            raise KeyError("seven")
        return "even" if case.seed % 2 == 0 else "odd"

    @contextlib.contextmanager
    def begin(_: Path) -> Iterator[Judge]:
        yield judge

    return Campaign("toy", 1.0, begin)


def test_a_campaign_goes_on_where_it_ended_and_tries_failures_again_first(tmp_path: Path) -> None:
    tried: list[int] = []
    wrong = {1}
    run_campaign(campaign(wrong, tried), tmp_path, seconds=60, first=0, most=4)
    with (tmp_path / "toy.jsonl").open("a", encoding="utf-8") as journal:
        journal.write('{"seed": 4, "ki')  # what a killed campaign leaves
    wrong.clear()
    lines = run_campaign(campaign(wrong, tried), tmp_path, seconds=60, first=0, most=3)
    assert tried == [0, 1, 2, 3, 1, 4, 5]
    assert read_lines(tmp_path / "toy.jsonl") == lines
    assert summary_row("toy", lines) == ("toy", "6", "0-5", "1", "0", "even 3, odd 3")


def test_whatever_a_case_raises_is_a_failure_with_its_words(tmp_path: Path) -> None:
    lines = run_campaign(campaign({6}, []), tmp_path, seconds=60, first=6, most=3)
    assert [line.seed for line in lines if line.failed] == [6, 7]
    assert lines[0].failed == "so it is"
    assert "KeyError: 'seven'" in lines[1].failed
    assert summary_row("toy", lines)[3:5] == ("2", "2")


def test_a_campaign_ends_when_its_time_is_up(tmp_path: Path) -> None:
    assert run_campaign(campaign(set(), []), tmp_path, seconds=0, first=0) == []


def test_equal_seeds_mutate_alike_and_leave_the_original_alone() -> None:
    document = {"a": [1, {"b": "c"}], "d": 2.5}
    text = json.dumps(document)
    drawn = [mutate_document(np.random.default_rng(s), document, 3) for s in (0, 0, 1)]
    assert repr(drawn[0]) == repr(drawn[1]) != repr(drawn[2])
    assert json.dumps(document) == text
    first, again = (mutate_bytes(np.random.default_rng(5), text.encode(), 3) for _ in range(2))
    assert first == again != text.encode()


def test_a_line_is_one_line_of_json(tmp_path: Path) -> None:
    run_campaign(campaign({0}, []), tmp_path, seconds=60, first=0, most=1)
    [text] = (tmp_path / "toy.jsonl").read_text(encoding="utf-8").splitlines()
    assert Line(**json.loads(text)).failed == "so it is"
