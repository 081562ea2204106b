"""What every planner family shares: how it is asked for, what it may spend, how it answers.

Partitioners, schedulers, mappers and memory planners are all `solve(problem, budget)`, which gives a
solution or `Infeasible`, with an independent `check`; these are the words in which they are asked and answer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.planning.answers import NO_LIMITS, Infeasible, Limits, Provenance, Violation
    from tilewright.planning.budget import UNLIMITED, Budget, Meter, Stopwatch
    from tilewright.planning.member_options import MemberInfo, MemberOption, option
    from tilewright.planning.quality import Bound, Quality, Rule, Space, Status
    from tilewright.planning.spec import Spec

__all__ = [
    "NO_LIMITS",
    "UNLIMITED",
    "Bound",
    "Budget",
    "Infeasible",
    "Limits",
    "MemberInfo",
    "MemberOption",
    "Meter",
    "Provenance",
    "Quality",
    "Rule",
    "Space",
    "Spec",
    "Status",
    "Stopwatch",
    "Violation",
    "option",
]

# Loaded when first asked for: the command line reads budgets and names, and plans nothing.
_HOMES = {
    **dict.fromkeys(("UNLIMITED", "Budget", "Meter", "Stopwatch"), "budget"),
    **dict.fromkeys(("NO_LIMITS", "Infeasible", "Limits", "Provenance", "Violation"), "answers"),
    **dict.fromkeys(("MemberInfo", "MemberOption", "option"), "member_options"),
    **dict.fromkeys(("Bound", "Quality", "Rule", "Space", "Status"), "quality"),
    "Spec": "spec",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tilewright.planning' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tilewright.planning.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
