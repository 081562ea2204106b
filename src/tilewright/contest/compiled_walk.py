"""The walk over tiles and steps in machine code."""

from __future__ import annotations

from tilewright.contest.walk import walk
from tilewright.machine_code import compiled

compiled_walk = compiled(walk)
