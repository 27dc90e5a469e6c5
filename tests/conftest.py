"""What all tests share."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, settings

from pipeline.core import measurement

os.environ["CI"] = "true"  # before anything imports openvino: the tests send no telemetry
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch on the tests' small tensors is faster on one thread
# A shell has what it runs in the background ignore interrupts, and with it all that this starts: tests that interrupt
# what they started would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests of other processes measure at the same time: every process of the suite has a machine of its own.
_OWN = tempfile.mkdtemp(prefix="placewright-lock-")
atexit.register(shutil.rmtree, _OWN, ignore_errors=True)
os.environ["PLACEWRIGHT_LOCK"] = f"{_OWN}/measuring.lock"


# However busy the machine is, no example fails for being slow. `make test-slow` tries more of them.
settings.register_profile("quick", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=200)
settings.load_profile("quick")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what was disturbed be tried again at once."""
    monkeypatch.setattr(measurement, "RETRY_AFTER_S", 0.0)
