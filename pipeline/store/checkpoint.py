"""What a placer that learns leaves on disk: the state of its search, and the policy it has learned.

    state.safetensors    what an interrupted search goes on from
    policy.safetensors   what another search may begin with
    state.json, policy.json   the facts of both, for people; never read back

Arrays, facts and a SHA-256 of both lie in the one .safetensors file, which is renamed into its place: there is no
moment at which the facts of one snapshot stand beside the arrays of another.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import StoreError, UsageError
from pipeline.core.learning import PolicyInputs, Snapshot
from pipeline.core.params import canonical
from pipeline.core.problem import Problem
from pipeline.store.store import canonical_json, json_digest
from pipeline.system.private_files import make_alike, write_whole

log = logging.getLogger(__name__)

STATE, POLICY = "state", "policy"
SCHEMAS = {STATE: "placewright.snapshot/2", POLICY: "placewright.snapshot/1"}
SUFFIX = ".safetensors"


class _UnusableError(Exception):
    """A file that holds no whole snapshot of the kind that is wanted."""


@dataclass(frozen=True, slots=True)
class FolderCheckpointer:
    """A `Checkpointer` that writes into a folder, which is made when something is first saved.

    context: a digest of what the search depends on; the state of a search with another one is not gone on from.
    """

    folder: Path
    context: str

    def load(self) -> Snapshot | None:
        """Return the state saved last for the same context; None if there is none, or if it is damaged."""
        path = self.folder / f"{STATE}{SUFFIX}"
        if not path.exists():
            return None
        try:
            snapshot, context = _read_snapshot(path, STATE)
        except _UnusableError as error:
            log.warning("cannot resume from %s: %s", path, error)
            return None
        if context != self.context:
            log.warning("%s is of another search; this search starts from scratch and will replace it", path)
            return None
        return snapshot

    def save(self, state: Snapshot) -> None:
        """Keep the state of the search in place of the one before.

        Raises:
            StoreError: the folder cannot be written.
        """
        _write_snapshot(self.folder / f"{STATE}{SUFFIX}", STATE, state, self.context)

    def publish(self, policy: Snapshot) -> None:
        """Keep a policy in place of the one before.

        Raises:
            StoreError: the folder cannot be written.
        """
        _write_snapshot(self.folder / f"{POLICY}{SUFFIX}", POLICY, policy, self.context)


def read_policy(path: Path) -> Snapshot:
    """Return the policy in a file, or in the policy.safetensors of a folder.

    Raises:
        UsageError: there is none, it is damaged, or the file is something else.
    """
    file = path / f"{POLICY}{SUFFIX}" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"Policy not found: {file}.", "Give a policy.safetensors that a search left, or its folder.")
    try:
        return _read_snapshot(file, POLICY)[0]
    except _UnusableError as error:
        raise UsageError(
            f"{file} cannot be used as a policy: {error}.", "Let a search learn one from scratch."
        ) from error


def with_checkpointer(problem: Problem, folder: Path, *chosen: Any) -> Problem:
    """Return the problem with its learning placer's state kept in `folder`; as it is if it has no policy.

    chosen: what else the search depends on; see `problem_digest`.
    """
    if problem.policy is None:
        return problem
    checkpointer = FolderCheckpointer(folder, problem_digest(problem, *chosen))
    return replace(problem, policy=replace(problem.policy, checkpointer=checkpointer))


def collect_policies(folder: Path, placers: Sequence[str], out: Path) -> None:
    """Copy what placers have published anywhere below `folder`/PLACER into the folder `out`, the last of each.

    The first placer that published gives policy.safetensors and policy.json; of each further one the name is added.
    """
    files = {
        name: sorted((folder / name).rglob(f"{POLICY}{SUFFIX}"), key=_changed_at) for name in dict.fromkeys(placers)
    }
    for i, (name, published) in enumerate((name, paths) for name, paths in files.items() if paths):
        stem = POLICY if i == 0 else f"{POLICY}-{name}"
        for suffix in (SUFFIX, ".json"):
            replace_file(out / f"{stem}{suffix}", published[-1].with_suffix(suffix).read_bytes())


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all; its folder is made if there is none.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        make_alike(path.parent)
        write_whole(path, content)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}.", "Free disk space, or use another folder."
        ) from error


def problem_digest(problem: Problem, *chosen: Any) -> str:
    """Return a sha256 of all that a search on this problem depends on, except its budget and checkpointer.

    chosen: plain JSON values to go in, too, such as the placer's parameters and the seed.
    """
    graph, topology, policy = problem.graph, problem.topology, problem.policy
    arrays: dict[str, Any] = {
        **_array_fields("graph", graph),
        "links.bytes_per_s": topology.link_bytes_per_s,
        "links.latency_s": topology.link_latency_s,
        "allowed": problem.allowed,
        "grouping": problem.grouping.group,
    }
    if problem.costs is not None:
        arrays |= {"costs.op_s": problem.costs.op_s, "costs.launch_s": problem.costs.launch_s}
    if problem.start is not None:
        arrays |= {"start": problem.start.device, "start.priority": problem.start.priority}
    if problem.tags is not None:
        arrays |= _array_fields("tags", problem.tags)
    facts: dict[str, Any] = {
        "names": [graph.names, graph.type_names],
        "devices": [d.to_json() for d in topology.devices],
        "ordered": problem.ordered,
        "chosen": chosen,
    }
    if policy is not None:
        arrays["policy.features"] = policy.features
        arrays |= {f"encoder.{name}": array for name, array in policy.encoder_weights.items()}
        arrays |= {f"grouper.{name}": array for name, array in policy.grouper_weights.items()}
        facts["policy"] = _policy_facts(policy)
    known = {name: array for name, array in arrays.items() if array is not None}
    return _arrays_digest(canonical_json(facts), known)


def _policy_facts(policy: PolicyInputs) -> dict[str, Any]:
    modules = {
        role: [type(module).__module__, type(module).__qualname__, module.version, canonical(module)]
        for role, module in (("embedder", policy.embedder), ("grouper", policy.grouper))
    }
    learned = policy.learned
    return modules | {"learned": None if learned is None else _arrays_digest(_facts_text(learned), learned.arrays)}


def _array_fields(prefix: str, record: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the fields of a dataclass that are arrays, by prefixed name."""
    values = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return {f"{prefix}.{name}": value for name, value in values.items() if isinstance(value, np.ndarray)}


