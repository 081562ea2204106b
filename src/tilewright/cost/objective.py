"""What is minimised: the value of a cost under each objective, and which of two costs is better."""

from __future__ import annotations

from tilewright.cost.base import Objective

UNITS: dict[Objective, str] = {"latency": "cycles", "energy": "pJ", "edp": "pJ cycles"}


def measure(objective: Objective, cycles: float, energy_pj: float) -> float:
    """The value of a mapping under an objective."""
    match objective:
        case "latency":
            return float(cycles)
        case "energy":
            return energy_pj
        case "edp":
            return energy_pj * cycles


def rank(objective: Objective, cycles: float, energy_pj: float) -> tuple[float, float]:
    """The objective's value, then what decides between equals: energy, or cycles for energy itself."""
    second = float(cycles) if objective == "energy" else energy_pj
    return measure(objective, cycles, energy_pj), second
