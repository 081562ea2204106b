"""Contractions: every sum of products, as one register-tiled micro-kernel."""

from tilewright.targets.cpu.contraction.choose import contraction_candidates
from tilewright.targets.cpu.contraction.generate import lower_contraction
from tilewright.targets.cpu.contraction.match import Contraction, match_contraction

__all__ = ["Contraction", "contraction_candidates", "lower_contraction", "match_contraction"]
