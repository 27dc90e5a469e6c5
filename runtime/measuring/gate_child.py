"""The measuring child of `placewright gate`: one file that any interpreter with a runtime and numpy can run.

Nothing of placewright is there: the interpreter is that of another environment, from Python 3.9 on, with OpenVINO from
2024.4 on, or ONNX Runtime. It speaks one JSON object per line, as `runtime.measuring.process.worker` does: a command on
standard input, an answer on standard output. A fault is an answer, {"error": {kind, message}}.

    begin    {runtime}                               -> {python, runtime, version, fault, there, providers}
    settings {device, settings}                      -> {}; a fault if they are refused whatever the model
    load     {model, inputs, device, settings, mode} -> read_s, compile_s, first_s, memory, requests, precision, devices
    run      {seconds, minimum}                      -> {samples_s, period_s}
    outputs  {path}                                  -> {names, left_out}; writes outputs, by kind of inputs, as npz
    kernels  {}                                      -> {kernels: [[operation, kernel, precision, device]]}
    graph    {}                                      -> {producers: {operation: [operations]}, results: [operations]}
    results  {operations, path}                      -> {}; writes results of operations on the timed inputs, as npz
    memory   {}                                      -> {peak_bytes} since the model was compiled

runtime: "" for whichever is there. inputs: an npz with arrays "KIND/NAME"; those of the first kind are timed. mode:
"latency", one inference at a time, or "throughput", as many as the runtime wants. left_out: names of outputs that no
array holds. Precisions go by OpenVINO's names. Memory is None where the system does not tell.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OLDEST = (3, 9)
PR_SET_PDEATHSIG, SIGKILL = 1, 9
HINT, STREAMS = "PERFORMANCE_HINT", "NUM_STREAMS"
THREADS = "intra_op_num_threads"
ENUMERATIONS = {"graph_optimization_level": "GraphOptimizationLevel", "execution_mode": "ExecutionMode"}
RUNTIMES = ("openvino", "onnxruntime")
ALONE = "alone"  # the kind of inputs of a model that takes none
CPU_PROVIDER = "CPUExecutionProvider"
PRECISIONS = {
    "float": "f32", "float16": "f16", "bfloat16": "bf16", "double": "f64", "bool": "boolean", "int8": "i8",
    "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64",
}  # fmt: skip
# A model that every OpenVINO reads: y = ReLU(x).
SMALLEST = """<net name="relu" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1" element_type="f32"/>
<output><port id="0" precision="FP32"><dim>1</dim></port></output></layer>
<layer id="1" name="y" type="ReLU" version="opset1"><input><port id="0"><dim>1</dim></port></input>
<output><port id="1" precision="FP32"><dim>1</dim></port></output></layer>
<layer id="2" name="z" type="Result" version="opset1"><input><port id="0"><dim>1</dim></port></input></layer></layers>
<edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges></net>"""


class OpenVinoModel:
    """A model that OpenVINO has read and compiled."""

    def __init__(self, path: str, device: str, settings: dict[str, str]) -> None:
        import openvino as ov

        self.ov, self.path, self.device, self.settings = ov, path, device, settings
        self.core = ov.Core()
        self.model: Any = None
        self.compiled: Any = None
        self.requests: list[Any] = []
        self.stateful = False

    def read(self) -> None:
        """Read the model."""
        self.model = self.core.read_model(self.path)
        self.stateful = bool(self.model.get_variables()) if hasattr(self.model, "get_variables") else False

    def try_settings(self) -> None:
        """Compile the smallest of models with the settings."""
        self.core.compile_model(self.core.read_model(SMALLEST.encode(), b""), self.device, dict(self.settings))

    def compile(self, mode: str) -> None:
        """Compile it, with as many requests as the mode takes."""
        properties = dict(self.settings)
        if mode == "throughput" and not {HINT, STREAMS} & properties.keys():
            properties[HINT] = "THROUGHPUT"
        self.compiled = self.core.compile_model(self.model, self.device, properties)
        count = int(self.compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) if mode == "throughput" else 1
        self.requests = [self.compiled.create_infer_request() for _ in range(max(1, count))]

    def feed(self, arrays: dict[str, Any]) -> None:
        """Take the inputs of all inferences to come, by any of their names, or else by their places."""
        ports = self.compiled.inputs
        names = [{*port.get_names(), port.get_node().get_friendly_name()} for port in ports]
        for port, array in zip(ports, by_name_or_place(arrays, names)):
            for request in self.requests:
                request.set_tensor(port, self.ov.Tensor(array))

    def infer(self, i: int = 0) -> None:
        """Run one inference; of a model with state the first of a sequence."""
        self.begin(i)
        self.wait(i)

    def begin(self, i: int) -> None:
        """Begin an inference."""
        if self.stateful:
            self.requests[i].reset_state()
        self.requests[i].start_async()

    def wait(self, i: int) -> None:
        """Wait for its end."""
        self.requests[i].wait()

    def outputs(self) -> list[tuple[str, Any]]:
        """Return the outputs of the last inference of the first request, each with its name."""
        found = zip(self.model.outputs, self.requests[0].output_tensors)
        return [
            (port.get_any_name() if port.get_names() else f"output_{i}", self._array(tensor))
            for i, (port, tensor) in enumerate(found)
        ]

    def _array(self, tensor: Any) -> Any:
        import numpy as np

        if tensor.element_type == self.ov.Type.string:
            return np.array(tensor.bytes_data)
        array = np.array(tensor.data)
        if tensor.element_type == self.ov.Type.bf16:  # numpy has none: its bits are the upper half of those of f32
            array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return array

    def describe(self) -> dict[str, Any]:
        """Return what it is computed in, and where."""
        known = set(self.compiled.get_property("SUPPORTED_PROPERTIES"))
        hint = self.compiled.get_property("INFERENCE_PRECISION_HINT") if "INFERENCE_PRECISION_HINT" in known else ""
        return {
            "precision": str(hint.get_type_name() if hasattr(hint, "get_type_name") else hint),
            "devices": [str(d) for d in self.compiled.get_property("EXECUTION_DEVICES")],
        }

    def kernels(self) -> list[list[str]]:
        """Return the kernel, the precision and the device of every operation; HETERO says which device."""
        placed = {}
        if ":" in self.device:
            with contextlib.suppress(RuntimeError):  # AUTO does not tell
                placed = dict(self.core.query_model(self.model, self.device))
        devices = self.describe()["devices"]
        rows = []
        for op in self.compiled.get_runtime_model().get_ordered_ops():
            info = op.get_rt_info()
            told = {key: self._text(info, key) for key in ("layerType", "primitiveType", "runtimePrecision")}
            for name in (self._text(info, "originalLayersNames") or op.get_friendly_name()).split(","):
                kernel = f"{told['layerType']} {told['primitiveType']}".strip()
                rows.append([name, kernel, told["runtimePrecision"], placed.get(name, ",".join(devices))])
        return rows

    @staticmethod
    def _text(info: Any, key: str) -> str:
        if key not in info:
            return ""
        value = info[key]
        return str(value.astype(str)) if hasattr(value, "astype") else str(value)

    def graph(self) -> dict[str, Any]:
        """Return which operations each operation takes results of, and which give the outputs."""
        producers = {
            op.get_friendly_name(): [v.get_node().get_friendly_name() for v in op.input_values()]
            for op in self.model.get_ordered_ops()
        }
        return {
            "producers": producers,
            "results": [producers[r.get_friendly_name()][0] for r in self.model.get_results()],
        }

    def results(self, operations: list[str], arrays: dict[str, Any]) -> dict[str, Any]:
        """Return the first results of operations of the model, compiled anew with these as outputs."""
        other = OpenVinoModel(self.path, self.device, self.settings)
        other.read()
        known = {op.get_friendly_name(): op for op in other.model.get_ordered_ops()}
        wanted = [name for name in operations if name in known and known[name].get_output_size()]
        other.model.add_outputs([known[name].output(0) for name in wanted])
        other.compile("latency")
        other.feed(arrays)
        other.infer()
        found = [array for _, array in other.outputs()]
        sources = [result.input_value(0) for result in other.model.get_results()]
        names = [v.get_node().get_friendly_name() if v.get_index() == 0 else "" for v in sources]
        return {name: array for name, array in zip(names, found) if name in wanted}


class OnnxRuntimeModel:
    """A model that ONNX Runtime has loaded; device: CPU, or providers, by their names."""

    def __init__(self, path: str, device: str, settings: dict[str, str]) -> None:
        import onnxruntime

        self.ort, self.path, self.settings = onnxruntime, path, settings
        onnxruntime.set_default_logger_severity(4)
        self.providers = [CPU_PROVIDER] if device == "CPU" else device.split(",")
        self.session: Any = None
        self.fed: dict[str, Any] = {}
        self.found: list[Any] = []
        self.pool: Any = None
        self.running: dict[int, Any] = {}
        self.requests: list[int] = []

    def read(self) -> None:
        """Do nothing: a session is made of the file at once."""

    def compile(self, mode: str, profile: str = "") -> None:
        """Make the session; at throughput inferences of one thread run side by side, unless settings say otherwise."""
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        options = self.session_options({THREADS: "1", **self.settings} if mode == "throughput" else self.settings)
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        self.session = self.ort.InferenceSession(self.path, options, providers=self.providers)
        self.requests = list(range(count if mode == "throughput" else 1))
        self.pool = ThreadPoolExecutor(len(self.requests))

    def try_settings(self) -> None:
        """Make options of the settings."""
        self.session_options(self.settings)

    def session_options(self, settings: dict[str, str]) -> Any:
        """Return the options that settings make."""
        options = self.ort.SessionOptions()
        for name, value in settings.items():
            if "." in name:
                options.add_session_config_entry(name, value)
            elif name in ENUMERATIONS:
                setattr(options, name, getattr(getattr(self.ort, ENUMERATIONS[name]), value))
            elif hasattr(options, name):
                setattr(options, name, int(value))
            else:
                raise ValueError(f"ONNX Runtime has no option {name}")
        return options

    def feed(self, arrays: dict[str, Any]) -> None:
        """Take the inputs of all inferences to come."""
        names = [port.name for port in self.session.get_inputs()]
        self.fed = dict(zip(names, by_name_or_place(arrays, [{name} for name in names])))

    def infer(self, i: int = 0) -> None:
        """Run one inference."""
        self.found = self.session.run(None, self.fed)

    def begin(self, i: int) -> None:
        """Begin an inference."""
        self.running[i] = self.pool.submit(self.session.run, None, self.fed)

    def wait(self, i: int) -> None:
        """Wait for its end."""
        self.running[i].result()

    def outputs(self) -> list[tuple[str, Any]]:
        """Return the outputs of the last inference, each with its name."""
        found = zip(self.session.get_outputs(), self.found)
        return [named for port, value in found for named in plain_arrays(port.name, value)]

    def describe(self) -> dict[str, Any]:
        """Return where it runs; what in nobody tells."""
        return {"precision": "", "devices": list(self.session.get_providers())}

    def kernels(self) -> list[list[str]]:
        """Return what one inference ran, by the record that the runtime writes of it."""
        with tempfile.TemporaryDirectory() as folder:
            other = OnnxRuntimeModel(self.path, ",".join(self.providers), self.settings)
            other.compile("latency", str(Path(folder) / "profile"))
            other.fed = self.fed
            other.infer()
            events = json.loads(Path(other.session.end_profiling()).read_text(encoding="utf-8"))
        rows = []
        for event in events:
            told = event.get("args", {})
            if event.get("cat") == "Node" and "op_name" in told and event["name"].endswith("_kernel_time"):
                shapes = told.get("output_type_shape") or [{}]
                precision = next(iter(shapes[0]), "")
                precision = PRECISIONS.get(precision, precision)
                name = event["name"][: -len("_kernel_time")]
                rows.append([name, told["op_name"], precision, told.get("provider", "")])
        return rows

    def graph(self) -> dict[str, Any]:
        """Return nothing: results of single nodes cannot be read."""
        return {"producers": {}, "results": []}

    def results(self, operations: list[str], arrays: dict[str, Any]) -> dict[str, Any]:
        """Return nothing: results of single nodes cannot be read."""
        return {}


class GateSession:
    """What is loaded, and its inputs by kind."""

    def __init__(self) -> None:
        self.runtime = ""
        self.model: Any = None
        self.inputs: dict[str, dict[str, Any]] = {}

    @property
    def timed(self) -> dict[str, Any]:
        """Return the inputs that are timed: those of the first kind."""
        return next(iter(self.inputs.values()), {})

    def begin(self, command: dict[str, Any]) -> dict[str, Any]:
        """Import the runtime; what is missing, or cannot be imported, is told."""
        python = ".".join(map(str, sys.version_info[:3]))
        told = {"python": python, "runtime": "", "version": "", "fault": "", "there": [], "providers": []}
        if sys.version_info < OLDEST:
            return {**told, "fault": "python"}
        wanted = [command["runtime"]] if command["runtime"] else RUNTIMES
        there = [name for name in ("numpy", *wanted) if importlib.util.find_spec(name) is not None]
        missing = "numpy" if there and "numpy" not in there else ""
        told["there"] = there = [name for name in there if name != "numpy"]
        if missing or not there:
            return {**told, "runtime": missing or " or ".join(wanted), "fault": "missing"}
        self.runtime = there[0]
        try:
            import numpy  # noqa: F401

            package = importlib.import_module(self.runtime)
            if self.runtime == "openvino":
                version = importlib.import_module("openvino").get_version()
                package.Core()
            else:
                version = package.__version__
                told["providers"] = list(package.get_available_providers())
        except Exception as error:  # noqa: BLE001  an import may raise anything; it becomes an answer
            return {**told, "runtime": self.runtime, "fault": f"{type(error).__name__}: {error}"}
        return {**told, "runtime": self.runtime, "version": version}

    def settings(self, command: dict[str, Any]) -> dict[str, Any]:
        """Try settings without a model."""
        kind = OpenVinoModel if self.runtime == "openvino" else OnnxRuntimeModel
        kind("", command["device"], command["settings"]).try_settings()
        return {}

    def load(self, command: dict[str, Any]) -> dict[str, Any]:
        """Read and compile a model, and run it once, each with its seconds and the most memory that it took."""
        import numpy as np

        kind = OpenVinoModel if self.runtime == "openvino" else OnnxRuntimeModel
        with np.load(command["inputs"], allow_pickle=False) as arrays:
            self.inputs = {}
            for key in arrays.files:
                of, _, name = key.partition("/")
                self.inputs.setdefault(of, {})[name] = np.asarray(arrays[key], order="C")
        if self.model is None:
            self.model = kind(command["model"], command["device"], command["settings"])
            read_s, read_bytes = timed(self.model.read)
        else:
            read_s, read_bytes = 0.0, None
        compile_s, compile_bytes = timed(lambda: self.model.compile(command["mode"]))
        forget_peak()
        self.model.feed(self.timed)
        first_s, _ = timed(self.model.infer, peak=False)
        return {
            "read_s": read_s,
            "compile_s": compile_s,
            "first_s": first_s,
            "read_bytes": read_bytes,
            "compile_bytes": compile_bytes,
            "requests": len(self.model.requests),
            **self.model.describe(),
        }

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run inferences for so many seconds, at least `minimum` of every request, and time each."""
        model, end = self.model, time.perf_counter() + command["seconds"]
        count = len(model.requests)
        samples: list[float] = []
        if count == 1:
            while len(samples) < command["minimum"] or time.perf_counter() < end:
                start = time.perf_counter()
                model.infer()
                samples.append(time.perf_counter() - start)
            return {"samples_s": samples, "period_s": sum(samples) / len(samples)}
        begun = [0.0] * count
        finished: list[float] = []
        for i in range(count):
            begun[i] = time.perf_counter()
            model.begin(i)
        for i in itertools.cycle(range(count)):
            model.wait(i)
            now = time.perf_counter()
            samples.append(now - begun[i])
            finished.append(now)
            if now >= end and len(samples) >= count * (command["minimum"] + 1):
                break
            begun[i] = now
            model.begin(i)
        for other in range(count):
            model.wait(other)
        first = count - 1  # from when all of them were busy
        return {"samples_s": samples[first:], "period_s": (finished[-1] - finished[first]) / (len(finished) - count)}

    def outputs(self, command: dict[str, Any]) -> dict[str, Any]:
        """Write the outputs of one inference for every kind of inputs, as "output_0" and so on."""
        found = {}
        names: list[str] = []
        left_out: list[str] = []
        for kind, arrays in (self.inputs or {ALONE: {}}).items():
            self.model.feed(arrays)
            self.model.infer()
            each = self.model.outputs()
            names = [name for name, array in each if array is not None]
            left_out = [name for name, array in each if array is None]
            held = [array for _, array in each if array is not None]
            found.update({f"{kind}/output_{i}": array for i, array in enumerate(held)})
        self.model.feed(self.timed)
        save(command["path"], found)
        return {"names": names, "left_out": left_out}

    def kernels(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return which kernels run, in what and where."""
        return {"kernels": self.model.kernels()}

    def graph(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return how operations hang together."""
        told: dict[str, Any] = self.model.graph()
        return told

    def results(self, command: dict[str, Any]) -> dict[str, Any]:
        """Write results of operations."""
        save(command["path"], self.model.results(command["operations"], self.timed))
        return {}

    def memory(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the most memory since the model was compiled."""
        return {"peak_bytes": peak_bytes()}


def by_name_or_place(arrays: dict[str, Any], names: list[set[str]]) -> list[Any]:
    """Return one array per input: by one of its names, or all by their places where a name is unknown."""
    if len(arrays) < len(names):
        raise ValueError("it has {} inputs, but there are arrays for {}".format(len(names), ", ".join(arrays)))
    if all(known & arrays.keys() for known in names):
        return [arrays[next(iter(known & arrays.keys()))] for known in names]
    return list(arrays.values())[: len(names)]


def plain_arrays(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return an output of ONNX Runtime as arrays that need no pickle: of maps keys and values, of a list each entry.

    None in the place of what no array holds.
    """
    import numpy as np

    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        shape = (len(value), -1) if len({len(each) for each in value}) == 1 and value[0] else (-1,)
        keys, values = ([entry for each in value for entry in part(each)] for part in (dict.keys, dict.values))
        parts = [(f"{name} (keys)", keys), (f"{name} (values)", values)]
        return [(part, fixed_width(np.array(entries).reshape(shape))) for part, entries in parts]
    if isinstance(value, list):
        return [named for i, each in enumerate(value) for named in plain_arrays(f"{name}[{i}]", each)]
    return [(name, fixed_width(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else None)]


def fixed_width(array: Any) -> Any:
    """Return an array with strings as bytes of one length, as OpenVINO has them; None if its objects are no strings."""
    import numpy as np

    if array.dtype.kind not in "OU":
        return array
    if not all(isinstance(each, (str, bytes)) for each in array.ravel()):
        return None
    encoded = [each if isinstance(each, bytes) else each.encode() for each in array.ravel().tolist()]
    return np.array(encoded, dtype="S").reshape(array.shape)


def save(path: str, arrays: dict[str, Any]) -> None:
    """Write arrays as npz."""
    import numpy as np

    with open(path, "wb") as out:  # noqa: PTH123  numpy appends a suffix to a path
        np.savez(out, **arrays)


def timed(work: Any, peak: bool = True) -> tuple[float, Any]:
    """Return the seconds that something takes, and the most memory of the process meanwhile."""
    if peak:
        forget_peak()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun, peak_bytes() if peak else None


def forget_peak() -> None:
    """Let the peak of this process's memory begin anew, where the system knows how."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> Any:
    """Return the peak of this process's resident memory; None where the system does not tell."""
    status = Path("/proc/self/status")
    for line in status.read_text(encoding="ascii").splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return None


def answer(session: GateSession, command: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a command; a fault is one."""
    try:
        told: dict[str, Any] = getattr(session, command["do"])(command)
        return told
    except MemoryError as error:
        return {"error": {"kind": "out_of_memory", "message": str(error) or "memory exhausted"}}
    except Exception as error:  # noqa: BLE001  a runtime may raise anything; it becomes an answer
        return {"error": {"kind": "refused", "message": str(error) or type(error).__name__}}


def main() -> None:
    """Answer commands until standard input ends."""
    sys.path.pop(0)  # the folder of this file: what lies beside it is nothing to import
    os.environ["CI"] = "true"  # keeps `import openvino` from reporting home
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # native libraries print; standard output belongs to the answers
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    session = GateSession()
    if sys.argv[1:]:  # importing takes a while: who asks starts others meanwhile
        session.begin({"runtime": sys.argv[1]})
    for line in sys.stdin:
        answers.write(json.dumps(answer(session, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
