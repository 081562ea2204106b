"""Choices for many kernels, by the work they do."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.planning.choice import Choice

Choices = Mapping[str, Choice]
"""How to make products, by signature of their work; the estimate decides for those left out."""

NO_CHOICES: Choices = {}
