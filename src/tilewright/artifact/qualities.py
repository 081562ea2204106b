"""Costs beside bounds as artifacts keep them; older ones have one bound and do not say of which plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tilewright.fields import FieldError, decoded, field_of, inside
from tilewright.planning.quality import Bound, Quality, Rule, Space, Status
from tilewright.records import dataclass
from tilewright.steps import CostInfo, SimulatedCost

_UNNAMED = Space("plans", (Rule("that the planner searched, as an older artifact has it"),))


@dataclass(frozen=True, slots=True)
class StoredQuality:
    """A cost with bounds, or with the `bound` of an older artifact."""

    cost: float
    unit: str
    status: Status = Status.FEASIBLE
    bound: float | None = None
    is_proven: bool = True
    bounds: tuple[Bound, ...] | None = None

    def quality(self) -> Quality:
        """The quality that was stored.

        Raises:
            FieldError: it has no bounds.
        """
        return Quality(self.cost, self.unit, self.status, self._bounds())

    def _bounds(self) -> tuple[Bound, ...]:
        if self.bounds is None and self.bound is not None:
            return (Bound(self.bound, _UNNAMED, "older artifact", self.is_proven),)
        if not self.bounds:
            raise FieldError("a cost needs at least one bound", ".bounds")
        return self.bounds


def encode_quality(quality: Quality) -> dict[str, Any]:
    """Plain values, the widest bound also where releases before look for it."""
    return {
        "cost": quality.cost,
        "bound": quality.bound,
        "unit": quality.unit,
        "status": str(quality.status),
        **({} if quality.widest.is_proven else {"is_proven": False}),
        "bounds": [_bound(bound) for bound in quality.bounds],
    }


def encode_cost(cost: CostInfo) -> dict[str, Any]:
    """Plain values, the widest bound also where releases before look for it."""
    bounds = [_bound(bound) for bound in cost.bounds]
    return {**asdict(cost), "bound": cost.bound, "is_proven": cost.is_proven, "bounds": bounds}


def decode_cost(document: Mapping[str, Any]) -> CostInfo:
    """The cost that `encode_cost` described.

    Raises:
        FieldError: naming a field that is missing or of another type.
    """
    quality = decoded(StoredQuality, document).quality()
    simulated = document.get("simulated")
    with inside("simulated"):
        known = None if simulated is None else decoded(SimulatedCost, simulated)
    return CostInfo(quality.cost, quality.unit, field_of(document, "source", str), quality.bounds, known)


def _bound(bound: Bound) -> dict[str, Any]:
    rules = [{"text": r.text, **({} if r.most is None else {"most": r.most})} for r in bound.space.rules]
    return {
        "value": bound.value,
        "space": {"of": bound.space.of, **({"rules": rules} if rules else {})},
        "source": bound.source,
        **({} if bound.is_proven else {"is_proven": False}),
    }
