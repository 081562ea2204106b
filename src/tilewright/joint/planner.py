"""The joint search as one call: a plan, what it costs, and how far from the best of the space it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.joint.additive import Certificate, Part, shortest
from tilewright.joint.base import Plan, Pricer, SetPricer, plan_of
from tilewright.joint.floors import strong_floors
from tilewright.joint.repair import Repair, one_by_one
from tilewright.joint.space import connected_sets
from tilewright.planning import Bound, Budget, Meter, Quality
from tilewright.progress import ending_with
from tilewright.records import dataclass

PROVABLE, MOST_PROVABLE = 20, 128
"""Layers up to which a proof is tried, whatever their number of connected sets, and where these are few."""

MAX_SETS, MAX_SETS_OF_MORE = 1 << 20, 30_000
"""Connected sets of layers up to which a proof is tried, of so many layers."""

SETS_A_SECOND = 10_000
"""Sets of layers that are bounded in a second, about: no proof is begun that would get no further."""

STEPS_OF_PROOF = 50
"""States expanded or blocks priced by a proof that count as one evaluation."""

COARSE_IDLE, IDLE = 60, 200
"""Windows in a row without success after which a search gives up."""


@dataclass(frozen=True, slots=True)
class JointAnswer:
    """A plan beside its bounds; a certificate where it is proven to be the best of the space.

    `is_interrupted`: the user ended the search.
    """

    plan: Plan
    pricer: Pricer  # that its costs are of
    quality: Quality
    num_windows: int
    num_states: int
    num_priced: int
    certificate: Certificate | None
    is_interrupted: bool = False


def solve(
    pricer: SetPricer,
    budget: Budget,
    *,
    unit: str,
    coarse: SetPricer | None = None,
    publish: Callable[[Plan], None] = lambda plan: None,
) -> JointAnswer:
    """The cheapest plan that the budget finds; an evaluation is a window, or a part of a proof.

    `coarse` prices blocks of fewer decisions, and faster: windows are solved with it, and what is found is
    priced again. An interrupt ends the search with the best plan so far.
    """
    meter = budget.start(is_interruptible=True)
    with ending_with(meter):
        return _solved(pricer, meter, unit, coarse, publish)


def _solved(
    pricer: SetPricer, meter: Meter, unit: str, coarse: SetPricer | None, publish: Callable[[Plan], None]
) -> JointAnswer:
    quick = coarse or pricer
    plan = one_by_one(quick)
    publish(plan)
    repair = Repair(quick, plan, meter, publish)
    with meter.ending_early():
        repair.run(COARSE_IDLE)
    plan = repair.plan
    fine: Plan | None = None
    with meter.ending_early():
        fine = _priced_again(pricer, plan, meter)
    if fine is None:
        quality = Quality.of(plan.cost, pricer.bound, unit=unit, cut_off=True)
        return JointAnswer(plan, quick, quality, repair.num_windows, 0, 0, None, meter.is_interrupted)
    publish(fine)
    again = Repair(pricer, fine, meter, publish, seed=1)
    proof = _Proof(fine, [])
    with meter.ending_early():
        _prove(pricer, proof, meter, share=0.5)
    if proof.certificate is None:
        again.plan = min(proof.plan, again.plan, key=lambda plan: plan.cost)
        with meter.ending_early():
            again.run(IDLE)
        proof.plan = again.plan
    publish(proof.plan)
    return JointAnswer(
        plan=proof.plan,
        pricer=pricer,
        quality=Quality.of(
            proof.plan.cost, pricer.bound, *proof.bounds, unit=unit, cut_off=meter.cut_off or meter.is_over
        ),
        num_windows=repair.num_windows + again.num_windows,
        num_states=proof.num_states,
        num_priced=proof.num_priced,
        certificate=proof.certificate,
        is_interrupted=meter.is_interrupted,
    )


def _priced_again(pricer: Pricer, plan: Plan, meter: Meter) -> Plan | None:
    """A plan by its own pricer; None when the time is over."""
    for block in plan.blocks:
        if meter.is_over:
            return None
        pricer.price(block)
    return plan_of(pricer, plan.blocks)


@dataclass(slots=True)
class _Proof:
    plan: Plan
    bounds: list[Bound]
    num_states: int = 0
    num_priced: int = 0
    certificate: Certificate | None = None


def _prove(pricer: SetPricer, proof: _Proof, meter: Meter, share: float) -> None:
    """The whole graph as one window, as far as a share of what is left of the budget lasts."""
    plan = proof.plan
    is_reached = pricer.bound.is_reached(plan.cost)
    if is_reached or pricer.num_layers > MOST_PROVABLE or _is_spent(meter):
        return

    num_asked = 0
    end_s = 0.0 if meter.left_s is None else meter.left_s * (1 - share)
    most = meter.num_evaluations + int((meter.budget.max_evaluations - meter.num_evaluations) * share)

    def is_due() -> bool:
        nonlocal num_asked
        num_asked += 1
        if meter.is_over or (meter.left_s is not None and meter.left_s <= end_s):
            return True
        if meter.num_evaluations >= most:
            return True
        return num_asked % STEPS_OF_PROOF == 0 and not meter.spend()

    everything = (1 << pricer.num_layers) - 1
    max_sets = MAX_SETS if pricer.num_layers <= PROVABLE else MAX_SETS_OF_MORE
    sets = connected_sets(pricer, [1 << i for i in range(pricer.num_layers)], max_sets)
    if sets is None or (meter.left_s is not None and len(sets) > SETS_A_SECOND * (meter.left_s - end_s)):
        return
    strong = strong_floors(pricer, sets, everything, plan.cost, is_due)
    if strong is None:
        return
    proof.num_priced = strong.num_priced
    source = "floors of layers by linear programming"
    of_all = Bound(strong.unpriced_bound, pricer.least_space, source)
    floors = Bound(strong.bound, pricer.space, source)
    proof.bounds = [of_all, floors]
    part = Part(everything, 0, pricer.goal)
    found = shortest(
        pricer,
        part,
        strong.sets,
        plan.cost,
        floors=strong.floors,
        tight_least=pricer.tight_least,
        is_due=is_due,
        keep_costs=True,
    )
    proof.num_states, proof.num_priced = found.num_states, found.num_priced + strong.num_priced
    proof.plan = found.plan or plan
    if found.is_closed:
        proof.bounds = [of_all, Bound(proof.plan.cost, pricer.space, "shortest path over states")]
        proof.certificate = Certificate(pricer, part, strong.floors, proof.plan.cost, found.costs)
    else:
        proof.bounds = [of_all, replace(floors, value=max(strong.bound, found.bound))]


def _is_spent(meter: Meter) -> bool:
    return meter.is_over or meter.num_evaluations >= meter.budget.max_evaluations
