"""Runs a model that `placewright split` cut into segments: needs openvino and numpy, and nothing else of placewright.

import placed
with placed.load("split/") as model:
outputs = model({"x": array})
"""

from .compiling import SegmentCompiler as SegmentCompiler
from .errors import ManifestError as ManifestError
from .errors import PlacedClosedError as PlacedClosedError
from .errors import PlacedError as PlacedError
from .errors import PlacedInputError as PlacedInputError
from .errors import SegmentError as SegmentError
from .manifest import SplitManifest as SplitManifest
from .manifest import read_manifest as read_manifest
from .model import PlacedModel as PlacedModel
from .model import PlacedQueue as PlacedQueue
from .model import load as load
from .requests import PlacedRequest as PlacedRequest
