"""What elements need of a source at least, and results of all values, against regions of single elements; how
many elements wait, against all."""

from __future__ import annotations

import random
import tracemalloc
from itertools import product

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Graph, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.missing import Lines, Waiting, least_product
from tilewright.ir.receptive import Field, needed_elements, num_elements, receptive_fields
from tilewright.ir.region import full_region


def network(seed: int) -> Graph:
    """Convolutions with and without padding, strides, gaps and groups, pools, joined and cut channels that
    change places, sums, and at times a layer that needs all of an image."""
    rng = random.Random(seed)
    b = GraphBuilder()
    side, channels = rng.choice((5, 6, 7)), 4
    x = b.input(rng.choice((1, 2)), channels, side, rng.choice((4, 6)))
    for _ in range(rng.randint(1, 5)):
        kind = rng.choice(("conv", "conv", "pool", "split", "shuffle", "add", "gate", "rows"))
        n, c, h, w = x.shape
        if kind == "conv" and min(h, w) >= 3:
            stride, pad, groups = rng.choice((1, 2)), rng.choice((0, 1)), rng.choice((1, 2, c))
            shape = (n, c, *((e + 2 * pad - 3) // stride + 1 for e in (h, w)))
            weights = b.constant(c, c // groups, 3, 3)
            pads = (pad,) * 4
            x = b.op("Conv", x, weights, shape=shape, strides=(stride, stride), pads=pads, group=groups)
        elif kind == "pool" and min(h, w) >= 2:
            x = b.op("MaxPool", x, shape=(n, c, h // 2, w // 2), kernel_shape=(2, 2), strides=(2, 2))
        elif kind == "split":
            left = b.op("Slice", x, *map(b.integers, (0, c // 2, 1)), shape=(n, c // 2, h, w))
            right = b.op("Slice", x, *map(b.integers, (c // 2, c, 1)), shape=(n, c // 2, h, w))
            x = b.op("Concat", b.op("Relu", right), left, shape=(n, c, h, w), axis=1)
        elif kind == "shuffle":
            shape = (n, 2, c // 2, h, w)
            turned = b.op(
                "Transpose", reshaped(b, x, shape), shape=(n, c // 2, 2, h, w), perm=(0, 2, 1, 3, 4)
            )
            x = reshaped(b, turned, (n, c, h, w))
        elif kind == "add":
            x = b.op("Add", x, b.op("Relu", x))
        elif kind == "rows":
            x = b.op("Slice", x, *map(b.integers, (0, h, 2, 3)), shape=(n, c, -(-h // 3), w))
        elif kind == "gate":
            x = b.op("Mul", x, b.op("GlobalAveragePool", x, shape=(n, c, 1, 1)))
    return b.finish(x)


def reshaped(b: GraphBuilder, x: Value, shape: tuple[int, ...]) -> Value:
    return b.op("Reshape", x, b.integers(*shape), shape=shape)


def needs(graph: Graph, maps: RegionMaps) -> dict[Value, np.ndarray]:
    """Of each element of each value, the elements of the input that it needs: all that its operands' regions
    hold, element by element."""
    (source,) = graph.inputs
    size = source.num_elements
    found = {source: np.eye(size, dtype=bool).reshape(*source.shape, size)}
    for node in graph.nodes:
        own = found[node.output] = np.zeros((*node.output.shape, size), bool)
        for place in np.ndindex(*node.output.shape):
            regions = maps.inputs_of(node, 0, tuple((i, i + 1) for i in place))
            for operand, region in zip(node.inputs, regions, strict=True):
                if operand in found and region is not None:
                    part = found[operand][tuple(slice(*interval) for interval in region)]
                    own[place] |= part.reshape(-1, size).any(0)
    return found


def field_of(field: Field, place: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """What a field says that an element needs."""
    own = [s[0 if a is None else place[a]] for a, s in zip(field.axes, field.sets, strict=True)]
    found = np.ones((), bool)
    for inside in own:
        found = np.multiply.outer(found, inside)
    assert found.shape == shape
    return found.ravel()


@pytest.mark.sampled(4)
def test_elements_of_a_long_axis_are_no_matrix_of_all_pairs() -> None:
    """Samples, heads and positions may be one axis, of which a square takes gigabytes and half a minute."""
    b = GraphBuilder()
    x, shape = b.input(8), (30_008,)
    joined = b.op("Concat", x, b.constant(30_000), shape=shape, axis=0)
    graph = b.finish(b.op("Relu", joined, shape=shape))
    tracemalloc.start()
    try:
        fields = receptive_fields(graph, x)[graph.outputs[0]]
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (field,) = fields
    assert np.array_equal(np.flatnonzero(field.part[0]), range(8))
    assert np.array_equal(field.sets[0][:8], np.eye(8, dtype=bool))
    assert most_bytes < 2**26


@pytest.mark.parametrize("seed", range(60))
def test_elements_need_all_of_their_fields(seed: int) -> None:
    graph = network(seed)
    (source,) = graph.inputs
    exact = needs(graph, RegionMaps())
    fields = receptive_fields(graph, source)
    assert set(fields) == {value for value, own in exact.items() if own.any()}
    for value, found in fields.items():
        for field in found:
            for place in product(*(np.nonzero(inside)[0].tolist() for inside in field.part)):
                said = field_of(field, place, source.shape)
                assert (exact[value][place] | ~said).all()
            all_of = exact[value].reshape(-1, source.num_elements).any(0)
            whole = np.ones((), bool)
            for inside in field.all_of:
                whole = np.multiply.outer(whole, inside)
            assert (all_of | ~whole.ravel()).all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(60))
def test_results_need_all_of_what_is_said(seed: int) -> None:
    graph, maps = network(seed), RegionMaps()
    (result,) = graph.outputs
    exact = {result: np.ones(result.shape, bool)}
    for node in reversed(graph.nodes):
        for place in np.argwhere(exact[node.output]).tolist():
            regions = maps.inputs_of(node, 0, tuple((i, i + 1) for i in place))
            for operand, region in zip(node.inputs, regions, strict=True):
                if operand is not None and region is not None:
                    own = exact.setdefault(operand, np.zeros(operand.shape, bool))
                    own[tuple(slice(*interval) for interval in region)] = True
    found = needed_elements(graph.nodes, {result: full_region(result.shape)})
    for value, part in found.items():
        assert exact[value][np.ix_(*part)].all()
    for value in (*graph.inputs, *(v for node in graph.nodes for v in node.results())):
        assert 2 * num_elements(found[value]) >= exact[value].sum()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(60))
def test_at_least_so_many_elements_wait_for_whatever_is_missing(seed: int) -> None:
    graph, rng = network(seed), np.random.default_rng(seed)
    (source,) = graph.inputs
    exact, lines = needs(graph, RegionMaps()), Lines()
    needed = tuple(np.ones(extent, bool) for extent in source.shape)
    waiting = {
        value: [Waiting(field, needed, lines) for field in found]
        for value, found in receptive_fields(graph, source).items()
    }
    grid = np.indices(source.shape).reshape(len(source.shape), -1)
    for _ in range(12):
        # Boxes at the border, and what is left of them where some are taken away, keep least waiting.
        box = [int(rng.integers(1, extent + 1)) for extent in source.shape]
        missing = (grid < np.array(box)[:, None]).all(0) & (
            rng.random(grid.shape[1]) < rng.choice((1.0, 0.9))
        )
        for value, own in exact.items():
            count = int((own @ missing).sum())
            for part in waiting.get(value, ()):
                assert part.least(int(missing.sum())) <= count


def test_elements_in_the_middle_of_an_image_are_needed_by_most() -> None:
    """A corner of one element is needed by a quarter of what a window of nine by nine needs."""
    b = GraphBuilder()
    x = b.input(1, 1, 16, 16)
    y = x
    for _ in range(4):
        y = b.op("Conv", y, b.constant(1, 1, 3, 3), shape=y.shape, pads=(1,) * 4)
    graph = b.finish(y)
    (field,) = receptive_fields(graph, x)[y]
    waiting = Waiting(field, tuple(np.ones(extent, bool) for extent in x.shape), Lines())
    least = [waiting.least(count) for count in (1, 4, 256)]
    assert least[::2] == [25, 256]
    assert 25 < least[1] <= 36


@pytest.mark.parametrize(("stride", "kernel", "pad"), [(1, 3, 1), (2, 3, 0), (2, 7, 3), (3, 2, 1)])
def test_tiles_need_no_more_than_has_come_when_they_begin(stride: int, kernel: int, pad: int) -> None:
    """Of any slice of rows, in any number of tiles, a tile waits for that part of what it all reads."""
    b = GraphBuilder()
    x = b.input(1, 1, 19, 4)
    shape = (1, 1, (19 + 2 * pad - kernel) // stride + 1, 4)
    weights = b.constant(1, 1, kernel, 1)
    pads = (pad, 0, pad, 0)
    y = b.op("Conv", x, weights, shape=shape, strides=(stride, 1), pads=pads, kernel_shape=(kernel, 1))
    graph = b.finish(y)
    ((field,), maps) = receptive_fields(graph, x, in_parts=True)[y], RegionMaps()
    assert field.sets[2].any()
    assert y.producer is not None
    for begin, end in product(range(shape[2]), range(1, shape[2] + 1)):
        for num_tiles in range(1, end - begin + 1):
            (read, *_) = maps.inputs_of(y.producer, 0, ((0, 1), (0, 1), (begin, end), (0, 4)))
            assert read is not None
            first, last = read[2]
            for tile in range(num_tiles):
                start, stop = (begin + (end - begin) * t // num_tiles for t in (tile, tile + 1))
                come = first + (last - first) * (tile + 1) // num_tiles
                for row in range(start, stop):
                    assert not field.sets[2][row, come:].any()


@pytest.mark.parametrize("seed", range(20))
def test_no_product_of_lines_is_below_the_least(seed: int) -> None:
    rng = random.Random(seed)
    lines = [
        ((float(rng.randint(0, 3)), rng.choice((0.0, 0.5, 1.0))), rng.randint(1, 6))
        for _ in range(rng.randint(1, 4))
    ]
    for size in product(*(range(1, extent + 1) for _, extent in lines)):
        volume = np.prod(size)
        value = np.prod([a + b * m for ((a, b), _), m in zip(lines, size, strict=True)])
        assert least_product(lines, float(volume)) <= value * (1 + 1e-9)
