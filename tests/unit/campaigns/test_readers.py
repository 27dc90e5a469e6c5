"""What the campaign of readers mutates is right before: else it tries nothing but refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.campaigns import files, mutation, readers
from tests.campaigns.runner import Case


@pytest.mark.parametrize(
    ("trial", "became"),
    [
        (readers.try_scenario, "scenario read"),
        (readers.try_gate, "gate read"),
        (readers.try_manifest, "manifest read"),
        (readers.try_machines, "machine of 1"),
        (readers.try_journal, "journal of 4"),
        (files.try_settings, "answered"),
        (files.try_jobs, "answered"),
        *((lambda case, w=which: readers.try_offline(case, w), f"{which} simulated") for which in readers.OFFLINE),
    ],
)
def test_what_is_not_mutated_is_read(
    trial: files.Trial, became: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (files, readers):
        monkeypatch.setattr(module, "mutate_document", lambda rng, document, times: document)
        monkeypatch.setattr(module, "mutate_bytes", lambda rng, content, times: content)
    assert trial(Case(0, np.random.default_rng(0), tmp_path)) == became


def test_dates_are_written_as_toml_has_them() -> None:
    assert "until = 2027-01-01" in files.toml_text(readers.GATE).replace('"', "")
    assert json.loads(json.dumps(mutation.mutate_document(np.random.default_rng(0), readers.GATE, 0), default=str))
