"""How the compiled segments of a model hang together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .compiling import SegmentCompiler
from .errors import SegmentError
from .manifest import SplitManifest

End = tuple[int, int]  # a segment, and the place among its inputs or outputs


@dataclass(frozen=True, slots=True)
class Wiring:
    """How k compiled segments hang together.

    compiled: k models. consumers: of each segment, those that take from it, each once; producers: how many it takes
    from. makers: tensor -> where it is made. readers: tensor -> where it is read. fixed: tensors between segments whose
    shape is known. moving: of each segment, (place among its inputs, where that is made) of tensors of unknown shape.
    dynamic: of each segment, whether it takes or gives a tensor of unknown shape.
    """

    manifest: SplitManifest
    compiled: tuple[Any, ...]
    compiler: SegmentCompiler
    consumers: tuple[tuple[int, ...], ...]
    producers: tuple[int, ...]
    makers: Mapping[str, End]
    readers: Mapping[str, tuple[End, ...]]
    fixed: tuple[str, ...]
    moving: tuple[tuple[tuple[int, End], ...], ...]
    dynamic: tuple[bool, ...]

    @classmethod
    def of(cls, manifest: SplitManifest, compiled: Sequence[Any], compiler: SegmentCompiler) -> Wiring:
        """Return how the compiled segments of a manifest hang together.

        Raises:
            SegmentError: a segment has no input or output of the name that the manifest says.
        """
        makers: dict[str, End] = {}
        readers: dict[str, list[End]] = {}
        for s, (entry, model) in enumerate(zip(manifest.segments, compiled, strict=True)):
            try:
                makers |= {name: (s, _place(model.outputs, name)) for name in entry.outputs}
                for name in entry.inputs:
                    readers.setdefault(name, []).append((s, _place(model.inputs, name)))
            except LookupError as error:
                raise SegmentError(entry.id, entry.device, f"its model has no {error}") from error
        between = [name for name in makers if name in readers]
        fixed = [n for n in between if compiled[makers[n][0]].outputs[makers[n][1]].get_partial_shape().is_static]
        moving: list[list[tuple[int, End]]] = [[] for _ in compiled]
        ends = {(makers[name][0], s) for name in between for s, _ in readers[name]}
        for name in between:
            for s, place in readers[name] if name not in fixed else ():
                moving[s].append((place, makers[name]))
        return cls(
            manifest,
            tuple(compiled),
            compiler,
            tuple(tuple(sorted(t for a, t in ends if a == s)) for s in range(len(compiled))),
            tuple(sum(b == s for _, b in ends) for s in range(len(compiled))),
            makers,
            {name: tuple(at) for name, at in readers.items()},
            tuple(fixed),
            tuple(map(tuple, moving)),
            tuple(any(p.get_partial_shape().is_dynamic for p in (*c.inputs, *c.outputs)) for c in compiled),
        )


def _place(ports: Sequence[Any], name: str) -> int:
    for i, port in enumerate(ports):
        if name in port.get_names():
            return i
    raise LookupError(name)
