"""Runs of a model whose results can be compared, operation by operation: on devices, and of the source."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt

from pipeline.core.settings import MeasureSettings
from pipeline.deploy.where import Wanted, refused_instead
from pipeline.shared.checks import CHECKS, OUTPUTS, load_by_kind
from runtime.measuring.contest.variant import Variant, describe_variant
from runtime.measuring.process.child import Child, ChildError

SOURCE = "source"  # what a run is compared with unless another one is named

Arrays = Mapping[str, npt.NDArray[Any]]


class RunOnDevices:
    """A model as devices run it, in a measuring process that lives as long as nothing goes wrong.

    precisions, producers: see `runtime.measuring.process.exposed_outputs`, once `outputs` was asked for.
    """

    def __init__(self, name: str, model: Path, wanted: Wanted, folder: Path) -> None:
        self.name, self.model, self.wanted, self._folder = name, model, wanted, folder
        self.precisions: Mapping[str, str] = {}
        self.producers: Mapping[str, str] = {}
        self._settings = MeasureSettings()
        self._child: Child | None = None

    def outputs(self, kinds: Sequence[str]) -> Mapping[str, Arrays]:
        """Return the outputs of the model by kind of inputs.

        Raises:
            DeviceError: the device refuses operations.
            ChildError: it could not be run.
        """
        try:
            answer, found = self._ask(kinds, (), self._settings.timeout_s)
        except ChildError as error:
            with self._new_child() as child:
                raise refused_instead(error, child, self.model, self.wanted) from error
        self.precisions, self.producers = answer["precisions"], answer["producers"]
        return {kind: arrays[OUTPUTS] for kind, arrays in found.items()}

    def results(self, kind: str, operations: Sequence[str], *, within_s: float) -> Mapping[str, Arrays]:
        """Return results with these operations exposed, by operation."""
        _, found = self._ask([kind], operations, min(within_s, self._settings.timeout_s))
        return _by_operation(found[kind])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _new_child(self) -> Child:
        return Child(timeout_s=self._settings.timeout_s, memory_bytes=self._settings.memory_bytes)

    def _ask(
        self, kinds: Sequence[str], operations: Sequence[str], within_s: float
    ) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, npt.NDArray[Any]]]]]:
        wanted = self.wanted
        variant = Variant("compared", "user", wanted.target, wanted.devices, wanted.properties, wanted.affinity)
        command = describe_variant(variant, self.model, self._settings, seed=0)
        if self._child is None:
            self._child = self._new_child()
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            paths = _input_paths(Path(scratch), kinds)
            more = {"checks": str(self._folder / CHECKS), "operations": list(operations), "paths": paths}
            try:
                answer = self._child.ask("results", timeout_s=within_s, **command, **more)
            except BaseException:
                self._close()
                raise
            return answer, {kind: load_by_kind(Path(path)) for kind, path in paths.items()}


class RunOfSource:
    """The source of a model, run by something else than devices; results are remembered up to so many bytes.

    why_not: sentences on executors that were not used.
    """

    def __init__(self, path: Path, folder: Path, held_bytes: int) -> None:
        self.name, self.why_not = SOURCE, list[str]()
        self._path, self._folder = path, folder
        self._known: dict[str, Arrays] = {}
        self._free_bytes = held_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._known.clear()

    def outputs(self, kinds: Sequence[str]) -> Mapping[str, Arrays]:
        """Return the outputs of the source by kind of inputs."""
        found = self._ask(kinds, (), MeasureSettings().timeout_s)
        return {kind: found[kind][OUTPUTS] for kind in kinds}

    def results(self, kind: str, operations: Sequence[str], *, within_s: float) -> Mapping[str, Arrays]:
        """Return results of operations that have a counterpart in the source."""
        missing = [name for name in operations if name not in self._known]
        fresh = _by_operation(self._ask([kind], missing, within_s)[kind]) if missing else {}
        for name in missing:
            arrays = fresh.get(name, {})
            size = sum(array.nbytes for array in arrays.values())
            if size <= self._free_bytes:
                self._free_bytes -= size
                self._known[name] = arrays
        return {name: self._known.get(name) or fresh.get(name, {}) for name in operations}

    def _ask(
        self, kinds: Sequence[str], operations: Sequence[str], within_s: float
    ) -> dict[str, dict[str, dict[str, npt.NDArray[Any]]]]:
        from coarsen.reading.model.constant_growth import ReadLimits
        from coarsen.reading.model.results_order import ResultsOrder
        from coarsen.reading.read_in_process import source_results

        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            paths = _input_paths(Path(scratch), kinds)
            order = ResultsOrder(str(self._path), str(self._folder), list(operations), paths)
            self.name, why_not = source_results(order, replace(ReadLimits(), timeout_s=within_s))
            self.why_not = list(dict.fromkeys([*self.why_not, *why_not]))
            return {kind: load_by_kind(Path(path)) for kind, path in paths.items()}


def outputs_of_segments(
    segments: Path, folder: Path, kinds: Sequence[str]
) -> tuple[Mapping[str, Arrays], dict[str, str]]:
    """Return the outputs of a model in segments by kind of inputs, and the precision of each device.

    segments: the folder that they were written to. folder: with `CHECKS`.

    Raises:
        ChildError: it could not be run.
    """
    settings = MeasureSettings()
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        Child(timeout_s=settings.timeout_s, memory_bytes=settings.memory_bytes) as child,
    ):
        paths = _input_paths(Path(scratch), kinds)
        answer = child.ask("segments", folder=str(segments.absolute()), checks=str(folder / CHECKS), paths=paths)
        return {kind: load_by_kind(Path(path))[OUTPUTS] for kind, path in paths.items()}, answer["precisions"]


def _input_paths(folder: Path, kinds: Sequence[str]) -> dict[str, str]:
    return {kind: str(folder / f"{i}.npz") for i, kind in enumerate(kinds)}


def _by_operation(arrays: Mapping[str, Arrays]) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Return results by operation and output, of arrays by output and operation."""
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for port, named in arrays.items():
        if port != OUTPUTS:
            for name, array in named.items():
                found.setdefault(name, {})[port] = array
    return found
