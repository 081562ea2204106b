"""Checks of plans and certificates, from the pricer's answers alone: nothing of the search is used here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isclose

from tilewright.joint.base import Block, Plan, Pricer
from tilewright.planning import Violation

_ROUNDING = 1e-9  # of costs that are sums of floats

Potential = Callable[[int, int], float]
"""Potential of a state: what is stored, what is kept."""


def check_plan(pricer: Pricer, plan: Plan) -> list[Violation]:
    """Whether blocks are of the space, run in an order that works, reach the goal, and cost what is said."""
    found = []
    stored = kept = 0
    cost = 0.0
    for number, block in enumerate(plan.blocks):
        if block not in set(pricer.blocks(block.layers)):
            found.append(Violation("space", f"block {number} is none of the space."))
        reads = 0
        for layer in range(pricer.num_layers):
            if block.layers >> layer & 1:
                reads |= pricer.predecessors(layer)
        if block.reads != reads & ~block.layers:
            found.append(Violation("reads", f"block {number} does not say what it reads."))
        if block.resident != kept:
            found.append(Violation("residents", f"block {number} does not use what is kept for it."))
        if block.reads & ~(stored | kept):
            found.append(Violation("order", f"block {number} reads what is neither stored nor kept."))
        if (block.stores | block.keeps) & ~block.layers:
            found.append(Violation("results", f"block {number} stores or keeps what it does not make."))
        stored |= block.stores
        kept = block.keeps
        cost += pricer.price(block)
    if pricer.goal & ~stored:
        found.append(Violation("goal", "results of the graph are not stored at the end."))
    if not isclose(cost, plan.cost, rel_tol=_ROUNDING):
        found.append(Violation("cost", f"the blocks cost {cost}, not {plan.cost}."))
    return found


def check_potentials(pricer: Pricer, potential: Potential, bound: float) -> list[Violation]:
    """Whether potentials prove a bound: 0 at first, the bound at the goal, raised by at most a block's cost.

    Every set of layers is asked for its blocks, every state that they reach is visited: for small graphs.
    """
    blocks = [block for layers in range(1, 1 << pricer.num_layers) for block in pricer.blocks(layers)]
    slack = _ROUNDING * max(bound, 1.0)
    found = []
    if potential(0, 0) > slack:
        found.append(Violation("start", "the potential of the start is above 0."))
    seen = {(0, 0)}
    todo = [(0, 0)]
    while todo:
        stored, kept = todo.pop()
        here = potential(stored, kept)
        if not pricer.goal & ~stored and here < bound - slack:
            found.append(Violation("goal", f"the potential of a state at the goal is {here}, below {bound}."))
        for block in _enabled(blocks, stored, kept):
            after = (stored | block.stores, block.keeps)
            raised = potential(*after) - here
            if raised > slack and raised > pricer.price(block) + slack:
                found.append(Violation("transition", f"a block raises the potential by {raised}."))
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return found


def _enabled(blocks: Sequence[Block], stored: int, kept: int) -> list[Block]:
    return [b for b in blocks if b.resident == kept and not b.reads & ~(stored | kept)]
