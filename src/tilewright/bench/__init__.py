"""Latency beside onnxruntime and OpenVINO: in turns, in separate processes, equal threads, float32."""

from __future__ import annotations

from tilewright.bench.session import Comparison, Contestant, MachineState, compare_engines, relative_error
from tilewright.bench.statistics import Ratio, Timing, Verdict

__all__ = [
    "Comparison",
    "Contestant",
    "MachineState",
    "Ratio",
    "Timing",
    "Verdict",
    "compare_engines",
    "relative_error",
]
