"""Clusters that are started here."""

from __future__ import annotations

import distributed
import pytest

from pipeline.core.errors import DeviceError
from pipeline.fleet.clusters import start_local_cluster


def test_a_worker_that_dies_as_it_starts_is_an_error_and_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(**_: object) -> None:
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(distributed, "LocalCluster", die)
    with pytest.raises(DeviceError, match="A worker cannot be started: Nanny failed"), start_local_cluster(2):
        pass
