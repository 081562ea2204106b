"""Contractions: every sum of products, as one register-tiled micro-kernel."""

from tilewright.targets.cpu.product.contraction.match import Contraction, match_contraction
from tilewright.targets.cpu.product.contraction.template import CONTRACTION

__all__ = ["CONTRACTION", "Contraction", "match_contraction"]
