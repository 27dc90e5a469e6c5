"""Devices, measuring on them, simulating them."""

TABLE = {
    "dataflow": "runtime.measuring.contest.dataflow:Dataflow",
    "hetero": "runtime.measuring.contest.hetero:Hetero",
    "latency": "runtime.simulators.latency:SingleInference",
    "listsched": "runtime.simulators.listsched:ListSched",
    "pipelined": "runtime.simulators.pipelined:Pipelined",
    "sequential": "runtime.simulators.sequential:Sequential",
    "replay": "runtime.measuring.replay:Replay",
}
