"""What `import tilewright as tw` offers: one file for each function, with its request and its result.

Names load when they are first used: `tw.map` needs no compiler, `tw.load` no mapper.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.api.artifacts import open_artifact
    from tilewright.api.benchmark import BenchOptions, BenchResult, bench
    from tilewright.api.bisection import BisectResult, bisect_model
    from tilewright.api.chains import map_chain
    from tilewright.api.comparison import ComparisonResult, compare_models
    from tilewright.api.compilation import compile_model
    from tilewright.api.contest import schedule_graph
    from tilewright.api.difference import DiffResult, diff_models
    from tilewright.api.doctor import Diagnosis, diagnose
    from tilewright.api.export import export_model
    from tilewright.api.generation import Decoder, GenerateResult, generate_tokens
    from tilewright.api.inspection import Inspection, inspect_file
    from tilewright.api.learning import LearnResult, learn_costs
    from tilewright.api.map_request import MapRequest
    from tilewright.api.mapping import map_operators
    from tilewright.api.models import Model, ModelSummary, load
    from tilewright.api.plan_sweep import simulate_sweep
    from tilewright.api.plans import PlanComparison, PlanRequest, plan_model
    from tilewright.api.profiling import ModelProfile, profile_model
    from tilewright.api.quantization import QuantizeResult, quantize_model
    from tilewright.api.reduction import ReduceResult, reduce_model
    from tilewright.api.reproduction import reproduce_paper
    from tilewright.api.schedules import ScheduleComparison, compare_schedules
    from tilewright.api.session import InferenceSession
    from tilewright.api.simulation import SimulationResult, simulate
    from tilewright.api.simulation_request import SimulationRequest
    from tilewright.api.stages import ExportedStages, export_stages
    from tilewright.api.support import CheckReport, OperatorSupport, check
    from tilewright.api.tuning import TuneRequest, TuneResult, tune_model
    from tilewright.api.view import ModelView, view_model
    from tilewright.progress import Progress

_HOMES = {
    "tilewright.api.artifacts": ("open_artifact",),
    "tilewright.api.benchmark": ("BenchOptions", "BenchResult", "bench"),
    "tilewright.api.bisection": ("BisectResult", "bisect_model"),
    "tilewright.api.chains": ("map_chain",),
    "tilewright.api.contest": ("schedule_graph",),
    "tilewright.api.comparison": ("ComparisonResult", "compare_models"),
    "tilewright.api.compilation": ("compile_model",),
    "tilewright.api.difference": ("DiffResult", "diff_models"),
    "tilewright.api.doctor": ("Diagnosis", "diagnose"),
    "tilewright.api.export": ("export_model",),
    "tilewright.api.generation": ("Decoder", "GenerateResult", "generate_tokens"),
    "tilewright.api.inspection": ("Inspection", "inspect_file"),
    "tilewright.api.learning": ("LearnResult", "learn_costs"),
    "tilewright.api.map_request": ("MapRequest",),
    "tilewright.api.mapping": ("map_operators",),
    "tilewright.api.models": ("Model", "ModelSummary", "load"),
    "tilewright.api.plan_sweep": ("simulate_sweep",),
    "tilewright.api.plans": ("PlanComparison", "PlanRequest", "plan_model"),
    "tilewright.api.profiling": ("ModelProfile", "profile_model"),
    "tilewright.api.quantization": ("QuantizeResult", "quantize_model"),
    "tilewright.api.reduction": ("ReduceResult", "reduce_model"),
    "tilewright.api.reproduction": ("reproduce_paper",),
    "tilewright.api.schedules": ("ScheduleComparison", "compare_schedules"),
    "tilewright.api.session": ("InferenceSession",),
    "tilewright.api.simulation": ("SimulationResult", "simulate"),
    "tilewright.api.simulation_request": ("SimulationRequest",),
    "tilewright.api.stages": ("ExportedStages", "export_stages"),
    "tilewright.api.support": ("CheckReport", "OperatorSupport", "check"),
    "tilewright.api.tuning": ("TuneRequest", "TuneResult", "tune_model"),
    "tilewright.api.view": ("ModelView", "view_model"),
    "tilewright.progress": ("Progress",),
}

__all__ = [
    "BenchOptions",
    "BenchResult",
    "BisectResult",
    "CheckReport",
    "ComparisonResult",
    "Decoder",
    "Diagnosis",
    "DiffResult",
    "ExportedStages",
    "GenerateResult",
    "InferenceSession",
    "Inspection",
    "LearnResult",
    "MapRequest",
    "Model",
    "ModelProfile",
    "ModelSummary",
    "ModelView",
    "OperatorSupport",
    "PlanComparison",
    "PlanRequest",
    "Progress",
    "QuantizeResult",
    "ReduceResult",
    "ScheduleComparison",
    "SimulationRequest",
    "SimulationResult",
    "TuneRequest",
    "TuneResult",
    "bench",
    "bisect_model",
    "check",
    "compare_models",
    "compare_schedules",
    "compile_model",
    "diagnose",
    "diff_models",
    "export_model",
    "export_stages",
    "generate_tokens",
    "inspect_file",
    "learn_costs",
    "load",
    "map_chain",
    "map_operators",
    "open_artifact",
    "plan_model",
    "profile_model",
    "quantize_model",
    "reduce_model",
    "reproduce_paper",
    "schedule_graph",
    "simulate",
    "simulate_sweep",
    "tune_model",
    "view_model",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'tilewright.api' has no attribute {name!r}")
