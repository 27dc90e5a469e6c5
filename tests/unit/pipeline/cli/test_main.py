"""The console script, before it runs the command line."""

from __future__ import annotations

import warnings

import pytest

from pipeline.cli import main


def test_what_torch_says_of_another_library_is_not_told_to_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def importing() -> int:
        warnings.warn(
            "`torch.jit.script` is deprecated. Please switch to `torch.compile`.", FutureWarning, stacklevel=1
        )
        return 0

    monkeypatch.setattr(main, "run_command_line", importing)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        with pytest.raises(SystemExit):
            main.main()
    assert not told
