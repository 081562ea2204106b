"""Winograd's minimal filtering for 3x3 convolutions with unit steps."""

from tilewright.targets.cpu.winograd.match import WinogradProblem, match_winograd
from tilewright.targets.cpu.winograd.plan import winograd_gain
from tilewright.targets.cpu.winograd.template import WINOGRAD

__all__ = ["WINOGRAD", "WinogradProblem", "match_winograd", "winograd_gain"]
