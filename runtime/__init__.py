"""Devices, measuring on them, simulating them."""

TABLE = {
    "dataflow": "runtime.measuring.contest.dataflow:Dataflow",
    "hetero": "runtime.measuring.contest.hetero:Hetero",
    "latency": "runtime.simulators.calls.latency:SingleInference",
    "listsched": "runtime.simulators.dataflow.listsched:ListSched",
    "pipelined": "runtime.simulators.pipelined.pipelined:Pipelined",
    "sequential": "runtime.simulators.sequential.sequential:Sequential",
    "replay": "runtime.measuring.replay:Replay",
}
