"""Measured selection: what can be chosen, how it is searched, and where the findings are kept."""

from tilewright.tuning.choice import NO_CHOICES, Choice, Choices

__all__ = ["NO_CHOICES", "Choice", "Choices"]
