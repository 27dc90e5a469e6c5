"""A model in segments, in the manner of openvino.CompiledModel and openvino.AsyncInferQueue."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from .compiling import SegmentCompiler, Source
from .errors import PlacedClosedError, PlacedError
from .inputs import Results
from .manifest import RunnerName, SplitManifest, read_manifest
from .requests import PlacedRequest
from .runners import runner_of
from .wiring import Wiring


def load(
    folder: str | Path, *, runner: RunnerName | None = None, requests: int | None = None, cache_dir: Path | None = None
) -> PlacedModel:
    """Return the model of a folder that `placewright split` wrote, compiled and ready to run.

    runner, requests: instead of those that the folder says. cache_dir: where devices that compile slowly keep what they
    compile.

    Raises:
        ManifestError: the folder holds no split model, or a damaged one.
        SegmentError: a device refuses its segment.
    """
    place = Path(folder)
    manifest = read_manifest(place)
    sources = [place / entry.file for entry in manifest.segments]
    compiler = SegmentCompiler(cache_dir)
    return PlacedModel(manifest, sources, compiler, runner=runner, requests=requests)


class PlacedModel:
    """A compiled model in segments. Several threads may use it; use it as a context manager, or close it.

    requests: how many inferences may run at the same time; further callers wait. A model with states runs one.
    """

    def __init__(
        self,
        manifest: SplitManifest,
        sources: Sequence[Source],
        compiler: SegmentCompiler,
        *,
        runner: RunnerName | None = None,
        requests: int | None = None,
    ) -> None:
        self.manifest = manifest
        self.runner_name = runner or manifest.runner
        self.compiler = compiler
        compiled = [
            compiler.compile(entry, manifest.devices[entry.device], source)
            for entry, source in zip(manifest.segments, sources, strict=True)
        ]
        self.wiring = Wiring.of(manifest, compiled, compiler)
        count = max(1, requests or manifest.requests)
        self._runner = runner_of(self.runner_name, self.wiring, count)
        self._end_threads = weakref.finalize(self, _close, self._runner, os.getpid())
        first = PlacedRequest(self.wiring, self._runner)
        self.stateful = first.stateful
        self.requests = 1 if self.stateful else count
        self._all = [first, *(PlacedRequest(self.wiring, self._runner) for _ in range(self.requests - 1))]
        self._idle: SimpleQueue[PlacedRequest] = SimpleQueue()
        for request in self._all:
            self._idle.put(request)
        self._process = os.getpid()
        self._closed = False
        self._running = 0
        self._changed = threading.Condition()

    @property
    def inputs(self) -> list[PlacedPort]:
        """Return the inputs, in the model's order."""
        return [PlacedPort(self, port.tensor, port.names) for port in self.manifest.inputs]

    @property
    def outputs(self) -> list[PlacedPort]:
        """Return the outputs, in the model's order."""
        return [PlacedPort(self, port.tensor, port.names) for port in self.manifest.outputs]

    def __call__(self, inputs: Any = None) -> Results:
        """Return the outputs of one inference; see `infer`."""
        return self.infer(inputs)

    def infer(self, inputs: Any = None) -> Results:
        """Return the outputs of one inference: of {name or place: array}, of a list, or of the only array.

        Raises:
            SegmentError: a segment failed; it names segment and device.
            PlacedInputError: an input is missing, unknown or does not fit.
            PlacedClosedError: the model is closed.
        """
        with self._under_way():
            request = self._idle.get()
            try:
                return request.infer(inputs)
            finally:
                self._idle.put(request)

    def start_async(self, inputs: Any = None, callback: Callable[[Results], Any] | None = None) -> Pending:
        """Begin an inference and return it; wait for an idle request first. The callback gets the outputs.

        Raises:
            PlacedInputError, PlacedClosedError: see `infer`; all else is raised by `Pending.wait`.
        """
        self._enter()
        request = self._idle.get()
        pending = Pending()

        def after(fault: BaseException | None) -> None:
            try:
                if fault is None:
                    pending.results = request.results
            finally:
                self._idle.put(request)
                self._leave()
                pending.end(fault, callback)

        try:
            request.begin(inputs, after)
        except BaseException:
            self._idle.put(request)
            self._leave()
            raise
        return pending

    def wait(self, pending: Pending) -> Results:
        """Return the outputs of an inference that `start_async` began."""
        return pending.wait()

    def create_infer_request(self) -> PlacedRequest:
        """Return a further request, in the manner of openvino.InferRequest; it must idle when the model is closed."""
        self._enter()
        self._leave()
        return PlacedRequest(self.wiring, self._runner)

    def queue(self, callback: Callable[[Results, Any], Any] | None = None) -> PlacedQueue:
        """Return a queue of inferences; its callback gets the outputs and the userdata of each."""
        return PlacedQueue(self, callback)

    def reset_state(self) -> None:
        """Set all states to their initial values, no inference being under way."""
        for request in self._all:
            request.reset_state()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the inferences that are under way, refuse all others, and end all threads."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._running == 0 or os.getpid() != self._process)
        self._end_threads()

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        if os.getpid() != self._process:
            raise PlacedClosedError("the model was loaded in another process; load it again in this one")
        with self._changed:
            if self._closed:
                raise PlacedClosedError("the model is closed")
            self._running += 1

    def _leave(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()


def _close(runner: Any, process: int) -> None:
    """End the threads of a runner, in the process that they belong to."""
    if os.getpid() == process:
        runner.close()


class PlacedPort:
    """An input or output of a model in segments, in the manner of openvino.ConstOutput."""

    def __init__(self, model: PlacedModel, tensor: str, names: Sequence[str]) -> None:
        self.names = set(names)
        self.any_name = names[0]
        entry = model.manifest.tensors[tensor]
        self.element_type, self.shape = entry.type, entry.shape

    def get_names(self) -> set[str]:
        """Return all names."""
        return self.names

    def get_any_name(self) -> str:
        """Return one of the names."""
        return self.any_name

    def __repr__(self) -> str:
        """Return name, type and shape."""
        return f"<PlacedPort {self.any_name} {self.element_type} {self.shape}>"


class Pending:
    """An inference that has begun."""

    def __init__(self) -> None:
        self.results: Results | None = None
        self._fault: BaseException | None = None
        self._ended = threading.Event()

    def end(self, fault: BaseException | None, callback: Callable[[Results], Any] | None) -> None:
        """Call the callback, if all went well, and let those go on who wait."""
        self._fault = fault
        try:
            if callback is not None and self.results is not None:
                callback(self.results)
        except Exception as error:  # noqa: BLE001  what a caller's function raises is told to who waits
            self._fault = error
        finally:
            self._ended.set()

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._ended.is_set()

    def succeeded(self) -> bool:
        """Return whether it has ended, and all went well."""
        return self._ended.is_set() and self._fault is None

    def wait(self, timeout_s: float | None = None) -> Results:
        """Return the outputs, once they are there.

        Raises:
            SegmentError: a segment failed.
            TimeoutError: it takes longer.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"the inference takes longer than {timeout_s:g} s")
        if self._fault is not None:
            raise self._fault
        if self.results is None:
            raise PlacedError("the inference ended without outputs")
        return self.results


class PlacedQueue:
    """Inferences with a callback, in the manner of openvino.AsyncInferQueue."""

    def __init__(self, model: PlacedModel, callback: Callable[[Results, Any], Any] | None) -> None:
        self._model, self._callback = model, callback
        self._pending: list[Pending] = []

    def __len__(self) -> int:
        """Return how many inferences may run at the same time."""
        return self._model.requests

    def set_callback(self, callback: Callable[[Results, Any], Any]) -> None:
        """Let a function be called with the outputs and the userdata of every inference that ends."""
        self._callback = callback

    def start_async(self, inputs: Any = None, userdata: Any = None) -> None:
        """Begin an inference, once a request is idle."""
        callback = self._callback
        told = None if callback is None else lambda results: callback(results, userdata)
        self._pending = [p for p in self._pending if not p.succeeded()]
        self._pending.append(self._model.start_async(inputs, told))

    def is_ready(self) -> bool:
        """Return whether an inference would begin at once."""
        return sum(not p.done() for p in self._pending) < len(self)

    def wait_all(self) -> None:
        """Wait for all inferences.

        Raises:
            SegmentError: a segment failed, or what a callback raised: the first of all that went wrong.
        """
        pending, self._pending = self._pending, []
        faults: list[BaseException] = []
        for each in pending:
            try:
                each.wait()
            except Exception as error:  # noqa: BLE001  all others are waited for first
                faults.append(error)
        if faults:
            raise faults[0]
