"""Kernels of several operators, block by block of the result: what lies between stays in the cache."""

from tilewright.targets.cpu.fused.template import FUSED, lower_fused

__all__ = ["FUSED", "lower_fused"]
