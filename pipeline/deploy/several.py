"""What a finished scenario says to deploy: its models loaded in one process, and files that run them all elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pipeline.core.errors import StoreError, UnknownNameError, UsageError
from pipeline.deploy.emit import (
    PROGRAM,
    TARGETS,
    emit,
    libraries_and_properties,
    write_affinities,
    write_model,
    write_repository,
)
from pipeline.deploy.rendering import render_template
from pipeline.result.deployment import Deployment
from pipeline.result.directory import RESULT
from pipeline.scenario.records import SCHEMA, ScenarioResult
from pipeline.shared.payload import from_json, read_json
from pipeline.store.store import write_text

if TYPE_CHECKING:
    from runtime.executor.onnx_session import OnnxModel
    from runtime.executor.placed import PlacedModel


@dataclass(frozen=True, slots=True)
class ScenarioDeployment:
    """A run directory of a scenario, and what its result.json says.

    models: by the name of their folder, which is their own, or of a model whose phases share a copy; in the order in
    which they are compiled, which decides who reserves processors first.
    """

    path: Path
    result: ScenarioResult
    models: Mapping[str, Deployment]

    @classmethod
    def load(cls, path: Path) -> ScenarioDeployment:
        """Return what the run directory of a scenario says to deploy.

        Raises:
            StoreError: it is damaged, or one of its models is.
        """
        try:
            result = from_json(ScenarioResult, read_json(path / RESULT))
            folders = {model.name: model.folder for model in result.models}
            order = dict.fromkeys(folders[model.name] for model in result.answer.models)
        except (OSError, ValueError, StopIteration) as error:
            raise StoreError(f"{path / RESULT} is damaged.", f"Tune {path} again.") from error
        return cls(path, result, {name: Deployment.load(path / name) for name in order})

    def check_one_process(self, target: str) -> None:
        """Check that the answer runs all models in one process.

        Raises:
            UsageError: it has one process for each, which what is asked for cannot express.
        """
        if self.result.answer.isolation == "processes":
            raise UsageError(
                f"{self.path} runs every model in a process of its own, which {target} cannot express.",
                f"Write each model by itself: placewright emit {self.path / next(iter(self.models))} --to {target}",
            )


def is_scenario_run(path: Path) -> bool:
    """Return whether a folder holds the result of a scenario, and not that of one model."""
    try:
        document = read_json(path / RESULT)
    except (OSError, ValueError):  # who reads the folder as that of one model says what is wrong with it
        return False
    return isinstance(document, Mapping) and document.get("schema") == SCHEMA


class LoadedModels(Mapping[str, "PlacedModel | OnnxModel"]):
    """The models of a scenario by name, compiled; several threads may use them. Use it as a context manager."""

    def __init__(self, models: Mapping[str, PlacedModel | OnnxModel]) -> None:
        self._models = models

    def __getitem__(self, name: str) -> PlacedModel | OnnxModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the inferences that are under way, refuse all others, and end all threads."""
        for model in self._models.values():
            model.close()


def load_several(path: Path, load: Callable[[Path], PlacedModel | OnnxModel]) -> LoadedModels:
    """Return the models of a finished scenario, each loaded from its folder, in the order of compiling.

    Raises:
        StoreError: the folder or a model in it is damaged.
    """
    scenario = ScenarioDeployment.load(path)
    return LoadedModels({name: load(model.path) for name, model in scenario.models.items()})


def emit_run(run: Path, target: str, out: Path | None = None) -> tuple[Path, list[Path]]:
    """Write the files that run the answer of a run of one model, or of a scenario, with `target`; see `emit`.

    Raises:
        UnknownNameError, StoreError: see `emit`.
        UsageError: the target cannot express what was found; it says which can.
    """
    if not is_scenario_run(run):
        return emit(run, target, out)
    if target in TARGETS and target not in SCENARIO_TARGETS:
        raise UsageError(
            f"The target {target} runs one model, and {run} holds several.",
            f"Use {' or '.join(SCENARIO_TARGETS)}, or write one of them: placewright emit {run}/MODEL --to {target}",
        )
    if target not in SCENARIO_TARGETS:
        raise UnknownNameError("target", target, SCENARIO_TARGETS)
    folder = out if out is not None else run / "emit" / target
    return folder, SCENARIO_TARGETS[target](ScenarioDeployment.load(run), folder)


def emit_servers(scenario: ScenarioDeployment, out: Path) -> list[Path]:
    """Write a model repository of all models, and one config.json of OpenVINO Model Server in the order of compiling.

    Raises:
        UsageError: the server cannot express how one of them runs.
    """
    scenario.check_one_process("ovms")
    return write_repository(scenario.models, out)


def emit_program(scenario: ScenarioDeployment, out: Path) -> list[Path]:
    """Write a Python program that runs all models in one process and needs openvino and numpy only.

    Raises:
        UsageError: one of them runs in segments, or in ONNX Runtime.
    """
    scenario.check_one_process("python")
    for model in scenario.models.values():
        model.check_whole("which the program compiles as one")
    written: list[Path] = []
    for name, model in scenario.models.items():
        written += [*write_model(model, out / name), *write_affinities(model, out / name)]
    models = {
        name: {
            "devices": libraries_and_properties(model),
            "target": model.record.target,
            "properties": model.record.properties,
            "requests": model.record.requests,
            "affinities": model.is_split,
        }
        for name, model in scenario.models.items()
    }
    program = render_template("run_several.py.j2", candidate=scenario.result.best, models=models)
    write_text(out / PROGRAM, program)
    return [out / PROGRAM, *written]


SCENARIO_TARGETS: Mapping[str, Callable[[ScenarioDeployment, Path], list[Path]]] = {
    "ovms": emit_servers,
    "python": emit_program,
}
"""What all models of a scenario together can be written for, by name."""
