"""Compiles segments, each once for a device and its properties."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from .errors import ManifestError, SegmentError
from .manifest import DeviceEntry, SegmentEntry

MOST_COMPILED = 256  # segments that are kept; the one that was not used for longest goes first
# A CPU compiles faster than it reads a compiled model back, so that only others keep theirs on disk.
KEPT_ON_DISK = ("GPU", "NPU")

Source = Path | Callable[[], Any]  # the file of a segment's model, or what makes the model


class SegmentCompiler:
    """Compiles segments for devices and keeps them; what is asked for again is not compiled again.

    cache_dir: where plug-ins that compile slowly keep what they compile beyond this process; None for nowhere.
    compilations: how many segments were compiled so far, those that came from the disk among them.
    """

    def __init__(self, cache_dir: Path | None = None, *, most: int = MOST_COMPILED) -> None:
        self.core = ov.Core()
        self.compilations = 0
        self._cache_dir = cache_dir
        self._most = most
        self._registered: dict[str, str] = {}
        self._compiled: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, segment: SegmentEntry, device: DeviceEntry, source: Source) -> Any:
        """Return the compiled model of a segment; `source` is read only if it is not there yet.

        Raises:
            SegmentError: the device refuses the segment.
        """
        slow = device.plugin.partition(".")[0] in KEPT_ON_DISK
        kept = {"CACHE_DIR": str(self._cache_dir)} if slow and self._cache_dir is not None else {}
        properties = {**device.properties, **kept}
        key = (segment.sha256, device.openvino_name, device.library, tuple(sorted(properties.items())))
        with self._lock:
            if key not in self._compiled:
                try:
                    self._register(device)
                    model = self.core.read_model(source) if isinstance(source, Path) else source()
                    self._compiled[key] = self.core.compile_model(model, device.openvino_name, properties)
                except RuntimeError as error:
                    raise SegmentError(segment.id, segment.device, one_line(error)) from error
                self.compilations += 1
            self._compiled.move_to_end(key)
            while len(self._compiled) > self._most:
                self._compiled.popitem(last=False)
            return self._compiled[key]

    def tensor(self, devices: Mapping[str, DeviceEntry], element_type: Any, shape: Any) -> ov.Tensor:
        """Return a tensor that all the devices can reach without a copy: where one is a GPU, memory of its host."""
        for device in devices.values():
            if device.plugin.partition(".")[0] == "GPU":
                return self.core.get_default_context(device.openvino_name).create_host_tensor(element_type, shape)
        return ov.Tensor(element_type, shape)

    def _register(self, device: DeviceEntry) -> None:
        if not device.library:
            return
        known = self._registered.get(device.openvino_name)
        if known is None:
            self.core.register_plugin(device.library, device.openvino_name)
            self._registered[device.openvino_name] = device.library
        elif known != device.library:
            raise ManifestError(f"{device.openvino_name} is {known} and {device.library}")


def one_line(error: Exception) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split())
