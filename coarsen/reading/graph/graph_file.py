"""Reading what a graph is given as: a JSON document in one of two formats, or a model."""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coarsen.fold import Fold
from coarsen.reading.graph.document import read_document
from coarsen.reading.graph.msr import is_msr, read_msr
from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.rewriting.rewrites import Rewrites
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.errors import UNPARSABLE, ModelError, UsageError
from pipeline.core.graph import Grouping, contract
from pipeline.core.workload import Tags, Workload
from pipeline.shared.payload import load_graph


@dataclass(frozen=True, slots=True, eq=False)
class GraphFile:
    """A graph that was read from a file.

    members: what the operations of the graph are made of: names of the model's operations, and which operation of
    the graph each belongs to; None where nothing was merged.
    """

    workload: Workload
    members: tuple[tuple[str, ...], Grouping] | None = None


def is_graph_file(path: Path) -> bool:
    """Return whether a file is a graph by its name, and not a model."""
    return path.suffix == ".json" or path.suffixes[-2:] == [".json", ".gz"]


def read_graph(
    path: Path,
    *,
    cost_scale: float = 1.0,
    limits: ReadLimits | None = None,
    shapes: InputShapes | None = None,
    rewrites: Rewrites | None = None,
) -> GraphFile:
    """Return the graph of a file: *.json or *.json.gz in one of the formats of docs/graph.md, else a model.

    A model's weights are folded into their consumers. cost_scale: what the costs of a file in the format of Tarnawski
    et al. are multiplied with. limits: what reading a model may take; shapes: what becomes of its dynamic inputs;
    rewrites: what is rewritten in it; the usual if None.

    Raises:
        ModelError: the file is missing, unreadable or wrong.
        UsageError: cost_scale, shapes or rewrites are given for another format, or make no sense.
    """
    if not 0 < cost_scale < float("inf"):
        raise UsageError(
            f"The cost scale must be above 0, got {cost_scale}.", "Pass --cost-scale with a number above 0."
        )
    if not is_graph_file(path):
        _check_scale(cost_scale, path)
        return _of_model(path, limits or ReadLimits(), shapes or InputShapes(), rewrites or Rewrites())
    if shapes is not None and shapes.given:
        raise UsageError(f"{path} is a graph, not a model: it has no input shapes.", "Remove --shape.")
    if rewrites is not None:
        rewrites.refuse(str(path))
    document, source = _read_json(path)
    if is_msr(document):
        return GraphFile(read_msr(document, where=str(path), cost_scale=cost_scale, source=source))
    if "operations" not in document:
        raise ModelError(
            f"{path} is not a graph: its keys are {', '.join(map(str, document)) or 'none'}.",
            "Give operations and edges, or nodes and edges; docs/graph.md describes both formats.",
        )
    _check_scale(cost_scale, path)
    return GraphFile(read_document(document, where=str(path), source=source))


def _check_scale(cost_scale: float, path: Path) -> None:
    if cost_scale != 1:
        raise UsageError(
            f"{path} has bytes on its edges, not transfer costs to scale.", "Remove --cost-scale, or change the links."
        )


def _read_json(path: Path) -> tuple[Mapping[str, Any], str]:
    """Return the object in a JSON file, perhaps compressed, and the sha256 of its text."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        document = json.loads(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ModelError(f"{path} is not valid gzip: {error}.", "Write it again, or give the plain JSON.") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.", "Give the path of a graph or a model.") from error
    except UNPARSABLE as error:
        raise ModelError(f"{path} is not valid JSON: {error}.", "Correct the file, or write it again.") from error
    if not isinstance(document, Mapping):
        raise ModelError(f"{path} holds no JSON object.", "docs/graph.md describes the formats.")
    return document, hashlib.sha256(content).hexdigest()


def _of_model(path: Path, limits: ReadLimits, shapes: InputShapes, rewrites: Rewrites) -> GraphFile:
    source = model_sha256(path)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        read_in_process(path, Path(folder), source=source, limits=limits, shapes=shapes, rewrites=rewrites, save=False)
        raw = load_graph(Path(folder) / "graph.npz")
    grouping = Fold().coarsen(raw, seed=0)
    graph = contract(raw, grouping)
    return GraphFile(Workload(graph, Tags.none(graph.n)), (raw.names, grouping))
