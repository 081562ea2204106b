"""tilewright: a hardware-aware compiler and scheduler for neural networks.

    import tilewright as tw

    compiled = tw.compile("model.onnx")
    outputs = compiled.run(None, {"x": array})
    compiled.save("model.tw")

Names load when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

# At once, so that a fork is watched before any thread imports the rest.
from tilewright.system import forks as _forks
from tilewright.system.memory_errors import memory_errors_typed as _memory_errors_typed
from tilewright.version import __version__ as __version__

if TYPE_CHECKING:
    from tilewright.api import (
        CheckReport,
        Decoder,
        InferenceSession,
        Model,
        bench,
        check,
        compare_schedules,
        load,
        map_chain,
        schedule_graph,
        simulate,
        simulate_sweep,
    )
    from tilewright.api import bisect_model as bisect
    from tilewright.api import compare_models as compare
    from tilewright.api import compile_model as compile
    from tilewright.api import diff_models as diff
    from tilewright.api import export_model as export
    from tilewright.api import generate_tokens as generate
    from tilewright.api import inspect_file as inspect
    from tilewright.api import learn_costs as learn
    from tilewright.api import map_operators as map
    from tilewright.api import open_artifact as open
    from tilewright.api import plan_model as plan
    from tilewright.api import profile_model as profile
    from tilewright.api import quantize_model as quantize
    from tilewright.api import reduce_model as reduce
    from tilewright.api import tune_model as tune
    from tilewright.api import view_model as view
    from tilewright.compiled import CompiledModel
    from tilewright.errors import (
        ArtifactCorrupt,
        BudgetExceeded,
        InfeasibleMapping,
        InputError,
        InternalError,
        MachineError,
        ModelClosed,
        ModelRejected,
        NumericMismatch,
        PluginFailed,
        TilewrightError,
        UnsupportedOp,
        UsageError,
    )
    from tilewright.options import Options

__all__ = [
    "ArtifactCorrupt",
    "BudgetExceeded",
    "CheckReport",
    "CompiledModel",
    "Decoder",
    "InfeasibleMapping",
    "InferenceSession",
    "InputError",
    "InternalError",
    "MachineError",
    "Model",
    "ModelClosed",
    "ModelRejected",
    "NumericMismatch",
    "Options",
    "PluginFailed",
    "TilewrightError",
    "UnsupportedOp",
    "UsageError",
    "bench",
    "bisect",
    "check",
    "compare",
    "compare_schedules",
    "compile",
    "diff",
    "export",
    "generate",
    "inspect",
    "learn",
    "load",
    "map",
    "map_chain",
    "open",
    "plan",
    "profile",
    "quantize",
    "reduce",
    "schedule_graph",
    "simulate",
    "simulate_sweep",
    "tune",
    "view",
]

_ERRORS = (
    "ArtifactCorrupt",
    "BudgetExceeded",
    "InfeasibleMapping",
    "InputError",
    "InternalError",
    "MachineError",
    "ModelClosed",
    "ModelRejected",
    "NumericMismatch",
    "PluginFailed",
    "TilewrightError",
    "UnsupportedOp",
    "UsageError",
)
_API = (
    "CheckReport",
    "Decoder",
    "InferenceSession",
    "Model",
    "bench",
    "check",
    "compare_schedules",
    "load",
    "map_chain",
    "schedule_graph",
    "simulate",
    "simulate_sweep",
)
_HOMES: dict[str, tuple[str, str]] = {
    **{name: ("tilewright.errors", name) for name in _ERRORS},
    **{name: ("tilewright.api", name) for name in _API},
    "CompiledModel": ("tilewright.compiled", "CompiledModel"),
    "Options": ("tilewright.options", "Options"),
    "bisect": ("tilewright.api", "bisect_model"),
    "compare": ("tilewright.api", "compare_models"),
    "compile": ("tilewright.api", "compile_model"),
    "diff": ("tilewright.api", "diff_models"),
    "export": ("tilewright.api", "export_model"),
    "generate": ("tilewright.api", "generate_tokens"),
    "inspect": ("tilewright.api", "inspect_file"),
    "learn": ("tilewright.api", "learn_costs"),
    "map": ("tilewright.api", "map_operators"),
    "open": ("tilewright.api", "open_artifact"),
    "plan": ("tilewright.api", "plan_model"),
    "profile": ("tilewright.api", "profile_model"),
    "quantize": ("tilewright.api", "quantize_model"),
    "reduce": ("tilewright.api", "reduce_model"),
    "tune": ("tilewright.api", "tune_model"),
    "view": ("tilewright.api", "view_model"),
}
_MODULES = ("backend", "benchmark", "passes", "zoo")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        with _memory_errors_typed():
            value = getattr(_import(module), attribute)
        globals()[name] = value
        return value
    if name in _MODULES:
        return _import(f"tilewright.{name}")
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


def _import(module: str) -> Any:
    if module not in sys.modules:
        _forks.require_whole_process()
    return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
