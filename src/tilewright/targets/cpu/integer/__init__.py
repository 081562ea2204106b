"""Contractions of bytes with int32 sums: quantised convolutions and matrix products."""

from tilewright.targets.cpu.integer.match import product_of
from tilewright.targets.cpu.integer.select import lower_integer

__all__ = ["lower_integer", "product_of"]
