"""Winograd's minimal filtering for 3x3 convolutions with unit steps."""

from tilewright.targets.cpu.product.winograd.match import WinogradProblem, match_winograd
from tilewright.targets.cpu.product.winograd.plan import winograd_gain
from tilewright.targets.cpu.product.winograd.template import WINOGRAD

__all__ = ["WINOGRAD", "WinogradProblem", "match_winograd", "winograd_gain"]
