"""The joint search as one call: a plan, what it costs, and how far from the best of the space it may be."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.errors import InternalError
from tilewright.joint.additive import Certificate, Part, shortest
from tilewright.joint.base import Plan, Pricer, plan_of
from tilewright.joint.repair import Repair, one_by_one
from tilewright.joint.space import connected_sets
from tilewright.planning import Bound, Budget, Meter, Quality
from tilewright.records import dataclass

PROVABLE = 20
"""Layers up to which a proof is tried when no window finds anything."""

MAX_SETS = 1 << 20


@dataclass(frozen=True, slots=True)
class JointAnswer:
    """A plan beside its bounds; a certificate where it is proven to be the best of the space."""

    plan: Plan
    quality: Quality
    num_windows: int
    num_states: int
    num_priced: int
    certificate: Certificate | None


def solve(
    pricer: Pricer,
    budget: Budget,
    *,
    unit: str,
    coarse: Pricer | None = None,
    publish: Callable[[Plan], None] = lambda plan: None,
) -> JointAnswer:
    """The cheapest plan that the budget finds; an evaluation is a window that is solved.

    `coarse` prices blocks of fewer decisions, and faster: windows are solved with it, and what is found is
    priced again.
    """
    meter = budget.start()
    plan = one_by_one(pricer)
    publish(plan)
    num_states = num_priced = 0
    repair = Repair(coarse or pricer, plan_of(coarse or pricer, plan.blocks), meter, publish)
    plan = plan_of(pricer, repair.run().blocks)
    certificate = None
    bounds = [pricer.bound]
    if pricer.num_layers <= PROVABLE and not _is_spent(meter):
        part = Part((1 << pricer.num_layers) - 1, 0, pricer.goal)
        sets = connected_sets(pricer, [1 << i for i in range(pricer.num_layers)], MAX_SETS)
        if sets is not None:
            found = shortest(pricer, part, sets, plan.cost, is_due=lambda: _is_late(meter), keep_costs=True)
            num_states, num_priced = found.num_states, found.num_priced
            plan = found.plan or plan
            if found.is_closed:
                bounds.append(Bound(plan.cost, pricer.space, "shortest path over states"))
                certificate = Certificate(pricer, part, plan.cost, found.costs)
            elif found.bound > pricer.bound.value:
                bounds.append(Bound(found.bound, pricer.space, "shortest path over states, not finished"))
    if plan.cost == float("inf"):
        raise InternalError("a plan that cannot run was chosen.")
    publish(plan)
    return JointAnswer(
        plan=plan,
        quality=Quality.of(plan.cost, *bounds, unit=unit, cut_off=meter.cut_off or _is_late(meter)),
        num_windows=repair.num_windows,
        num_states=num_states,
        num_priced=num_priced,
        certificate=certificate,
    )


def _is_late(meter: Meter) -> bool:
    return meter.left_s is not None and meter.left_s <= 0


def _is_spent(meter: Meter) -> bool:
    return _is_late(meter) or meter.num_evaluations >= meter.budget.max_evaluations
