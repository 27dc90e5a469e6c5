"""The ONNX file of a run, copied with its external data."""

from __future__ import annotations

from pathlib import Path

from coarsen.reading.model.files import model_files
from pipeline.core.errors import StoreError
from pipeline.system.private_files import copy_whole, make_alike, write_whole

ONNX = "onnx"  # the folder of the file that ONNX Runtime runs, where that is the answer of a run
OUT_MODEL = "model.onnx"


def write_onnx(source: Path, out: Path, content: bytes | None = None) -> list[Path]:
    """Write a model, and its external data under the names that it calls them; return the paths.

    content: in place of the model's own, with the same external data.

    Raises:
        StoreError: they cannot be written.
    """
    beside = {file: out / file.relative_to(source.parent) for file in model_files(source)[1:]}
    try:
        make_alike(out)
        if content is None:
            copy_whole(source, out / OUT_MODEL)
        else:
            write_whole(out / OUT_MODEL, content)
        for file, copy in beside.items():
            make_alike(copy.parent)
            copy_whole(file, copy)
    except OSError as error:
        raise StoreError(
            f"{out} cannot be written: {error.strerror}.", "Make room, or choose another folder with --out."
        ) from error
    return [out / OUT_MODEL, *beside.values()]
