"""Targets: each turns a `Program` into something that runs, or is simulated. `TARGETS` names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.registry import Registry

if TYPE_CHECKING:
    from tilewright.targets.base import Target

TARGETS: Registry[Target] = Registry(
    "target", entry_point_group="tilewright.targets", protocol="tilewright.targets.base:Target"
)
TARGETS.add_class("cpu", "tilewright.targets.cpu.target:CpuTarget")
TARGETS.add_class("interpreter", "tilewright.targets.interpreter.target:InterpreterTarget")
TARGETS.add_class("null", "tilewright.targets.null.target:NullTarget")
