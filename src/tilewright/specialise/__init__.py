"""Models whose shapes are open: a static model for each set of shapes, made when it is needed and kept."""

from __future__ import annotations

from tilewright.specialise.model import OpenCompiledModel, Specialisation, Specialisations

__all__ = ["OpenCompiledModel", "Specialisation", "Specialisations"]
