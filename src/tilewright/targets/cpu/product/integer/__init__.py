"""Contractions of bytes with int32 sums: quantised convolutions and matrix products."""

from tilewright.targets.cpu.product.integer.template import INTEGER

__all__ = ["INTEGER"]
