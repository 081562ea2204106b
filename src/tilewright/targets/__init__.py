"""Targets: each turns a `Program` into something that runs, or is simulated. `TARGETS` names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright import families
from tilewright.registry import Registry

if TYPE_CHECKING:
    from tilewright.targets.base import Target

TARGETS: Registry[Target] = families.TARGETS
