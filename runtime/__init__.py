"""Devices, measuring on them, simulating them."""

TABLE = {
    "dataflow": "runtime.measuring.dataflow:Dataflow",
    "hetero": "runtime.measuring.hetero:Hetero",
    "latency": "runtime.simulators.latency:SingleInference",
    "listsched": "runtime.simulators.listsched:ListSched",
    "pipelined": "runtime.simulators.pipelined:Pipelined",
    "sequential": "runtime.simulators.sequential:Sequential",
    "replay": "runtime.measuring.replay:Replay",
}
