"""Beam search: the few most promising states after each stage. It seeds the exact search."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.ios.block import Block, BlockAnswer, Stop, Way
from tilewright.schedule.ios.stages import StageChoice

_TRANSITIONS_PER_CHECK = 4096


@dataclass(frozen=True, slots=True)
class _Partial:
    """Stages that end a schedule, the last one first, and what they cost."""

    state: int
    cost_ns: float
    before: _Partial | None
    choice: StageChoice | None

    def stages(self) -> Iterator[StageChoice]:
        partial: _Partial | None = self
        while partial is not None and partial.choice is not None:
            yield partial.choice
            partial = partial.before


def beam(block: Block, width: int, stop: Stop) -> BlockAnswer:
    """A schedule, by keeping `width` states after each stage; only stages that lead to these are priced.

    Ranked by what a schedule through them costs at least. Where the effort ends before, one after another.
    """
    level = [_Partial(block.graph.everything, 0.0, None, None)]
    best: _Partial | None = None
    num_transitions = 0
    while level:
        checkpoint()
        ranked: list[tuple[float, int, int, _Partial, Way]] = []
        for partial in level:
            for mask in block.endings(partial.state):
                num_transitions += 1
                rest = partial.state ^ mask
                for way in block.ways(mask):
                    bound_ns = partial.cost_ns + way.ns + block.rest_ns(rest)
                    ranked.append((bound_ns, rest.bit_count(), len(ranked), partial, way))
                if num_transitions % _TRANSITIONS_PER_CHECK == 0 and stop.is_due(num_transitions):
                    break
        level = []
        if not stop.is_due(num_transitions):
            level = _best_states(block, ranked, width, best.cost_ns if best else float("inf"))
        for done in (partial for partial in level if not partial.state):
            best = done if best is None or done.cost_ns < best.cost_ns else best
        level = [partial for partial in level if partial.state]
    if best is None:
        return one_by_one(block, num_transitions)
    bound_ns = block.rest_ns(block.graph.everything)
    return BlockAnswer(best.cost_ns, bound_ns, tuple(best.stages()), False, 0, num_transitions)


def _best_states(
    block: Block, ranked: list[tuple[float, int, int, _Partial, Way]], width: int, limit_ns: float
) -> list[_Partial]:
    kept: dict[int, _Partial] = {}
    for bound_ns, _, _, partial, way in sorted(ranked, key=lambda entry: entry[:3]):
        rest = partial.state ^ way.choice.mask
        if bound_ns >= limit_ns or (len(kept) == width and rest not in kept):
            break
        reached = _Partial(rest, partial.cost_ns + block.cost_ns(way), partial, way.choice)
        if rest not in kept or reached.cost_ns < kept[rest].cost_ns:
            kept[rest] = reached
    return list(kept.values())


def one_by_one(block: Block, num_transitions: int = 0) -> BlockAnswer:
    """Every operator alone. What it costs is infinite where stages have no known cost: none is asked for."""
    ways = [block.ways(1 << i)[0] for i in range(block.graph.num_operators)]
    cost_ns = sum(way.ns if way.is_known else float("inf") for way in ways)
    bound_ns = block.rest_ns(block.graph.everything)
    return BlockAnswer(cost_ns, bound_ns, tuple(way.choice for way in ways), False, 0, num_transitions)
