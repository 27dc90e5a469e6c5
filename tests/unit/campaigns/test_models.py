"""What the campaign of models says where a runtime ends its process: whose fault it is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from tests.campaigns.models import COMPILED, DIED, EVALUATED, ONNXRUNTIME, Arrays, Judges, judge_answer
from tests.campaigns.runner import WrongError

BOTH = (True, False)  # the saved model, and the source


class Scripted(Judges):
    """Runtimes of which some die of some models, and all others give the same."""

    def __init__(self, deaths: Collection[tuple[str, bool]]) -> None:
        self._deaths = deaths

    def check(self, path: Path, out: Path) -> str:
        """Return that all are to be run."""
        return ""

    def outputs(self, path: Path, out: Path, runtime: str, *, saved: bool) -> tuple[Arrays | None, str]:
        """Return what a runtime gives."""
        return (None, f"{DIED} (-6)") if (runtime, saved) in self._deaths else ([np.ones(3)], "")


@pytest.mark.parametrize(
    ("deaths", "became"),
    [
        ([], "the outputs of ONNX Runtime"),
        ([(ONNXRUNTIME, False)], "the outputs of OpenVINO"),
        ([(EVALUATED, saved) for saved in BOTH], "the outputs of ONNX Runtime"),
        ([(ONNXRUNTIME, False), *((EVALUATED, saved) for saved in BOTH)], "the outputs of OpenVINO"),
        (
            [(runtime, saved) for runtime in (EVALUATED, COMPILED) for saved in BOTH],
            "read, the source ends what runs it",
        ),
    ],
)
def test_what_ends_a_runtime_is_judged_by_another(deaths: list[tuple[str, bool]], became: str, tmp_path: Path) -> None:
    assert judge_answer(tmp_path / "m.onnx", tmp_path, Scripted(deaths)) == became


def test_a_saved_model_that_alone_ends_the_plug_in_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "said.txt").write_text("free(): invalid size", encoding="utf-8")
    with pytest.raises(WrongError, match="invalid size"):
        judge_answer(tmp_path / "m.onnx", tmp_path, Scripted([(EVALUATED, True), (COMPILED, True)]))
