"""Recurrent layers as one kernel: steps inside, units of the state over threads."""

from tilewright.targets.cpu.recurrent.template import estimate_steps, lower_steps

__all__ = ["estimate_steps", "lower_steps"]
