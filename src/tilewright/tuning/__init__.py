"""Measured selection: what can be chosen, how it is searched, and where the findings are kept."""

from tilewright.planning.choice import Choice
from tilewright.tuning.choice import NO_CHOICES, Choices
from tilewright.tuning.database import TunedPlan, TuningDatabase
from tilewright.tuning.observation import Failure, FailureReason, Observation, PlanContext, Provenance

__all__ = [
    "NO_CHOICES",
    "Choice",
    "Choices",
    "Failure",
    "FailureReason",
    "Observation",
    "PlanContext",
    "Provenance",
    "TunedPlan",
    "TuningDatabase",
]
