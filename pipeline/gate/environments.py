"""The interpreters of the two sides: which runtime each has, and the measuring child that runs in it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import UsageError
from runtime.measuring import gate_child
from runtime.measuring.process.child import Child, ChildError, DamagedAnswerError

BEGIN_S = 60.0  # that importing a runtime may take
TIMEOUT_S = 300.0  # that loading a model, or a turn, may take
OLDEST = ".".join(map(str, gate_child.OLDEST))
PROGRAM = Path(gate_child.__file__).absolute()
PROVIDERS = {
    "CPU": (gate_child.CPU_PROVIDER,),
    "GPU": tuple(f"{name}ExecutionProvider" for name in ("CUDA", "ROCM", "MIGraphX", "Dml", "WebGpu", "CoreML")),
}  # of ONNX Runtime, by device


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter and the runtime in it.

    there: all runtimes that it has. providers: what ONNX Runtime can run on, by its names.
    """

    python: str
    python_version: str
    runtime: str
    version: str
    there: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the runtime in words."""
        return f"{self.runtime} {self.version.partition('-')[0]}"

    def device(self, asked: str) -> str:
        """Return a device by the name that the runtime knows: of ONNX Runtime its providers.

        Raises:
            UsageError: ONNX Runtime cannot run on it here.
        """
        if self.runtime != "onnxruntime":
            return asked
        wanted = [PROVIDERS.get(name, (name,)) for name in asked.split(",")]
        found = [next((name for name in names if name in self.providers), "") for names in wanted]
        if not all(found):
            raise UsageError(
                f"{self} of {self.python} cannot run on {asked}; it has {', '.join(self.providers) or 'no provider'}.",
                "Name another --device, or install the ONNX Runtime that has it.",
            )
        return ",".join(found)

    def start(self) -> Child:
        """Return the measuring child here, which imports its runtime until it is asked to begin."""
        return start_child(self.python, self.runtime)

    def begin(self, child: Child) -> None:
        """Wait for the runtime.

        Raises:
            ChildError: that failed, though it has worked before.
        """
        child.ask("begin", runtime=self.runtime)


def start_child(python: str, runtime: str = "") -> Child:
    """Return the measuring child in an interpreter; what is set for ours (PYTHONPATH ..) is nothing to it.

    runtime: what it begins to import at once; "" for nothing.

    Raises:
        OSError: it cannot be started.
    """
    child = Child(timeout_s=TIMEOUT_S, run=[python, "-E", str(PROGRAM), *([runtime] if runtime else [])])
    child.rests = True
    return child


def look_at_environment(python: Path | None, runtime: str) -> Environment:
    """Return what an interpreter has; None for our own. runtime: which is asked for, "" for whichever is there.

    Raises:
        UsageError: it does not run, or has no runtime that can be imported.
    """
    path = str(python.absolute()) if python is not None else sys.executable
    wanted = runtime or "openvino"
    try:
        with start_child(path) as child:
            told = child.ask("begin", timeout_s=BEGIN_S, runtime=runtime)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be started: {error.strerror}.", "Give an interpreter that runs here."
        ) from error
    except DamagedAnswerError as error:  # what answers is not our child
        raise UsageError(f"{path} is no Python interpreter.", "Give a virtual environment or its python.") from error
    except ChildError as error:
        raise UsageError(
            f"{path} did not import a runtime: {error.failed.message}.",
            f"Give an environment with Python {OLDEST} or newer, or repair this one: "
            f"{path} -m pip install --force-reinstall {wanted}",
        ) from error
    version, fault, name = told["python"], told["fault"], told["runtime"] or wanted
    if fault == "python":
        raise UsageError(
            f"{path} is Python {version}; measuring takes {OLDEST} or newer.",
            "Make the environment with a newer Python.",
        )
    if fault == "missing":
        package = name.partition(" ")[0]
        raise UsageError(f"{path} has no {name}.", f"Install it: {path} -m pip install {package}")
    if fault:
        raise UsageError(
            f"{name} of {path} cannot be imported: {fault}.",
            f"Repair it: {path} -m pip install --force-reinstall {name}",
        )
    return Environment(path, version, name, told["version"], tuple(told["there"]), tuple(told["providers"]))


def look_at_environments(before: Path | None, after: Path | None, runtime: str) -> tuple[Environment, Environment]:
    """Return what the interpreters of both sides have: unless a runtime is asked for, the first that is in both.

    Raises:
        UsageError: as of `look_at_environment`.
    """
    found = look_at_environment(before, runtime), look_at_environment(after, runtime)
    both = [name for name in found[0].there if name in found[1].there]
    if runtime or not both or found[0].runtime == found[1].runtime:
        return found
    return look_at_environment(before, both[0]), look_at_environment(after, both[0])
