"""What can go wrong with a model that runs in segments.

PlacedError
├── ManifestError       the folder holds no split model, or a damaged one
├── SegmentError        a segment failed to compile or to run; it names segment and device
├── PlacedInputError    an input is missing, unknown, or of the wrong shape or type
└── PlacedClosedError   the model is closed, or belongs to another process
"""

from __future__ import annotations


class PlacedError(RuntimeError):
    """A model in segments cannot be loaded or run."""


class ManifestError(PlacedError, ValueError):
    """The folder holds no split model, or one that is damaged."""


class SegmentError(PlacedError):
    """A segment failed; `segment` and `device` say which one and where, `words` what the device said."""

    def __init__(self, segment: str, device: str, words: str) -> None:
        super().__init__(f"segment {segment} on device {device} failed: {words}")
        self.segment, self.device, self.words = segment, device, words


class PlacedInputError(PlacedError, ValueError):
    """An input is missing, unknown, or of the wrong shape or type."""


class PlacedClosedError(PlacedError):
    """The model is closed, or was loaded in another process."""
