"""One model per segment: its operations, with an input or output wherever a tensor crosses its border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
from openvino import opset13

from pipeline.core.errors import ModelError, list_some
from runtime.executor.placed.manifest import PortEntry, TensorEntry
from runtime.executor.segments import SegmentSpec

PREFIX = "cut"  # of the names of tensors between segments


@dataclass(frozen=True, slots=True, eq=False)
class SegmentModel:
    """The model of one segment; inputs and outputs: the tensors it takes and gives, in the model's order."""

    model: ov.Model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentedModel:
    """A model in segments: their models, the tensors that go into them or out, and what the whole takes and gives.

    A tensor goes by one name in all models, under which they know it after they have been saved, too.
    """

    segments: tuple[SegmentModel, ...]
    tensors: dict[str, TensorEntry]
    inputs: tuple[PortEntry, ...]
    outputs: tuple[PortEntry, ...]


def cut_model(model: ov.Model, segments: Sequence[SegmentSpec]) -> SegmentedModel:
    """Return the models of all segments of a model, which stays as it is.

    A tensor is called after the operation that makes it and its output, so that a segment that two placements share is
    the same model in both.

    Raises:
        ModelError: two operations of the model have one name.
    """
    return _Cutter(model, segments).cut()


class _Cutter:
    """Cuts a copy of one model."""

    def __init__(self, model: ov.Model, segments: Sequence[SegmentSpec]) -> None:
        self.model = model.clone()
        self.operations = self.model.get_ordered_ops()
        names = [op.get_friendly_name() for op in self.operations]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ModelError(f"Operations share a name: {list_some(twice)}.", "Read the model with placewright first.")
        self.segment = {name: s for s, spec in enumerate(segments) for name in spec.operations}
        self.taken = {name for op in self.operations for out in op.outputs() for name in out.get_names()}
        self.tensors: dict[str, TensorEntry] = {}
        self.parameters: list[dict[str, Any]] = [{} for _ in segments]
        self.results: list[dict[str, Any]] = [{} for _ in segments]
        self.sinks: list[list[Any]] = [[] for _ in segments]

    def cut(self) -> SegmentedModel:
        """Return the models."""
        inputs = [self._port(op, op.output(0)) for op in self.model.get_parameters()]
        outputs = [self._port(op, op.input_value(0)) for op in self.model.get_results()]
        rows = [(op, [(port, port.get_source_output()) for port in op.inputs()]) for op in self.operations]
        for op, ports in rows:
            kind, home = op.get_type_name(), self.segment.get(op.get_friendly_name())
            if kind == "Result":
                # Keep a Result with its producer; of an input there is none, of constants it stands in the first
                # segment
                value = ports[0][1]
                maker = value.get_node()
                if maker.get_type_name() != "Parameter":
                    home, name = self.segment.get(maker.get_friendly_name(), 0), self._tensor(value)
                    if name not in self.results[home]:
                        op.output(0).add_names({name})  # its names are its own, and not those of what it takes
                        self.results[home][name] = op
            elif home is not None:
                for port, value in ports:
                    # Let an operation of a segment take a value from an input of its segment, unless that is made
                    # there
                    maker = value.get_node()
                    source = self.segment.get(maker.get_friendly_name())
                    if source == home or (source is None and maker.get_type_name() != "Parameter"):
                        continue
                    name = self._tensor(value)
                    if name not in self.parameters[home]:
                        parameter = opset13.parameter(value.get_partial_shape(), value.get_element_type(), name=name)
                        parameter.output(0).set_names({name})
                        self.parameters[home][name] = parameter
                    if source is not None and name not in self.results[source]:
                        self.results[source][name] = opset13.result(value)
                    port.replace_source_output(self.parameters[home][name].output(0))
                if kind == "Assign":
                    self.sinks[home].append(op)
        models = tuple(self._model(s) for s in range(len(self.results)))
        return SegmentedModel(models, self.tensors, tuple(inputs), tuple(outputs))

    def _port(self, op: Any, value: Any) -> PortEntry:
        """Return an input or output of the whole model; one without a name goes by that of its operation."""
        names = (set(value.get_names()) | set(op.output(0).get_names())) - set(self.tensors)
        return PortEntry(self._tensor(value), tuple(sorted(names)) or (op.get_friendly_name(),))

    def _tensor(self, value: Any) -> str:
        """Return the name under which a value is known in all segments, and give it this name."""
        base = f"{PREFIX}:{value.get_node().get_friendly_name()}:{value.get_index()}"
        while base in self.taken:
            base += "_"
        if base not in self.tensors:
            shape = value.get_partial_shape()
            dims = None if shape.rank.is_dynamic else tuple(d.get_length() if d.is_static else -1 for d in shape)
            self.tensors[base] = TensorEntry(value.get_element_type().get_type_name(), dims)
            value.add_names({base})
        return base

    def _model(self, s: int) -> SegmentModel:
        results, parameters = self.results[s], self.parameters[s]
        whole = ov.Model(list(results.values()), self.sinks[s], list(parameters.values()), f"segment{s}")
        return SegmentModel(whole, tuple(parameters), tuple(results))
