"""Windows of large networks: what is found for one holds for all that are alike, and the rest stays."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.graphs import GraphBuilder
from tests.support.launched_kernels import planner_of, pricer_of, product

from tilewright.ir.graph import Graph, Value
from tilewright.joint.launched.content import Content, Numbered, assembled
from tilewright.joint.launched.moves import Moves, in_sequence
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.windows import (
    MOST_BLOCKS,
    Joiner,
    WindowedPlan,
    nodes_of,
    one_by_one,
    windows_of,
)
from tilewright.partition import check_partition
from tilewright.planning import UNLIMITED, Budget

NUM_BLOCKS = 15


def made(value: object) -> Value:
    assert isinstance(value, Value)
    return value


def repeated() -> Graph:
    """Blocks of two branches each, one behind the other."""
    b = GraphBuilder()
    x = b.input(64, 64)
    for _ in range(NUM_BLOCKS):
        left, right = made(product(b, x, 64, 64, 64)), made(product(b, x, 64, 64, 64))
        x = b.op("Add", made(product(b, left, 64, 64, 64)), right)
    return b.finish(x)


def test_windows_hold_every_block_and_end_where_few_values_pass() -> None:
    planner = planner_of(repeated(), "v100")
    numbered = Numbered(planner.graph)
    layers = one_by_one(pricer_of(planner, numbered))
    found = list(windows_of(numbered, layers, 5, 3))
    assert [c for window in found for c in window] == list(layers)
    assert len(found[0]) <= 3
    assert all(len(window) <= 5 for window in found)
    sums = [numbered.nodes[nodes_of(window)[-1]].op_type for window in found]
    assert sums[1:] == ["Add"] * len(sums[1:])  # the only places that one value passes


def test_what_is_found_for_a_window_is_put_everywhere() -> None:
    planner = planner_of(repeated(), "v100")
    pricer = pricer_of(planner, Numbered(planner.graph))
    plan = WindowedPlan(pricer, [one_by_one(pricer)])
    before, judged = plan.cost, list[tuple[Content, ...]]()
    meter = Budget(UNLIMITED).start()
    Joiner(plan, meter, lambda contents: judged.append(tuple(contents)), judge_s=0.0).run()
    assert judged[-1] == plan.contents
    assert plan.cost < before / 3  # launches alone
    assert abs(sum(map(pricer.cost, plan.contents)) - plan.cost) <= 1e-9 * before
    problem = planner.backend.partition_problem
    found = assembled(problem, plan.contents, pricer.numbered.nodes.__getitem__)
    assert not check_partition(problem, found.partition)


def test_windows_that_are_alike_are_searched_once() -> None:
    planner = planner_of(repeated(), "v100")
    pricer = pricer_of(planner, Numbered(planner.graph))
    plan = WindowedPlan(pricer, [one_by_one(pricer)])
    asked: list[int] = []

    def unchanged(part: LaunchedPricer, given: Sequence[Content]) -> Sequence[Content]:
        asked.append(len(given))
        return given

    meter = Budget(UNLIMITED).start()
    for first in (MOST_BLOCKS, MOST_BLOCKS):
        assert not list(plan.sweep(unchanged, meter, first=first))
    assert len(plan.windows) == 5
    assert len(asked) == 3  # the first, the last, all between
    assert sum(map(len, plan.windows)) == len(plan.contents)


def test_kernels_that_join_keep_their_lanes() -> None:
    planner = planner_of(repeated(), "v100")
    pricer = pricer_of(planner, Numbered(planner.graph))
    moves = Moves(pricer, 2)
    layers = [content.mask for content in one_by_one(pricer)]
    blocks = [moves.fused(sum(layers[start : start + 4])) for start in (0, 4)]
    found = (moves.laned(block, Budget(UNLIMITED).start()) for block in blocks)
    laned = [content for content in found if content is not None]
    assert len(laned) == len(blocks)
    (joined,) = in_sequence(laned)
    lanes = [lane for _, sections in joined.stages[0].groups[0].sections() for s in sections for lane in s]
    assert sorted(i for lane in lanes for i in lane.layers)[-1] >= 4
    assert len(joined.kernels[0].layers) == 8
    assert pricer.cost(joined) < sum(map(pricer.cost, laned))
    assert pricer.cost(joined) < pricer.cost(moves.fused(joined.mask))
    assert joined in moves.joined(laned)
    assert moves.laned(joined, Budget(UNLIMITED).start()) is None
