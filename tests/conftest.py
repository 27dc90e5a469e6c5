"""What all tests share."""

from __future__ import annotations

import os

os.environ["CI"] = "true"  # before anything imports openvino: the tests send no telemetry
