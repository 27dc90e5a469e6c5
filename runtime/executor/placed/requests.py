"""One inference of a model in segments: a request per segment, and the tensors that they share."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import openvino as ov

from .compiling import one_line
from .errors import PlacedError, PlacedInputError, SegmentError
from .inputs import Results, as_tensor, by_place
from .wiring import Wiring


class Runs(Protocol):
    """What carries inferences out: a runner."""

    def run(self, request: PlacedRequest) -> None:
        """Run one inference to its end."""

    def start(self, request: PlacedRequest, done: Callable[[BaseException | None], None]) -> None:
        """Begin one inference, and call `done` at its end, with what went wrong."""

    def close(self) -> None:
        """End all threads, all inferences having ended."""


class PlacedRequest:
    """One inference at a time of a model in segments, in the manner of openvino.InferRequest.

    Tensors between segments are shared: what one writes the next reads, where it lies. Those of unknown shape are bound
    again in every inference. Several requests of one model may run at the same time.
    """

    def __init__(self, wiring: Wiring, runner: Runs) -> None:
        self.wiring = wiring
        self.runner = runner
        self.segments = [model.create_infer_request() for model in wiring.compiled]
        self.left: list[int] = []  # of each segment, how many it still waits for
        self.open = 0  # segments that have not run
        self.fault: BaseException | None = None
        self.done: Callable[[BaseException | None], Any] = lambda _: None
        self.latency = 0.0  # milliseconds, of the last inference
        self.begun_s = [0.0] * len(self.segments)  # on the clock perf_counter, of the last inference
        self._given: dict[int, ov.Tensor] = {}
        self._callback: Callable[[Any], Any] | None = None
        self._userdata: Any = None
        self._busy = False
        self._running: Future[None] | None = None  # the inference that was begun last
        self._stateful = [request for request in self.segments if request.query_state()]
        manifest = wiring.manifest
        for name in wiring.fixed:
            (s, place), readers = wiring.makers[name], wiring.readers[name]
            port = wiring.compiled[s].outputs[place]
            devices = {manifest.segments[t].device for t in (s, *(t for t, _ in readers))}
            reach = {device: manifest.devices[device] for device in sorted(devices)}
            tensor = wiring.compiler.tensor(reach, port.get_element_type(), port.get_shape())
            self.segments[s].set_output_tensor(place, tensor)
            for t, at in readers:
                self.segments[t].set_input_tensor(at, tensor)

    def run_segment(self, s: int) -> None:
        """Run one segment, all that it takes having been made.

        Raises:
            SegmentError: it failed.
        """
        request = self.segments[s]
        try:
            self.bind(s)
            if self.wiring.dynamic[s]:  # on one thread of a CPU, infer() says nothing of shapes that cannot be
                request.start_async()
                request.wait()
            else:
                request.infer(share_outputs=True)
        except RuntimeError as error:
            raise self.failed(s, error) from error

    def bind(self, s: int) -> None:
        """Give a segment, which is about to begin, those of its inputs whose shape was not known before."""
        self.begun_s[s] = time.perf_counter()
        for place, (maker, at) in self.wiring.moving[s]:
            self.segments[s].set_input_tensor(place, self.segments[maker].get_output_tensor(at))

    def failed(self, s: int, error: Exception) -> SegmentError:
        """Return the error of a segment."""
        entry = self.wiring.manifest.segments[s]
        return SegmentError(entry.id, entry.device, one_line(error))

    def set_input_tensor(self, place: int, tensor: ov.Tensor) -> None:
        """Let the model take a tensor as an input, from where it lies."""
        name = self.wiring.manifest.inputs[place].tensor
        self._given[place] = tensor
        for s, at in self.wiring.readers.get(name, ()):
            self.segments[s].set_input_tensor(at, tensor)

    def set_inputs(self, inputs: Any, *, copied: bool) -> None:
        """Take inputs: {name or place: array}, a list in the model's order, or the only array; None for those before.

        copied: whether they may change while the inference runs.

        Raises:
            PlacedInputError: one is missing, unknown, or does not fit.
        """
        if inputs is not None:
            manifest = self.wiring.manifest
            for place, value in by_place([port.names for port in manifest.inputs], inputs).items():
                self.set_input_tensor(place, as_tensor(manifest, place, value, copied=copied))
        missing = [port.names[0] for i, port in enumerate(self.wiring.manifest.inputs) if i not in self._given]
        if missing:
            raise PlacedInputError(f"there is no value for the input {', '.join(missing)}")

    def get_output_tensor(self, place: int = 0) -> ov.Tensor:
        """Return an output of the last inference, valid until the next one."""
        name = self.wiring.manifest.outputs[place].tensor
        if name not in self.wiring.makers:  # an input that is handed through
            return self._given[[port.tensor for port in self.wiring.manifest.inputs].index(name)]
        s, at = self.wiring.makers[name]
        return self.segments[s].get_output_tensor(at)

    @property
    def output_tensors(self) -> list[ov.Tensor]:
        """Return the outputs of the last inference, in the model's order, valid until the next one."""
        return [self.get_output_tensor(i) for i in range(len(self.wiring.manifest.outputs))]

    @property
    def results(self) -> Results:
        """Return copies of the outputs of the last inference."""
        ports = self.wiring.manifest.outputs
        return Results([port.names for port in ports], [np.array(t.data) for t in self.output_tensors])

    def infer(self, inputs: Any = None) -> Results:
        """Run one inference and return its outputs.

        Raises:
            SegmentError: a segment failed.
            PlacedInputError: an input is missing or does not fit.
        """
        self.execute(inputs)
        return self.results

    def execute(self, inputs: Any = None) -> None:
        """Run one inference; the outputs stay where they are."""
        self._check_idle()
        self.set_inputs(inputs, copied=False)
        self._busy, begun = True, time.perf_counter()
        try:
            self.runner.run(self)
        finally:
            self._busy = False
        self.latency = (time.perf_counter() - begun) * 1e3

    def start_async(self, inputs: Any = None, userdata: Any = None) -> None:
        """Begin one inference; at its end the callback is called, with `userdata` if it is given."""
        said = self._userdata if userdata is None else userdata
        self.begin(inputs, lambda fault: None if fault or self._callback is None else self._callback(said))

    def begin(self, inputs: Any, after: Callable[[BaseException | None], Any]) -> None:
        """Begin one inference; at its end, the request being idle, `after` is called with what went wrong, or None."""
        self._check_idle()
        self.set_inputs(inputs, copied=True)
        self._busy, running = True, Future[None]()
        self._running = running
        begun = time.perf_counter()

        def done(fault: BaseException | None) -> None:
            self.latency = (time.perf_counter() - begun) * 1e3
            self._busy = False
            try:
                after(fault)
            except Exception as error:  # noqa: BLE001  what a caller's function raises is told to who waits
                fault = fault or error
            running.set_result(None) if fault is None else running.set_exception(fault)

        try:
            self.runner.start(self, done)
        except BaseException:
            self._busy, self._running = False, None
            raise

    def wait(self) -> None:
        """Wait for the end of the inference that was begun last.

        Raises:
            PlacedError: it failed.
        """
        if self._running is not None:
            self._running.result()

    def set_callback(self, callback: Callable[[Any], Any], userdata: Any = None) -> None:
        """Let a function be called, with `userdata`, at the end of every inference that `start_async` begins."""
        self._callback, self._userdata = callback, userdata

    @property
    def stateful(self) -> bool:
        """Return whether a segment keeps a state from one inference to the next."""
        return bool(self._stateful)

    def reset_state(self) -> None:
        """Set all states to their initial values."""
        for request in self._stateful:
            request.reset_state()

    def _check_idle(self) -> None:
        if self._busy:
            raise PlacedError("the request is running; wait for it first, or use another one")
