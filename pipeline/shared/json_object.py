"""JSON files that users name: an object, or an error that says what was expected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import UNPARSABLE, UsageError


def read_object(path: Path, what: str) -> Mapping[str, Any]:
    """Return the object in a JSON file.

    Raises:
        UsageError: there is no such file, or it holds no object.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", f"Give {what} as a JSON file.") from error
    except UNPARSABLE as error:
        raise UsageError(f"{path} is not valid JSON: {error}.", f"Give {what} as a JSON file.") from error
    if not isinstance(document, Mapping):
        kind = what.removeprefix("a ")
        raise UsageError(f"{path} holds no {kind}: it holds no JSON object.", f"Give {what} as {{operation: device}}.")
    return document
