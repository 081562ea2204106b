"""Memory of machines whose levels the schedule fills: local buffers, a shared buffer, main memory.

`place` (`plan.py`) takes an order of instances to a `ScopePlan`: `expand.py` makes steps and live ranges of
it, `spill.py` says which pieces leave a level that is too small, `pack.py` finds offsets. `check.py`
recomputes all of it.
"""

from __future__ import annotations

from tilewright.memory.scoped.base import LevelUse, Piece, Read, ScopePlan, Step
from tilewright.memory.scoped.check import check_scopes
from tilewright.memory.scoped.plan import capacities_of, place
from tilewright.memory.scoped.spill import DEFAULT_POLICY, POLICIES

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "LevelUse",
    "Piece",
    "Read",
    "ScopePlan",
    "Step",
    "capacities_of",
    "check_scopes",
    "place",
]
