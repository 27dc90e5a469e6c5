"""What people are told of an answer that a method has not come up with itself, or had no budget to come up with."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstRound:
    """What a method must finish once, how many evaluations it takes at most, were left for it and were spent before."""

    author: str
    what: str
    evaluations: int
    left: int
    before: int

    def unfinished(self, spent: int, seconds: float | None) -> list[str]:
        """Return what that takes and what was left for it, in a sentence; nothing where it ended of itself.

        spent: evaluations of the whole search; seconds: its limit, if it has one.
        """
        if self.left < self.evaluations:
            given = f"{self.left} of {self.left + self.before} were left for that"
            remedy = f"Give it at least {self.before + self.evaluations} evaluations"
        elif seconds is not None:
            given = f"{seconds:g} s sufficed for {spent - self.before} of them"
            remedy = "Give it more seconds"
        else:  # nothing new was drawn
            return []
        return [
            f"{self.author} has not finished its first {self.what}: it takes up to {self.evaluations} evaluations, "
            f"and {given}. {remedy}."
        ]


def why_not_own(author: str, answer: str, best_s: float, own: tuple[float, str]) -> str:
    """Return, in a sentence, why the answer is not a placement that the author came up with.

    answer: what it is instead, and best_s its seconds. own: the least seconds of the author's own placements; inf where
    none could be used, and why.
    """
    own_s, why = own
    if math.isinf(own_s):
        return f"The answer is {answer}, for no placement of {author}'s own can be used: {why}."
    if own_s <= best_s:
        return f"{author}'s own placement is as fast as {answer}, which was evaluated first."
    return (
        f"{author}'s own placement takes {own_s * 1e3:.6g} ms, {own_s / best_s:.5g} times as long as {answer}, which "
        "is the answer."
    )
