"""How long placewright takes: one script per promise about speed, see README.md."""

import os

# Keeps `import openvino` from reporting home: a benchmark must not touch the network.
os.environ.setdefault("CI", "true")
