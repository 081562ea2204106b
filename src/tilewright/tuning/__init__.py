"""Measured selection: what can be chosen, how it is searched, and where the findings are kept."""

from tilewright.tuning.choice import NO_CHOICES, Choice, Choices
from tilewright.tuning.database import Trial, TunedPlan, TuningDatabase
from tilewright.tuning.search import Bench, Outcome, Site, search

__all__ = [
    "NO_CHOICES",
    "Bench",
    "Choice",
    "Choices",
    "Outcome",
    "Site",
    "Trial",
    "TunedPlan",
    "TuningDatabase",
    "search",
]
