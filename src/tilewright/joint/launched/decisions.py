"""Decisions of a joint plan, block by block, beside what the next best alternatives would have cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import inf

from tilewright.joint.additive import Part, shortest
from tilewright.joint.launched.content import Content
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.partition.split import WHOLE
from tilewright.records import dataclass

_AROUND = 3
"""Blocks before and behind one, among which the best path without it is looked for."""

_MOST = 500
"""Blocks of plans whose decisions are stated."""

_MOST_STEPS = 20_000
"""Steps of all searches for paths without a block, the same on every machine."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A block of a plan. `other_ns` is what its nodes take in the next best way to run them as a block,
    `without_ns` what the plan takes longer without the block; None where the search priced nothing else, or
    there are too many paths."""

    nodes: tuple[str, ...]
    what: str
    cost_ns: float
    other_ns: float | None
    without_ns: float | None


def decisions_of(pricer: LaunchedPricer, blocks: Sequence[Content]) -> list[Decision]:
    """The decisions of a plan whose blocks were priced, as all that they are compared with; none of a plan
    that holds another block, or very many."""
    if len(blocks) > _MOST or not all(map(pricer.is_known, blocks)):
        return []
    found = []
    steps = itertools.count()
    priced = pricer.priced_sets()
    for place, content in enumerate(blocks):
        window = blocks[max(0, place - _AROUND) : place + _AROUND + 1]
        cost = pricer.cost(content)
        found.append(
            Decision(
                tuple(pricer.numbered.nodes[i].name for kernel in content.kernels for i in kernel.nodes),
                _what(content),
                cost,
                pricer.next_best(content),
                _without(
                    pricer,
                    content,
                    blocks[: max(0, place - _AROUND)],
                    window,
                    priced,
                    lambda: next(steps) > _MOST_STEPS,
                ),
            )
        )
    return found


def _without(
    pricer: LaunchedPricer,
    content: Content,
    before: Sequence[Content],
    window: Sequence[Content],
    priced: Sequence[int],
    is_due: Callable[[], bool],
) -> float | None:
    """How much longer the best of the other paths through the nodes of some blocks in a row takes."""
    layers = sum(block.mask for block in window)
    stored = sum(block.mask for block in before)
    sets = [mask for mask in priced if mask != content.mask and not mask & ~layers]
    path = shortest(pricer, Part(layers, stored, layers), sets, inf, is_due=is_due, is_once=True)
    return None if path.plan is None else path.plan.cost - sum(map(pricer.cost, window))


def _what(content: Content) -> str:
    """Kernels, slices and stages in a few words."""
    parts = [f"{len(content.kernels)} kernels" if len(content.kernels) > 1 else "a kernel"]
    if len(content.stages) > 1:
        parts.append(f"{len(content.stages)} stages")
    elif len(content.stages[0].groups) > 1:
        is_merged = content.stages[0].strategy == "merge"
        parts.append("merged" if is_merged else f"{len(content.stages[0].groups)} groups side by side")
    if any(group.inside for stage in content.stages for group in stage.groups):
        parts.append("lanes")
    parts += dict.fromkeys(str(k.split) for k in content.kernels if k.split != WHOLE)
    return ", ".join(parts)
