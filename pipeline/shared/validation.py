"""Files that users write: pydantic checks their shape, and what it finds wrong becomes faults in our words."""

from __future__ import annotations

import copy
import difflib
import reprlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import getitem
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails
from typing_extensions import is_typeddict

from pipeline.core.errors import NAMED, PlacewrightError

NAMED_BY = (("name",), ("from", "to"), ("sourceId", "destId"), ("id",))  # keys whose values name a table
# pydantic's name of an error -> what it says must be; its own message for those that are not here.
MUST: Mapping[str, str] = {
    "dict_type": "a table of keys",
    "list_type": "a list, [...] or [[...]] in TOML",
    "too_short": "a list of at least {min_length}",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": "letters, digits, dashes and underlines",
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "finite_number": "finite",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "value_error": "{error}",
}
Shape = TypeVar("Shape")
Value = TypeVar("Value", bound=Hashable)
Path = tuple[str | int, ...]  # keys and positions, from the outside in

Name = Annotated[str, Field(min_length=1)]
Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def strict_table(unknown: Literal["forbid", "ignore"] = "forbid") -> Callable[[type[Shape]], type[Shape]]:
    """Return what makes a TypedDict strict: values are of their very types; `unknown` is what becomes of other keys."""
    return with_config(ConfigDict(strict=True, extra=unknown))


@dataclass(slots=True)
class Faults:
    """Collects what is wrong with the file `where`, to say it all at once by an error with its remedy."""

    where: str
    error: Callable[[str, str], PlacewrightError]
    remedy: str
    faults: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Note one fault."""
        self.faults.append(text)

    def end(self) -> None:
        """Raise the error if there are faults."""
        if self.faults:
            more = f"; and {len(self.faults) - NAMED} more" if len(self.faults) > NAMED else ""
            raise self.error(f"In {self.where}: {'; '.join(self.faults[:NAMED])}{more}.", self.remedy)

    def checked(self, shape: type[Shape], document: Any) -> Shape:
        """Return a document as the type `shape`; without what is wrong, which is noted, if it can do without.

        Raises:
            PlacewrightError: it cannot.
        """
        adapter = TypeAdapter(shape)
        try:
            return adapter.validate_python(document)
        except ValidationError as error:
            of_value: dict[Path, list[ErrorDetails]] = {}  # several of one value: none of the types it may have fits
            for detail in error.errors(include_url=False):
                of_value.setdefault(_error_path(detail, document), []).append(detail)
        self.faults += [_describe_fault(path, details, shape, document) for path, details in of_value.items()]
        try:
            return adapter.validate_python(_without_paths(document, of_value))
        except ValidationError:
            self.end()
            raise


def repeated_values(values: Iterable[Value]) -> list[Value]:
    """Return the values that are there more than once, each once."""
    return [value for value, count in Counter(values).items() if count > 1]


def must_be(details: Iterable[ErrorDetails]) -> str:
    """Return what a value must be, by the errors that pydantic has with it: one, or one per type it may have."""
    texts = dict.fromkeys(
        MUST[d["type"]].format(**d.get("ctx", {})) if d["type"] in MUST else d["msg"].removeprefix("Input should be ")
        for d in details
    )
    return f"must be {' or '.join(texts)}"


def _error_path(detail: ErrorDetails, document: Any) -> Path:
    """Return where in the document an error lies: its place without what pydantic calls the types it has tried."""
    path: Path = ()
    for part in detail["loc"]:
        positions = range(len(document)) if isinstance(document, list) else ()
        if part not in (document if isinstance(document, Mapping) else positions):
            return (*path, part) if detail["type"] == "missing" else path
        path, document = (*path, part), document[part]
    return path


def _describe_fault(path: Path, details: list[ErrorDetails], shape: Any, document: Any) -> str:
    """Return what is wrong with one value."""
    *above, last = path or ("",)
    if details[0]["type"] == "missing":
        return f"{_describe_path(above, document, last)} needs {last}"
    if details[0]["type"] == "extra_forbidden":
        # The keys that the table at a path may have
        for part in above:
            shape = get_type_hints(shape)[part] if isinstance(part, str) else shape
            while not is_typeddict(shape):
                shape = get_args(shape)[0]
        known = list(get_type_hints(shape))
        near = difflib.get_close_matches(str(last), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        return f"{_describe_path(above, document)} has an unknown key {last!r} ({hint})"
    return (
        f"{_describe_path(path, document)} is {reprlib.repr(reduce(getitem, path, document))}, but {must_be(details)}"
    )


def _describe_path(path: Iterable[str | int], document: Any, below: str | int = "") -> str:
    """Return what the value at a path is called: "flops of operation conv1"; `below` is a key that it lacks."""
    words: list[str] = []
    for part, after in pairwise([*path, below]):
        document = document[part]
        if isinstance(part, int):
            words[-1:] = [f"{words[-1].removesuffix('s')} {_table_name(document, after) or part + 1}"]
        else:
            words.append(part if part.isidentifier() else repr(part))
    return " of ".join(reversed(words)) or "the file"


def _table_name(entry: Any, below: str | int) -> str:
    """Return how a table names itself, "" if it does not; `below` is the key in question."""
    for keys in NAMED_BY if isinstance(entry, Mapping) else ():
        names = [entry.get(key) for key in keys]
        if below not in keys and all(isinstance(name, str | int) for name in names):
            return " -> ".join(map(str, names))
    return ""


def _without_paths(document: Any, paths: Iterable[Path]) -> Any:
    """Return a copy of a document without the keys under which values at these paths lie."""
    rest = copy.deepcopy(document)
    for path in paths:
        while path and isinstance(path[-1], int):
            path = path[:-1]
        holder = reduce(lambda at, part: at.get(part, {}) if isinstance(at, dict) else at[part], path[:-1], rest)
        if path and isinstance(holder, dict):
            holder.pop(path[-1], None)
    return rest
