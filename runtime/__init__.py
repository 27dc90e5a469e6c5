"""Devices, measuring on them, simulating them."""

TABLE = {
    "hetero": "runtime.hetero:Hetero",
    "sequential": "runtime.sequential:Sequential",
    "replay": "runtime.replay:Replay",
}
