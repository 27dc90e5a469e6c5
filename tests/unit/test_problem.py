"""What placers are given, and how much they may spend."""

from __future__ import annotations

import pytest

from pipeline.core.errors import UsageError
from pipeline.core.problem import Budget


def test_a_budget_without_any_limit_is_refused_and_one_limit_suffices() -> None:
    assert (Budget(3).seconds, Budget(seconds=2.0).evaluations) == (None, None)
    with pytest.raises(UsageError, match="limits nothing"):
        Budget()