def _facts_text(snapshot: Snapshot) -> str:
    return json.dumps(dict(snapshot.facts))


def _arrays_digest(text: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return a sha256 of a text and of named arrays with their types and shapes."""
    sha256 = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = _plain_array(arrays[name])
        sha256.update(canonical_json([name, array.dtype.str, array.shape]).encode())
        sha256.update(array.data)
    return sha256.hexdigest()


def _plain_array(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array as files hold it: rows one after another, in the byte order of this machine."""
    # np.ascontiguousarray would turn a single number into an array of one dimension
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _write_snapshot(path: Path, kind: str, snapshot: Snapshot, context: str) -> None:
    """Write a snapshot; before it its facts for people, so that these are never missing."""
    from safetensors.numpy import save

    arrays = {name: _plain_array(array) for name, array in snapshot.arrays.items()}
    head = {"schema": SCHEMAS[kind], "kind": kind, "context": context, "facts": _facts_text(snapshot)}
    head["digest"] = _arrays_digest(json_digest(head), arrays)
    content = save(arrays, metadata=head)
    shapes = {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}
    told = {**head, "facts": dict(snapshot.facts), "arrays": shapes}
    replace_file(path.with_suffix(".json"), (json.dumps(told, indent=2) + "\n").encode())
    replace_file(path, content)


def _read_snapshot(path: Path, kind: str) -> tuple[Snapshot, str]:
    """Return the snapshot in a file, and its context.

    Raises:
        _UnusableError: it is damaged, or something else.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            head = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    except (SafetensorError, OSError) as error:
        raise _UnusableError(f"it is damaged ({error})") from error
    if head.get("schema") != SCHEMAS[kind] or head.get("kind") != kind:
        raise _UnusableError(f"it holds no {kind} of schema {SCHEMAS[kind]}")
    signed = head.pop("digest", "")
    if signed != _arrays_digest(json_digest(head), arrays):
        raise _UnusableError("it is damaged (its content differs from its digest)")
    return Snapshot(arrays, json.loads(head["facts"])), head["context"]
