"""What this machine's processor does with products of 8-bit integers."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
WIDE = {"avx_vnni", "avx512_vnni", "amx_int8", "asimddp"}


def saturates() -> bool:
    """Return whether pairs of 8-bit products are added in 16 bits: AVX2 alone has no instruction that adds in 32.

    What OpenVINO and ONNX Runtime compute in integers is off by some percent there, and an LSTM by half.
    """
    return CPUINFO.is_file() and WIDE.isdisjoint(CPUINFO.read_text(encoding="utf-8").split())
