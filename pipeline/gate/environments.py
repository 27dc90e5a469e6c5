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


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter and the runtime in it."""

    python: str
    python_version: str
    runtime: str
    version: str

    def __str__(self) -> str:
        """Return the runtime in words."""
        return f"{self.runtime} {self.version.partition('-')[0]}"

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
    return Environment(path, version, name, told["version"])
