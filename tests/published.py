"""Where published graphs lie, if they are here: they are not part of the project, and tests of them are skipped."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
MSR = Path(os.environ.get("PLACEWRIGHT_MSR", ROOT.parent / "shared" / "data" / "msr"))
