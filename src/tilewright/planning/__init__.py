"""What every planner family shares: how it is asked for, what it may spend, how it answers.

Partitioners, schedulers, mappers and memory planners are all `solve(problem, budget)`, which gives a
solution or `Infeasible`, with an independent `check`; these are the words in which they are asked and answer.
"""

from __future__ import annotations

from tilewright.planning.answers import Infeasible, Provenance, Violation
from tilewright.planning.budget import NO_LIMITS, UNLIMITED, Budget, Limits, Meter
from tilewright.planning.member_options import MemberOption, option
from tilewright.planning.quality import Quality, Status
from tilewright.planning.spec import Spec

__all__ = [
    "NO_LIMITS",
    "UNLIMITED",
    "Budget",
    "Infeasible",
    "Limits",
    "MemberOption",
    "Meter",
    "Provenance",
    "Quality",
    "Spec",
    "Status",
    "Violation",
    "option",
]
