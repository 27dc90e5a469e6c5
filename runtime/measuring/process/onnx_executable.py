"""A model in ONNX Runtime as something to be measured: its source file, with the inputs of the model that was read.

On the CPU inputs lie in memory before an inference and outputs stay where it leaves them, as with OpenVINO; other
providers take and return arrays, so that sending them counts. Inferences at the same time are threads that run one
session, each on the inputs of its request. (Values bound once take 2 us an inference beside the model, arrays 4 us and
a copy of the outputs, `run_with_ort_values` 28 us, in onnxruntime 1.31 on a machine of 2 cores.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import openvino as ov

from pipeline.shared.model_inputs import input_name
from runtime.executor.onnx_session import CPU_PROVIDER, ONNX_RUNTIME, assigned, session_of
from runtime.measuring.process.answers import RunsOn

THREADS = "intra_op_num_threads"
WRONG_RANK = "Invalid rank for output"  # said of what the inference before has left bound


@dataclass(slots=True)
class OnnxRequest:
    """One inference at a time, in the manner of openvino.InferRequest.

    outputs: their names, in the model's order. bound: whether inputs and outputs are bound to the session's memory.
    """

    session: Any
    outputs: Sequence[str]
    bound: bool
    _feed: Mapping[str, Any] = field(default_factory=dict)
    _binding: Any = None
    _arrays: Sequence[npt.NDArray[Any]] = ()
    _callback: Callable[[], None] = lambda: None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _running: Future[None] | None = None

    def load(self, feed: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the inputs of all inferences to come; outputs are bound anew, as their sizes may follow from these."""
        self._feed = feed
        if self.bound:
            self._binding = self.session.io_binding()
            for name, array in feed.items():
                self._binding.bind_cpu_input(name, array)
            for name in self.outputs:
                self._binding.bind_output(name)

    def infer(self) -> None:
        """Run one inference; an output of another rank than the file declares is not kept bound."""
        if self.bound:
            try:
                self.session.run_with_iobinding(self._binding)
            except RuntimeError as error:
                if WRONG_RANK not in str(error):
                    raise
                self.bound = False
        if not self.bound:
            self._arrays = self.session.run(self.outputs, self._feed)

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return copies of the outputs of the last inference."""
        return [np.array(array) for array in (self._binding.copy_outputs_to_cpu() if self.bound else self._arrays)]

    def start_async(self) -> None:
        """Begin one inference."""
        self._running = self._thread.submit(self._run)

    def wait(self) -> None:
        """Wait for its end."""
        if self._running is not None:
            self._running.result()

    def set_callback(self, callback: Callable[[Any], None], userdata: Any) -> None:
        """Let a function be called at the end of every inference that is begun."""
        self._callback = lambda: callback(userdata)

    def reset_state(self) -> None:
        """Do nothing: there is no state."""

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _run(self) -> None:
        try:
            self.infer()
        finally:  # whoever waits for the callback must not wait for ever
            self._callback()


@dataclass(slots=True)
class OnnxExecutable:
    """A loaded session of ONNX Runtime; inputs: the places of its inputs among those of the model that was read."""

    session: Any
    requests: Sequence[Any]
    inputs: Mapping[str, int]
    providers: Sequence[str]
    threads: int
    compile_s: float

    @classmethod
    def of(cls, command: Mapping[str, Any], model: ov.Model) -> Self:
        """Return the source of a model loaded as a command says.

        model: as it was read, which knows inputs and outputs by the names that they have in the source.

        Raises:
            ValueError: ports go by other names there, or nothing of the model runs on the provider that was asked for.
        """
        if model.get_variables():
            raise ValueError(f"the model as it was read keeps a state, and {ONNX_RUNTIME} keeps none")
        options, providers = command["onnx"]["options"], command["target"].split(",")
        begun = time.perf_counter()
        session = session_of(Path(command["onnx"]["source"]), options, providers)
        compile_s = time.perf_counter() - begun
        ran = list(assigned(session))
        if ran and providers[0] not in ran:
            raise ValueError(f"nothing of the model runs on {providers[0]} here, but all on {', '.join(ran)}")
        inputs, outputs = ports_of(session, model)
        bound = set(ran) <= {CPU_PROVIDER}
        requests = [OnnxRequest(session, outputs, bound) for _ in range(max(1, command["requests"]))]
        return cls(session, requests, inputs, ran or [CPU_PROVIDER], int(options.get(THREADS, "0")), compile_s)

    def load(self, arrays: Sequence[npt.NDArray[np.generic]]) -> None:
        """Take the inputs of all inferences to come."""
        for request in self.requests:
            request.load({name: np.asarray(arrays[place], order="C") for name, place in self.inputs.items()})

    def infer(self) -> None:
        """Run one inference."""
        self.requests[0].infer()

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Return the outputs of the last inference, in the model's order."""
        first: OnnxRequest = self.requests[0]
        return first.arrays

    def reset(self) -> None:
        """Do nothing: there is no state."""

    def describe(self) -> RunsOn:
        """Return how the model really runs; what other providers than the CPU's compute in nobody tells."""
        precision = "f32" if set(self.providers) == {CPU_PROVIDER} else "not told"
        return {
            "executed_on": list(self.providers),
            "subgraphs": 1,
            "precisions": {self.providers[0]: precision},
            "int8_kernels": None,
            "threads": {self.providers[0]: self.threads} if self.threads else {},
            "cached": False,
        }

    def close(self) -> None:
        """End the threads of the requests."""
        for request in self.requests:
            request.close()


def ports_of(session: Any, model: ov.Model) -> tuple[dict[str, int], list[str]]:
    """Return {input of a session: its place in the model that was read}, and the model's outputs as the session's.

    Raises:
        ValueError: one goes by another name there.
    """
    places = {name: i for i, port in enumerate(model.inputs) for name in (input_name(port), *port.get_names())}
    given = {name: i for i, port in enumerate(model.outputs) for name in port.get_names()}
    inputs = [port.name for port in session.get_inputs()]
    outputs = {given[port.name]: port.name for port in session.get_outputs() if port.name in given}
    strangers = [name for name in inputs if name not in places]
    if strangers or len(outputs) != len(model.outputs):
        what = f"the input {strangers[0]}" if strangers else "an output"
        raise ValueError(f"{what} goes by another name in the model that was read")
    return {name: places[name] for name in inputs}, [outputs[i] for i in range(len(outputs))]
