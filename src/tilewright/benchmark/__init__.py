"""Latency beside onnxruntime and OpenVINO: in turns, in separate processes, equal threads, float32."""

from __future__ import annotations

from tilewright.benchmark.bounds import BoundSplit
from tilewright.benchmark.machine_state import MachineState
from tilewright.benchmark.session import BenchPlan, Comparison, Contestant, Entrant, compare_engines
from tilewright.benchmark.statistics import Ratio, Timing, Verdict

__all__ = [
    "BenchPlan",
    "BoundSplit",
    "Comparison",
    "Contestant",
    "Entrant",
    "MachineState",
    "Ratio",
    "Timing",
    "Verdict",
    "compare_engines",
]
