"""Joint tilings of chains: counts equal a walk over every step, and no tiling moves less than the best."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.graphs import GraphBuilder
from tests.support.walked_chains import check_elements

from tilewright.ir.graph import Value
from tilewright.mapping.chains.chain import CannotFuse, Chain, chain_of
from tilewright.mapping.chains.check import check_plan, tiling_fault
from tilewright.mapping.chains.plan import (
    STREAMED,
    ChainPlan,
    Tiling,
    check_countable,
    compulsory_words,
    count_plan,
    least_macs,
)
from tilewright.mapping.chains.search import ChainLimits, rank_plans


def conv(build: GraphBuilder, x: Value, channels: int, window: int, stride: int = 1, group: int = 1) -> Value:
    rows, columns = ((extent + 2 * (window // 2) - window) // stride + 1 for extent in x.shape[2:])
    return build.op(
        "Conv",
        x,
        build.constant(channels, x.shape[1] // group, window, window),
        shape=(1, channels, rows, columns),
        pads=(window // 2,) * 4,
        strides=(stride, stride),
        group=group,
    )


@st.composite
def chains(draw: st.DrawFn, most: int = 5) -> Chain:
    """Two or three convolutions, also depthwise and strided, with and without what is added to the result."""
    build = GraphBuilder()
    x = build.input(1, draw(st.integers(1, 2)), draw(st.integers(2, most)), draw(st.integers(1, 3)))
    y = conv(build, x, draw(st.integers(1, 2)), draw(st.sampled_from([1, 3])))
    if draw(st.booleans()):
        y = build.op("Relu", y)
    if draw(st.booleans()):
        y = conv(build, y, y.shape[1], 3, draw(st.integers(1, 2)), y.shape[1])
    y = conv(build, y, draw(st.integers(1, 2)), draw(st.sampled_from([1, 3])))
    if y.shape == x.shape and draw(st.booleans()):
        y = build.op("Add", y, x)
    elif draw(st.booleans()):
        y = build.op("Add", y, build.input(*y.shape))
    return chain_of(build.finish(y).nodes)


def depths_of(chain: Chain, num_loops: int) -> list[range]:
    """The depths that each part may have."""
    listed = []
    for part in chain.parts:
        if part.kind == "result":
            listed.append(range(1))
        elif not part.is_held:
            listed.append(range(num_loops, num_loops + 1))
        else:
            listed.append(range(STREAMED if part.may_stream else 0, num_loops + 1))
    return listed


def all_tilings(chain: Chain) -> Iterator[Tiling]:
    """All tiles of all loops, in all orders of those that step."""
    for tiles in product(*(range(1, loop.extent + 1) for loop in chain.loops)):
        stepping = [i for i, loop in enumerate(chain.loops) if tiles[i] < loop.extent]
        for order in permutations(stepping):
            yield Tiling(order, tuple(tiles[i] for i in order))


def plans(chain: Chain) -> Iterator[ChainPlan]:
    for tiling in all_tilings(chain):
        for depths in product(*depths_of(chain, len(tiling.order))):
            yield ChainPlan(tiling, depths)


@given(chain=chains(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_a_plan_says_it_moves_computes_and_holds_is_what_a_walk_over_its_steps_counts(
    chain: Chain, data: st.DataObject
) -> None:
    tiles = [data.draw(st.integers(1, loop.extent)) for loop in chain.loops]
    stepping = [i for i, loop in enumerate(chain.loops) if tiles[i] < loop.extent]
    order = tuple(data.draw(st.permutations(stepping)))
    tiling = Tiling(order, tuple(tiles[i] for i in order))
    depths = tuple(data.draw(st.sampled_from(choice)) for choice in depths_of(chain, len(order)))
    plan = ChainPlan(tiling, depths)
    count = count_plan(chain, plan)
    assert not check_elements(chain, plan, count, count.held_words)
    assert not check_plan(chain, plan, count, count.held_words)
    # Of a value that several operators read a plan may say more than a walk counts, but never nothing.
    is_exact = all(len(part.readers) < 2 for part in chain.parts)
    for name in ("read_words", "written_words", "num_macs"):
        wrong = replace(count, **{name: getattr(count, name) - 1 if is_exact else 0})
        found = check_plan(chain, plan, wrong, count.held_words)
        assert found == check_elements(chain, plan, wrong, count.held_words)
        assert len(found) == 1
    nothing_held = replace(count, held_by_part=(0,) * len(count.held_by_part))
    found = check_plan(chain, plan, nothing_held, count.held_words)
    assert found == check_elements(chain, plan, nothing_held, count.held_words)
    assert count.moved_words >= compulsory_words(chain)
    assert count.num_macs >= least_macs(chain)


def joined_chain() -> Chain:
    """A convolution of stride 2, one in groups, what is added to their result, a view between."""
    build = GraphBuilder()
    x = build.input(1, 2, 4, 2)
    y = conv(build, build.op("Relu", conv(build, x, 2, 3)), 2, 3, 2, 2)
    return chain_of(build.finish(build.op("Add", y, build.input(*y.shape))).nodes)


@pytest.mark.parametrize("number", range(3))
def test_the_walk_differs_by_one_from_what_is_said_of_one_word_more_or_less(number: int) -> None:
    chain = (small_chain(1), small_chain(3), joined_chain())[number]
    listed = list(plans(chain))
    for plan in listed[:: max(len(listed) // 12, 1)]:
        count = count_plan(chain, plan)
        assert check_plan(chain, plan, count, count.held_words) == ()
        for by in (1, -1):
            wrong = replace(
                count,
                read_words=count.read_words + by,
                written_words=count.written_words - by,
                num_macs=count.num_macs + by,
                held_by_part=tuple(max(words - 1, 0) for words in count.held_by_part),
            )
            rules = [violation.rule for violation in check_plan(chain, plan, wrong, wrong.held_words - 1)]
            held = ["held"] * sum(words > 0 for words in count.held_by_part)
            assert rules == [*held, "read", "written", "macs", "capacity"]


def small_chain(second_window: int, columns: int = 1) -> Chain:
    build = GraphBuilder()
    x = build.input(1, 1, 3, columns)
    return chain_of(build.finish(conv(build, conv(build, x, 2, 3), 1, second_window)).nodes)


@pytest.mark.parametrize("second_window", [1, 3])
@pytest.mark.parametrize("columns", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_joint_tiling_there_is_moves_less_than_the_best(second_window: int, columns: int) -> None:
    check_best(small_chain(second_window, columns))


@pytest.mark.slow
@given(chain=chains(most=3))
@settings(max_examples=100, deadline=None)
def test_no_joint_tiling_of_random_chains_moves_less_than_the_best(chain: Chain) -> None:
    assume(len(chain.loops) < 3)
    check_best(chain)


def check_best(chain: Chain) -> None:
    """The answers under several limits are the best of all plans, and pass the check."""
    counts = {
        (count.moved_words, count.num_macs, count.held_words)
        for count in (count_plan(chain, plan) for plan in plans(chain))
    }
    for capacity_words, recomputed in product((8, 12, 16, 24, 60), (0.0, 0.2, 1.0)):
        limits = ChainLimits(capacity_words, recomputed=recomputed)
        most_macs = int(least_macs(chain) * (1 + recomputed))
        keys = [(moved, macs) for moved, macs, held in counts if held <= capacity_words and macs <= most_macs]
        ranking = rank_plans(chain, limits, deadline_s=60)
        assert ranking.is_whole
        if not ranking.plans:
            assert not keys
            continue
        (best,) = ranking.plans
        assert not check_plan(chain, best.plan, best.count, capacity_words)
        assert compulsory_words(chain) <= ranking.bound == best.value == best.count.moved_words
        assert (best.count.moved_words, best.count.num_macs) == min(keys)


def test_rows_that_are_retained_are_not_computed_again() -> None:
    chain = small_chain(3)
    (rows,) = (i for i, loop in enumerate(chain.loops) if loop.name == "oh")
    tiling = Tiling((rows,), (1,))

    def counted(depth: int) -> int:
        depths = (0, *(depth if part.kind == "intermediate" else 0 for part in chain.parts[1:]))
        return count_plan(chain, ChainPlan(tiling, depths)).computed_words

    # Of three rows the first and last step need two, the one between all.
    assert (counted(0), counted(1)) == (6, 14)


def leaving_chain() -> Chain:
    """A value that a convolution inside needs, and what comes later, too."""
    build = GraphBuilder()
    inner = conv(build, build.input(1, 1, 3, 1), 2, 3)
    return chain_of(build.finish(conv(build, inner, 1, 3), inner).nodes, frozenset([inner]))


def test_a_value_that_leaves_is_written_once_and_no_tiling_moves_less_than_the_best() -> None:
    chain = leaving_chain()
    (inner,) = (part for part in chain.parts if part.leaves and part.kind == "intermediate")
    assert chain.written_words == chain.parts[0].num_words + inner.num_words
    counts = set()
    for number, plan in enumerate(plans(chain)):
        count = count_plan(chain, plan)
        if number % 9 == 0:
            assert not check_plan(chain, plan, count, count.held_words)
        if tiling_fault(chain, plan):
            assert count.written_words > chain.written_words
            continue
        assert count.written_words == chain.written_words
        counts.add((count.moved_words, count.num_macs, count.held_words))
    for capacity_words in (8, 16, 60):
        limits = ChainLimits(capacity_words)
        most = 2 * least_macs(chain)
        keys = [(moved, macs) for moved, macs, held in counts if held <= capacity_words and macs <= most]
        ranking = rank_plans(chain, limits, deadline_s=60)
        if not ranking.plans:
            assert not keys
            continue
        (best,) = ranking.plans
        assert (best.count.moved_words, best.count.num_macs) == min(keys)
        assert not check_plan(chain, best.plan, best.count, capacity_words)


def test_what_leaves_is_made_whole() -> None:
    build = GraphBuilder()
    inner = conv(build, build.input(1, 1, 4, 4), 2, 1)
    nodes = build.finish(conv(build, inner, 1, 1, 2), inner).nodes
    with pytest.raises(CannotFuse, match="only a part of it"):
        check_countable(chain_of(nodes, frozenset([inner])))


def test_the_result_of_the_last_sum_ends_a_chain_where_it_leaves() -> None:
    build = GraphBuilder()
    last = conv(build, build.input(1, 1, 3, 2), 1, 1)
    nodes = build.finish(build.op("Relu", last), last).nodes
    with pytest.raises(CannotFuse, match="is used outside the chain"):
        chain_of(nodes, frozenset([last]))
