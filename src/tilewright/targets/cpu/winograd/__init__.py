"""Winograd's minimal filtering for 3x3 convolutions with unit steps."""

from tilewright.targets.cpu.winograd.generate import lower_winograd
from tilewright.targets.cpu.winograd.match import WinogradProblem, match_winograd
from tilewright.targets.cpu.winograd.plan import winograd_candidates, winograd_gain

__all__ = ["WinogradProblem", "lower_winograd", "match_winograd", "winograd_candidates", "winograd_gain"]
