"""The files a model consists of: which they are, their hash, and whether those of an IR are whole."""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Iterable
from pathlib import Path
from xml.parsers import expat

from pipeline.core.errors import ModelError

OLDEST_IR = 10
CHECK_FILE = "Check that the file is whole and of a format OpenVINO reads: IR, ONNX, TensorFlow, TFLite, Paddle."

_IR_REMEDY = "Name the .xml that OpenVINO's save_model or model converter wrote."

# A StringStringEntryProto {key: "location", value: ...} of an ONNX tensor: both fields are length-prefixed strings.
_ONNX_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f]|[\x80-\xff][\x01-\x7f])", re.DOTALL)


def model_files(path: Path) -> tuple[Path, ...]:
    """Return the files that make up a model, the one that was named first.

    IR: the .xml and its .bin. ONNX: the file and the external data beside it that it names. Paddle: the description
    and its .pdiparams. A TensorFlow SavedModel is a folder: all files in it.

    Raises:
        ModelError: there is no such file, or a folder that is no model.
    """
    check_exists(path)
    if path.is_dir():
        return tuple(sorted(file for file in path.rglob("*") if file.is_file()))
    if path.suffix == ".onnx":
        beside = [path.parent / location for location in _external_data(path)]
    else:
        beside = [path.with_suffix(".bin" if path.suffix == ".xml" else ".pdiparams")]
    return (path, *(file for file in beside if file.is_file() and file != path))


def _external_data(path: Path) -> list[str]:
    """Return the external data files that an ONNX file names, sorted; only such beneath its own folder."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return []
    found: set[str] = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for match in _ONNX_LOCATION.finditer(content):
            prefix = match.group(1)
            length = prefix[0] if len(prefix) == 1 else (prefix[0] & 0x7F) | prefix[1] << 7
            found.add(content[match.end() : match.end() + length].decode("utf-8", "replace"))
    return sorted(x for x in found if "\0" not in x and not Path(x).is_absolute() and ".." not in Path(x).parts)


def sha256_of(paths: Iterable[Path]) -> str:
    """Return the sha256, in hexadecimal, of the contents of files in their order; their names do not matter.

    Raises:
        ModelError: one of the files cannot be read.
    """
    total = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                # The digest of each file, not its bytes: else bytes could move from one file to the next unseen.
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ModelError(
                f"{path} cannot be read: {error.strerror}.", "Check the file and its permissions."
            ) from error
    return total.hexdigest()


def check_exists(path: Path) -> None:
    """Check that there is a model under `path`: a file, or the folder of a TensorFlow SavedModel.

    Raises:
        ModelError: nothing is there, or a folder that is no model.
    """
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        raise ModelError(
            f"{path} is a folder, not a model.", "Name the model file in it, for example its .xml or .onnx."
        )
    if not path.exists():
        raise ModelError(f"There is no file {path}.", "Check the path of the model.")


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
