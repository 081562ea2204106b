"""Measured selection: what can be chosen, how it is searched, and where the findings are kept."""

from tilewright.planning.choice import Choice
from tilewright.tuning.choice import (
    NO_CHOICES,
    PLAIN,
    Candidate,
    Choices,
    Plan,
    choices_by_subgraph,
    place_key,
)
from tilewright.tuning.database import Trial, TunedPlan, TuningDatabase
from tilewright.tuning.observation import Failure, FailureReason, Observation, PlanContext, Provenance
from tilewright.tuning.search import Bench, SearchOutcome, Site, search

__all__ = [
    "NO_CHOICES",
    "PLAIN",
    "Bench",
    "Candidate",
    "Choice",
    "Choices",
    "Failure",
    "FailureReason",
    "Observation",
    "Plan",
    "PlanContext",
    "Provenance",
    "SearchOutcome",
    "Site",
    "Trial",
    "TunedPlan",
    "TuningDatabase",
    "choices_by_subgraph",
    "place_key",
    "search",
]
