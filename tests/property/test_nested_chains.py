"""Nested tilings: what they say is what a walk over their steps counts, and no other one moves less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations, product
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.property.test_chains import conv
from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Value
from tilewright.mapping.chains.chain import CannotFuse
from tilewright.mapping.chains.check_nested import check_tree
from tilewright.mapping.chains.nested import NestedCount, StraightRun, Tree, straight_run
from tilewright.mapping.chains.nested_search import best_tree


def products(num: int, rows: int, *columns: int) -> StraightRun:
    """So many products; `columns` are those of the input and of each product, or the same of all."""
    build = GraphBuilder()
    widths = columns if len(columns) > 1 else columns * (num + 1)
    x = build.input(rows, widths[0])
    for before, after in pairwise(widths):
        x = build.op("MatMul", x, build.constant(before, after), shape=(rows, after))
    return straight_run(build.finish(x).nodes)


def unpadded(build: GraphBuilder, x: Value, channels: int, window: int) -> Value:
    shape = (1, channels, *(extent - window + 1 for extent in x.shape[2:]))
    weight = build.constant(channels, x.shape[1], window, window)
    return build.op("Conv", x, weight, shape=shape, pads=(0,) * 4, strides=(1, 1), group=1)


@st.composite
def runs(draw: st.DrawFn) -> StraightRun:
    """One to four products, or up to three convolutions, also depthwise, strided and padded."""
    if draw(st.booleans()):
        widths = draw(st.lists(st.integers(1, 7), min_size=2, max_size=5))
        return products(len(widths) - 1, draw(st.integers(1, 7)), *widths)
    build = GraphBuilder()
    x = build.input(1, draw(st.integers(1, 3)), draw(st.integers(2, 6)), draw(st.integers(1, 5)))
    for _ in range(draw(st.integers(1, 3))):
        group = x.shape[1] if draw(st.booleans()) else 1
        channels = x.shape[1] if group > 1 else draw(st.integers(1, 3))
        x = conv(build, x, channels, draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 1, 2])), group)
        if draw(st.booleans()):
            x = build.op("Relu", x)
    try:
        return straight_run(build.finish(x).nodes)
    except CannotFuse:
        assume(False)
        raise


@given(run=runs(), capacity_words=st.sampled_from([4, 7, 12, 20, 40, 90]))
@settings(max_examples=6, deadline=None)
def test_the_best_tree_moves_and_holds_what_a_walk_counts(run: StraightRun, capacity_words: int) -> None:
    found = best_tree(run, capacity_words, 60)
    if found.tree is None or found.count is None:
        return
    assert not check_tree(run, found.tree, found.count, capacity_words)
    wrong = NestedCount(found.count.moved_words - 1, found.count.held_words)
    assert [v.rule for v in check_tree(run, found.tree, wrong, found.count.held_words - 1)] == [
        "moved",
        "capacity",
    ]


@pytest.mark.parametrize("capacity_words", [5, 9, 14])
def test_a_larger_tile_than_is_held_or_an_operand_that_nobody_fetches_is_found(capacity_words: int) -> None:
    run = products(2, 4, 3)
    found = best_tree(run, capacity_words, 60)
    assert found.tree is not None
    assert found.count is not None
    whole = replace(found.tree, loops=())
    shapes = tuple(
        (tuple(d.extent for o in run.operators for d in o.nest.dims), trees) for _, trees in whole.steps[:1]
    )
    rules = {v.rule for v in check_tree(run, replace(whole, steps=shapes), found.count, capacity_words)}
    assert "held" in rules
    rules = {v.rule for v in check_tree(run, replace(whole, steps=()), found.count, capacity_words)}
    assert {"missing", "macs"} <= rules
    steps = tuple(
        (shape, tuple(replace(t, streamed=None) for t in trees)) for shape, trees in found.tree.steps
    )
    rules = {v.rule for v in check_tree(run, replace(found.tree, steps=steps), found.count, capacity_words)}
    assert "missing" in rules


ACCELFORGE = [
    (2, 64, 64, {1024: 53248, 2048: 36864, 4096: 24576, 8192: 16384}),
    (2, 48, 100, {3000: 44000}),
    pytest.param(3, 64, 64, {8192: 24576}, marks=pytest.mark.slow),
]
"""Of products, rows, columns and buffers the least bytes by AccelForge 1.0.467: `benchmarks chains`."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("num", "rows", "columns", "least"), ACCELFORGE)
def test_chains_of_products_move_no_more_than_by_accelforge(
    num: int, rows: int, columns: int, least: dict[int, int]
) -> None:
    run = products(num, rows, columns)
    for capacity_words, words in least.items():
        count = best_tree(run, capacity_words, 60).count
        assert count is not None
        assert count.moved_words <= words


def leaves(run: StraightRun) -> Iterator[Tree]:
    """All loops of a single operator in all orders, with all that may stay and stream."""
    names = run.operands(0, 0)
    dims = [dim for dim in run.operators[0].nest.dims if dim.extent > 1]
    for tiles in product(*(range(1, dim.extent + 1) for dim in dims)):
        tiled = [(dim.name, tile) for dim, tile in zip(dims, tiles, strict=True) if tile < dim.extent]
        for loops in permutations(tiled):
            for streamed in names:
                rest = [name for name in names if name != streamed]
                for depths in product(range(len(loops) + 1), repeat=len(rest)):
                    yield Tree(0, 0, loops, tuple(zip(rest, depths, strict=True)), streamed)


@pytest.mark.slow
@pytest.mark.parametrize("run", [products(1, 3, 2, 3), products(1, 2, 4, 2)])
def test_no_loops_of_one_product_move_less_than_the_best(run: StraightRun) -> None:
    seen: dict[int, int] = {}
    for leaf in leaves(run):
        told = [str(v) for v in check_tree(run, leaf, NestedCount(0, 0), 0)]
        moved = int(next(t for t in told if t.startswith("moved")).split()[1])
        held = int(next(t for t in told if t.startswith("held")).split()[1])
        seen[held] = min(seen.get(held, moved), moved)
    for capacity_words in range(3, 12):
        least = min((moved for held, moved in seen.items() if held <= capacity_words), default=inf)
        count = best_tree(run, capacity_words, 60).count
        assert count is not None
        assert count.moved_words == least


def test_no_nested_tiling_has_a_value_that_leaves_before_an_operator_element_by_element() -> None:
    build = GraphBuilder()
    x = conv(build, build.input(1, 2, 2, 2), 2, 1)
    nodes = build.finish(conv(build, build.op("Relu", x), 2, 1)).nodes
    assert len(straight_run(nodes).operators) == 2
    with pytest.raises(CannotFuse, match="leaves"):
        straight_run(nodes, frozenset([x]))


def test_convolutions_without_padding_keep_rows_between_tiles() -> None:
    build = GraphBuilder()
    run = straight_run(
        build.finish(unpadded(build, unpadded(build, build.input(1, 4, 10, 10), 8, 3), 4, 3)).nodes
    )
    found = best_tree(run, 256, 60)
    assert found.tree is not None
    assert found.count is not None
    assert found.count.moved_words <= 2704  # AccelForge 1.0.467
    assert not check_tree(run, found.tree, found.count, 256)
