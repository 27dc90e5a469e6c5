"""Every property of the CPU plug-in that can be written: tuned, or left with the reason why.

A test compares the tables with what the installed plug-in supports, so that a new property is looked at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from runtime.machines.devices import GROUP_SIZE, KV_CACHE, PRECISION
from runtime.measuring.contest.baselines import HINT
from runtime.measuring.contest.space import FURTHER, STREAMS, THREADS

TUNED: Mapping[str, str] = {
    THREADS: "numbers up to all processors",
    STREAMS: "where throughput counts",
    PRECISION: "every precision that the processor computes in and the model tolerates",
    HINT: "as baselines: LATENCY and THROUGHPUT",
    **dict.fromkeys(FURTHER, "one step around the best settings"),
    GROUP_SIZE: "where products unpack their weights from 8 bits or less: 128 and 32 first, then 64, 0, a whole row",
    KV_CACHE: "where a model with state keeps keys and values of attentions: u8, bf16, f16, f32",
}
LEFT: Mapping[str, str] = {
    "PERF_COUNT": "counts time for profiling, and costs some",
    "EXECUTION_MODE_HINT": "sets precision, groups and caches, which are tuned one by one; ACCURACY is the reference",
    "PERFORMANCE_HINT_NUM_REQUESTS": "limits the streams that a hint chooses; both are tuned themselves",
    "ENABLE_CPU_RESERVATION": "keeps other models off the processors; a second sub-model of the same plug-in gets none",
    "MODEL_DISTRIBUTION_POLICY": "spreads a model over sockets; not measured: no machine with several was available",
    "ENABLE_TENSOR_PARALLEL": "the same as MODEL_DISTRIBUTION_POLICY=TENSOR_PARALLEL",
    "DEVICE_ID": "says which device runs the model, not how",
    "CPU_DENORMALS_OPTIMIZATION": "rounds denormal numbers to 0; models without any gain nothing",
    "LOG_LEVEL": "has nothing to do with speed",
    "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": "serves int8 weights that are nearly all 0, on processors with AMX alone",
    "KEY_CACHE_PRECISION": "set with KV_CACHE_PRECISION",
    "VALUE_CACHE_PRECISION": "set with KV_CACHE_PRECISION",
    "KEY_CACHE_GROUP_SIZE": "0 lets the plug-in choose by the size of a head",
    "VALUE_CACHE_GROUP_SIZE": "0 lets the plug-in choose by the size of a head",
    "ENABLE_WEIGHTLESS": "makes cached models smaller on disk; inferences are the same",
    "WEIGHTS_PATH": "says where the weights of such a model are",
}


def unknown_properties(settable: Iterable[str]) -> list[str]:
    """Return the properties that neither table has."""
    return sorted(set(settable) - TUNED.keys() - LEFT.keys())


def properties_table() -> str:
    """Return both tables as one of Markdown."""
    rows = [(name, "yes", why) for name, why in TUNED.items()] + [(name, "no", why) for name, why in LEFT.items()]
    lines = [f"| `{name}` | {tuned} | {why} |" for name, tuned, why in rows]
    return "\n".join(["| property | tuned | |", "|---|---|---|", *lines])


if __name__ == "__main__":  # what docs/rewrites.md has on the site
    sys.stdout.write(properties_table())
