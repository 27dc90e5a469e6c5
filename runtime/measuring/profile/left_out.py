"""Devices that cannot run a model, or run it wrongly: they are left out, with the reason, and the run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.core.errors import MeasurementError, OutputMismatchError, PlacewrightError
from pipeline.core.measurement import FailureKind, MeasurementFailed
from runtime.measuring.process.child import ChildError

MOST_WORDS = 300  # of a device's own words
COMPILE, RUN = "compile the model", "run the model"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a device is left out: the kind of failure, the device's words as the child tells them, what it was to do."""

    kind: FailureKind
    message: str
    doing: str

    @property
    def transient(self) -> bool:
        """Return whether another time may go better."""
        return MeasurementFailed(self.kind, self.message).transient

    @property
    def words(self) -> str:
        """Return the reason as a person reads it.

        >>> LeftOut("refused", "no such layer", COMPILE).words
        'it cannot compile the model (no such layer)'
        """
        said = self.message
        said = said if len(said) <= MOST_WORDS else f"... {said[-MOST_WORDS:]}"  # the innermost reason comes last
        how = {
            "refused": f"it cannot {self.doing}",
            "out_of_memory": f"it ran out of memory when it tried to {self.doing}",
            "timeout": f"it took too long to {self.doing}",
            "crashed": f"its process ended when it tried to {self.doing}",
            "wrong_output": "its outputs are wrong",
        }[self.kind]
        return f"{how} ({said})"


class UnfitError(ChildError):
    """A device failed at what it was to do."""

    def __init__(self, failed: MeasurementFailed, doing: str) -> None:
        super().__init__(failed)
        self.left_out = LeftOut(failed.kind, failed.message, doing)


def by_chance(why: str) -> OutputMismatchError:
    """Return the error of a model whose outputs chance decides, so that none can be told to be right."""
    return OutputMismatchError(
        f"The outputs of the model are random: {why}.",
        "Export it without random operations such as dropout, or pass a --metric that does not depend on them.",
    )


def nobody_left(left_out: Mapping[str, LeftOut]) -> PlacewrightError:
    """Return the error of a model that no device runs, or that all run wrongly; it names every reason."""
    words = "; ".join(f"{name}: {reason.words}" for name, reason in left_out.items())
    if all(reason.kind == "wrong_output" for reason in left_out.values()):
        return OutputMismatchError(
            f"No device gives the reference outputs. {words}.",
            "Use whole devices, as in --devices CPU, or another number of threads, or pin f32. Pass inputs of yours "
            "with --input if they differ less; --accuracy loose allows more.",
        )
    return MeasurementError(
        f"No device can run the model. {words}.", "Pass other --devices, or run `placewright doctor`."
    )


def left_out_to_json(left_out: Mapping[str, LeftOut]) -> dict[str, Any]:
    """Return the records from which `left_out_notes` makes sentences."""
    return {name: asdict(reason) for name, reason in left_out.items()}


def left_out_notes(left_out: Mapping[str, Mapping[str, Any]], instead: Sequence[str] = ()) -> list[str]:
    """Return a sentence on every device that was left out; one on all where others took the place of wrong ones.

    instead: these others, by their names.
    """
    if instead:
        why = "; ".join(f"{name}: {LeftOut(**reason).words}" for name, reason in left_out.items())
        return [f"{' and '.join(instead)} as a whole took the place of its parts, which nobody named ({why})."]
    return [f"{name} is left out: {LeftOut(**reason).words}." for name, reason in left_out.items()]
