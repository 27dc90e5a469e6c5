"""The files a model consists of: which they are, their hash, whether they stay as they are, whether an IR is whole."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.parsers import expat

from pipeline.core.errors import ModelError
from pipeline.system.paths import is_file

OLDEST_IR = 10
RUNNING = "OpenVINO's CPU device was to run it with"  # said before a trial, in case that the process dies of it
CHECK_FILE = "Check that the file is whole and of a format OpenVINO reads: IR, ONNX, TensorFlow, TFLite, Paddle."

_IR_REMEDY = "Name the .xml that OpenVINO's save_model or model converter wrote."

# A StringStringEntryProto {key: "location", value: ...} of an ONNX tensor: both fields are length-prefixed strings.
_ONNX_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f]|[\x80-\xff][\x01-\x7f])", re.DOTALL)

# What names of a checkpoint's files go on with after what they have in common.
_CHECKPOINT = re.compile(r"\.index|\.data-\d{5}-of-\d{5}")


def model_files(path: Path) -> tuple[Path, ...]:
    """Return the files that make up a model, the one that was named first.

    IR: the .xml and its .bin. TensorFlow: a checkpoint is the .meta, its .index and its .data; a SavedModel is a
    folder, all files in it. Paddle: the description and its .pdiparams. ONNX, whatever it is called: the file and the
    external data that it names.

    Raises:
        ModelError: there is no such file, or a folder that is not a model.
    """
    return tuple(file for _, file in _named_files(path))


def _named_files(path: Path) -> list[tuple[str, Path]]:
    """Return the files that make up a model, each with what the model calls it: "" where its place says that."""
    check_exists(path)
    if path.is_dir():
        return sorted((file.relative_to(path).as_posix(), file) for file in path.rglob("*") if file.is_file())
    if path.suffix == ".meta":
        beside = sorted((f.name.removeprefix(path.stem), f) for f in path.parent.glob(f"{glob.escape(path.stem)}.*"))
        return [("", path), *((name, file) for name, file in beside if _CHECKPOINT.fullmatch(name))]
    if path.suffix == ".xml":
        beside = [("", path.with_suffix(".bin"))]
    else:
        beside = [(location, path.parent / location) for location in _external_data(path)]
        beside.append(("", path.with_suffix(".pdiparams")))
    return [("", path), *((name, file) for name, file in beside if is_file(file) and file != path)]


def _external_data(path: Path) -> list[str]:
    """Return the external data files that an ONNX file names, sorted; only such beneath its own folder."""
    with _as_model_errors(path):
        if path.stat().st_size == 0:  # an empty file cannot be mapped
            return []
    locations: set[str] = set()
    with (
        _as_model_errors(path),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for match in _ONNX_LOCATION.finditer(content):
            prefix = match.group(1)
            length = prefix[0] if len(prefix) == 1 else (prefix[0] & 0x7F) | prefix[1] << 7
            locations.add(content[match.end() : match.end() + length].decode("utf-8", "replace"))
    return sorted(x for x in locations if "\0" not in x and not Path(x).is_absolute() and ".." not in Path(x).parts)


def is_written_as_path(text: str) -> bool:
    """Return whether a text that may name a network or a graph stands for a file: it is there, or looks like a path."""
    return bool(Path(text).suffix) or "/" in text or os.sep in text or Path(text).exists()


def model_sha256(path: Path) -> str:
    """Return the sha256, in hexadecimal, of what a model's files hold, and of what the model calls them.

    A model that is moved or renamed as a whole keeps it.

    Raises:
        ModelError: there is no such model, or one of its files cannot be read.
    """
    total = hashlib.sha256()
    for name, file in _named_files(path):
        if name:
            total.update(hashlib.sha256(os.fsencode(name)).digest())
        with _as_model_errors(file), file.open("rb") as stream:
            # The digest of each file, not its bytes: else bytes could move from one file to the next unseen.
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


@contextlib.contextmanager
def require_unchanged(path: Path, sha256: str) -> Iterator[None]:
    """Refuse what is read of a model in this context unless its files are those of a hash all the time.

    Raises:
        ModelError: they are not; it is raised in place of what a reader says of a file that is half written.
    """
    before = _file_stamps(path)
    fault: ModelError | None = None
    try:
        yield
    except ModelError as error:
        fault = error
    if not _is_still(path, before, sha256):
        raise ModelError(
            f"{path} changed while it was being read.", "Run again when no other process writes to it."
        ) from fault
    if fault is not None:
        raise fault


def _is_still(path: Path, stamps: Sequence[tuple[Path, int, int]], sha256: str) -> bool:
    """Return whether a model has not been touched since it had these stamps, and is of this hash."""
    try:
        return _file_stamps(path) == stamps and model_sha256(path) == sha256
    except ModelError:  # it is gone
        return False


def _file_stamps(path: Path) -> list[tuple[Path, int, int]]:
    """Return of every file of a model how large it is, in bytes, and when it changed, in nanoseconds."""
    stamps = []
    for file in model_files(path):
        with _as_model_errors(file):
            status = file.stat()
        stamps.append((file, status.st_size, status.st_mtime_ns))
    return stamps


@contextlib.contextmanager
def _as_model_errors(file: Path) -> Iterator[None]:
    """Turn what the file system refuses of a model's file into a ModelError."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.", "Check the file and its permissions.") from error


def check_exists(path: Path) -> None:
    """Check that there is a model under `path`: a file, or the folder of a TensorFlow SavedModel.

    Raises:
        ModelError: nothing is there, or a folder that is not a model.
    """
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        raise ModelError(
            f"{path} is a folder, not a model.", "Name the model file in it, for example its .xml or .onnx."
        )
    if not path.exists():
        raise ModelError(f"File not found: {path}.", "Check the path of the model.")


def check_ir(xml: Path) -> None:
    """Check that an .xml file is OpenVINO IR and that its weights file is there and long enough.

    OpenVINO maps the weights instead of reading them, and what it says about short ones names neither file nor cause.

    Raises:
        ModelError: one of these does not hold.
    """
    needed = _weight_bytes_needed(xml)
    if needed == 0:
        return
    weights = xml.with_suffix(".bin")
    remedy = f"Copy {weights.name} to {weights.parent} again, or export the model again."
    if not weights.is_file():
        raise ModelError(f"The weights file {weights} is missing.", remedy)
    size = weights.stat().st_size
    if size < needed:
        raise ModelError(f"The weights file {weights} is truncated: {size} bytes of at least {needed}.", remedy)


def _weight_bytes_needed(xml: Path) -> int:
    """Return the end of the last constant in the weights file of an IR, in bytes."""
    layer, needed, version = "", 0, ""

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal layer, needed, version
        if not version:
            if tag != "net":
                raise ModelError(f"{xml} is not OpenVINO IR: its root element is <{tag}>, not <net>.", _IR_REMEDY)
            version = attributes.get("version", "none")
        elif tag == "layer":
            layer = attributes.get("type", "")
        elif tag == "data" and layer == "Const":
            needed = max(needed, int(attributes.get("offset", 0)) + int(attributes.get("size", 0)))

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    try:
        with xml.open("rb") as file:
            parser.ParseFile(file)
    except ModelError:
        raise
    except (expat.ExpatError, ValueError) as error:
        raise ModelError(f"{xml} is not OpenVINO IR: {error}.", _IR_REMEDY) from error
    if not version.isdecimal() or int(version) < OLDEST_IR:
        raise ModelError(f"{xml} is IR of version {version}, older than {OLDEST_IR}.", "Export the model again.")
    return needed
