"""The resident of the campaign of models: who dies or hangs is replaced, and answers for its own case alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.models import resident
from tests.campaigns.models.resident import TOO_LARGE, TOO_SLOW, Resident

HELD: list[bytes] = []


def told(_: str) -> Any:
    return {"pid": os.getpid()}


def die(_: str) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_if_used(_: str) -> Any:
    """Die as one does who suffers from the cases before."""
    if HELD:
        os.kill(os.getpid(), signal.SIGKILL)
    HELD.append(b"")
    return "alive"


def hang(_: str) -> Any:
    time.sleep(60)


def grow(_: str) -> Any:
    HELD.append(bytes(bytearray(os.urandom(1 << 16)) * 512))
    time.sleep(60)


@pytest.fixture
def asked() -> Iterator[Resident]:
    each = Resident({f.__name__: f for f in (told, die, die_if_used, hang, grow)})
    yield each
    each.close()


def test_one_process_does_all_until_it_dies(asked: Resident, tmp_path: Path) -> None:
    said = tmp_path / "said"
    first, again = (asked.ask("told", "", said=said) for _ in range(2))
    assert first == again
    assert first[1] == 0
    assert asked.ask("die", "", said=said) == (None, -signal.SIGKILL)
    answer, status = asked.ask("told", "", said=said)
    assert status == 0
    assert answer != first[0]


def test_what_kills_a_used_one_is_tried_on_a_fresh_one(asked: Resident, tmp_path: Path) -> None:
    assert [asked.ask("die_if_used", "", said=tmp_path / "said") for _ in range(3)] == [("alive", 0)] * 3


def test_limits_end_it(asked: Resident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    monkeypatch.setattr(resident, "LIMIT_S", 0.1)
    assert asked.ask("hang", "", said=said) == (None, TOO_SLOW)
    monkeypatch.setattr(resident, "LIMIT_S", 60.0)
    monkeypatch.setattr(resident, "LIMIT_BYTES", 1 << 24)
    assert asked.ask("grow", "", said=said) == (None, TOO_LARGE)
    assert asked.ask("told", "", said=said)[1] == 0
