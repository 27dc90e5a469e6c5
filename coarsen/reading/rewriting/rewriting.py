"""Rewrites of a model, one after another."""

from __future__ import annotations

from typing import Any

from coarsen.reading.rewriting.rewrites import Rewrites, Rewritten
from coarsen.reading.rewriting.split_directions import split_directions
from coarsen.reading.rewriting.split_groups import split_groups


def rewrite_model(model: Any, asked: Rewrites) -> list[Rewritten]:
    """Rewrite an OpenVINO model, which is changed, as far as asked for; return what was rewritten."""
    rewritten = split_directions(model) if asked.directions else []
    return rewritten + (split_groups(model) if asked.groups else [])
