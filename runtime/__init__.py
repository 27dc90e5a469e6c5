"""Devices, measuring on them, simulating them."""

TABLE = {
    "hetero": "runtime.hetero:Hetero",
    "listsched": "runtime.listsched:ListSched",
    "pipelined": "runtime.pipelined:Pipelined",
    "sequential": "runtime.sequential:Sequential",
    "replay": "runtime.replay:Replay",
}
