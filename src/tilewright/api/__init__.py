"""What `import tilewright as tw` offers: one file for each function, with its request and its result.

Names load when they are first used: `tw.map` needs no compiler, `tw.load` no mapper.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.api.artifacts import export_model, open_artifact
    from tilewright.api.compilation import compile_model, tune_model
    from tilewright.api.mapping import MapRequest, map_operators
    from tilewright.api.models import Model, ModelSummary, load
    from tilewright.api.session import InferenceSession
    from tilewright.api.support import CheckReport, OperatorSupport, check
    from tilewright.progress import Progress

__all__ = [
    "CheckReport",
    "InferenceSession",
    "MapRequest",
    "Model",
    "ModelSummary",
    "OperatorSupport",
    "Progress",
    "check",
    "compile_model",
    "export_model",
    "load",
    "map_operators",
    "open_artifact",
    "tune_model",
]

_HOMES = {
    "tilewright.api.artifacts": ("export_model", "open_artifact"),
    "tilewright.api.compilation": ("compile_model", "tune_model"),
    "tilewright.api.mapping": ("MapRequest", "map_operators"),
    "tilewright.api.models": ("Model", "ModelSummary", "load"),
    "tilewright.api.session": ("InferenceSession",),
    "tilewright.api.support": ("CheckReport", "OperatorSupport", "check"),
    "tilewright.progress": ("Progress",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'tilewright.api' has no attribute {name!r}")
