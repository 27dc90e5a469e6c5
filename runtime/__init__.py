"""Devices, measuring on them, simulating them."""

TABLE = {
    "hetero": "runtime.hetero:Hetero",
    "listsched": "runtime.simulators.listsched:ListSched",
    "pipelined": "runtime.simulators.pipelined:Pipelined",
    "sequential": "runtime.simulators.sequential:Sequential",
    "replay": "runtime.replay:Replay",
}
