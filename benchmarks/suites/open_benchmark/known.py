"""What is on file of the open benchmark: the index, submissions, and what follows from all of them."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from benchmarks.instances import verify
from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.figures import gap_of
from pipeline.offline.scenario import Scenario
from pipeline.system.private_files import write_whole

INSTANCES = Path(verify.__file__).absolute().parent
SUBMISSIONS = INSTANCES / "submissions"
FORMAT = "placewright.submission/1"
SAME = 1e-9  # share by which two values may differ and be one
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AnswerEntry(TypedDict):
    """A placement of an instance. searched_s: how long was searched for it, as its author says.

    within_s: after how many seconds a search from scratch was within 1 % of the value; scratch_s: how long it was.
    """

    value_s: Seconds
    placement: dict[str, str]
    priority: NotRequired[dict[str, float] | None]
    found_by: NotRequired[str]
    searched_s: NotRequired[float]
    within_s: NotRequired[float]
    scratch_s: NotRequired[float]


class BoundEntry(TypedDict):
    """What no placement of an instance takes less than, and what proves it."""

    lower_bound_s: Seconds
    bound_by: str


class SubmissionDocument(TypedDict):
    """A file of submissions/; docs/open_benchmark.md says what its keys mean."""

    format: str
    by: Annotated[str, Field(min_length=1, max_length=80)]
    date: date
    answers: dict[str, AnswerEntry]
    bounds: NotRequired[dict[str, BoundEntry]]
    method: NotRequired[str]
    url: NotRequired[str]


@dataclass(frozen=True, slots=True)
class OpenInstance:
    """An entry of the index: tags, the set that it is in, and where its files are."""

    name: str
    entry: Mapping[str, Any]

    @property
    def tags(self) -> Mapping[str, Any]:
        """Return family, size, and what else is known of it."""
        tags: Mapping[str, Any] = self.entry["tags"]
        return tags

    @property
    def scenario(self) -> Scenario:
        """Return the question that it is, as `placewright search` takes it."""
        rules = self.entry["rules"]
        return Scenario(
            str(INSTANCES / self.entry["graph"]),
            str(INSTANCES / self.entry["machine"]),
            evaluator=rules["evaluator"],
            level=rules.get("level", ""),
            contiguity=rules.get("contiguity", ""),
            calls=rules.get("calls", 1),
            ordered=rules["order"] and rules["evaluator"] == "listsched",
        )

    def checked(self) -> verify.Instance:
        """Return it as the independent verifier reads it."""
        return verify.Instance(self.entry, INSTANCES)


def read_index(chosen: Sequence[str] = ()) -> dict[str, OpenInstance]:
    """Return the instances by name; chosen: names, families or sets; all that are kept if none.

    Raises:
        UnknownNameError: there is no instance, family or set of a name.
    """
    entries = json.loads((INSTANCES / "index.json").read_bytes())["instances"]
    known = {name: OpenInstance(name, entry) for name, entry in entries.items()}
    if not chosen:
        return {name: each for name, each in known.items() if each.entry["kept"]}
    families = {each.tags["family"] for each in known.values()} | {each.entry["set"] for each in known.values()}
    for name in chosen:
        if name not in known and name not in families:
            raise UnknownNameError("instance, family or set", name, [*families, *known], str(INSTANCES / "index.json"))
    asked = set(chosen)
    found = {}
    for name, each in known.items():
        if name in asked or (each.entry["kept"] and asked & {each.tags["family"], each.entry["set"]}):
            found[name] = each
    return found


def read_submission(path: Path) -> SubmissionDocument:
    """Return what is in a file of placements, .json or .json.gz; its form is checked, not what it claims.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    try:
        document = verify.read_document(path)
        checked = TypeAdapter(SubmissionDocument).validate_python(document)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.", "Give a JSON file.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{path} is not a submission: {where}: {first['msg']}.", "docs/open_benchmark.md describes the format."
        ) from error
    except (ValueError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is not valid JSON: {error}.", "Write it again.") from error
    if checked["format"] != FORMAT:
        raise UsageError(f"{path} has the format {checked['format']!r}.", f"Write {FORMAT!r}.")
    return checked


def write_submission(path: Path, document: SubmissionDocument) -> None:
    """Write a submission, whole or not at all, compressed; equal content gives equal bytes."""
    text = json.dumps(TypeAdapter(SubmissionDocument).dump_python(document, mode="json"), sort_keys=True)
    write_whole(path, gzip.compress(text.encode(), 9, mtime=0))


def submission_files(folder: Path) -> list[Path]:
    """Return the files of submissions in a folder, sorted by name."""
    return sorted(path for path in folder.glob("*.json*") if path.name.endswith((".json", ".json.gz")))


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of an instance. holders: who has the best value, first come first; bound_by: what, and whose.

    within_s: see `AnswerEntry`, of the first holder that says; nan if none does.
    """

    instance: OpenInstance
    value_s: float = math.inf
    holders: tuple[str, ...] = ()
    found_by: str = ""
    lower_bound_s: float = 0.0
    bound_by: str = ""
    proven_by: str = ""
    within_s: float = math.nan

    @property
    def gap(self) -> float:
        """Return the share by which a placement could be faster at most."""
        return gap_of(self.value_s, self.lower_bound_s)

    @property
    def proven(self) -> bool:
        """Return whether the best known value is proven optimal, to 1e-4 of it."""
        return self.gap <= PROVEN


PROVEN = 1e-4


def standings(index: Mapping[str, OpenInstance], submissions: Iterable[SubmissionDocument]) -> dict[str, Standing]:
    """Return what all submissions together tell of every instance; the older of two that are alike comes first."""
    in_order = sorted(submissions, key=lambda each: (each["date"], each["by"]))
    found = {}
    for name, instance in index.items():
        answers = [(each["answers"][name], each["by"]) for each in in_order if name in each["answers"]]
        bounds = [(each["bounds"][name], each["by"]) for each in in_order if name in each.get("bounds", {})]
        standing = Standing(instance)
        if answers:
            best, _ = min(answers, key=lambda pair: pair[0]["value_s"])
            holders = [(a, by) for a, by in answers if a["value_s"] <= best["value_s"] * (1 + SAME)]
            found_by = holders[0][0].get("found_by", "")
            within_s = next((a["within_s"] for a, _ in holders if "within_s" in a), math.nan)
            value_s, names = best["value_s"], tuple(by for _, by in holders)
            standing = Standing(instance, value_s, names, found_by, within_s=within_s)
        if bounds:
            top, by = max(bounds, key=lambda pair: pair[0]["lower_bound_s"])
            standing = replace(standing, lower_bound_s=top["lower_bound_s"], bound_by=top["bound_by"], proven_by=by)
        found[name] = standing
    return found


def check_submission(
    document: SubmissionDocument, index: Mapping[str, OpenInstance]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return (instance -> seconds of its answer, instance -> what is wrong with it), by the independent verifier."""
    values, faults = dict[str, float](), dict[str, str]()
    for name, answer in document["answers"].items():
        if name not in index:
            faults[name] = "there is no such instance, or its graph is not kept"
            continue
        try:
            values[name] = index[name].checked().check(answer)
        except verify.RefusedError as error:
            faults[name] = str(error)
    return values, faults


@dataclass(frozen=True, slots=True)
class Score:
    """How a submission stands among others.

    points: mean over the test instances of best known value / its value, 0 where it has none. ratio: geometric mean of
    its value over the best known of all that it answers. best, alone: instances whose best known value it has, and that
    nobody else has. method: how its author says they were found.
    """

    by: str
    date: str
    method: str
    answered: int
    points: float
    ratio: float
    best: int
    alone: int


def scores(known: Mapping[str, Standing], submissions: Iterable[SubmissionDocument]) -> list[Score]:
    """Return how submissions stand, best first."""
    test = [
        name for name, each in known.items() if each.instance.entry["set"] == "test" and math.isfinite(each.value_s)
    ]
    found = []
    for document in submissions:
        values = {name: answer["value_s"] for name, answer in document["answers"].items() if name in known}
        logs = [math.log(value_s / known[name].value_s) for name, value_s in values.items()]
        points = [known[name].value_s / values[name] if name in values else 0.0 for name in test]
        mine = [known[name].holders for name in values if document["by"] in known[name].holders]
        found.append(
            Score(
                document["by"],
                document["date"].isoformat(),
                document.get("method", "not said"),
                len(values),
                sum(points) / max(len(points), 1),
                math.exp(sum(logs) / max(len(logs), 1)),
                len(mine),
                sum(len(holders) == 1 for holders in mine),
            )
        )
    return sorted(found, key=lambda score: (-score.points, score.by))
