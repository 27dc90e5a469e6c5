"""What all tests share."""

from __future__ import annotations

import os

os.environ["CI"] = "true"  # before anything imports openvino: the tests send no telemetry
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch on the tests' small tensors is faster on one thread
