"""What a layer takes of a unit at least, against what boxes that cover it take, drawn at random."""

from __future__ import annotations

import random

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.hardware.element_types import element_types
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Node
from tilewright.ir.region import Region, full_region
from tilewright.targets.npu import work
from tilewright.targets.npu.kernels import distribution_of
from tilewright.targets.npu.work import Works


def layer(rng: random.Random) -> Graph:
    """A convolution or a matrix product with small extents."""
    b = GraphBuilder()
    if rng.random() < 0.3:
        rows, depth, columns = (rng.choice((1, 5, 40, 130, 200)) for _ in range(3))
        operands = b.input(rows, depth), b.constant(depth, columns)
        return b.finish(b.op("MatMul", *operands, shape=(rows, columns)))
    channels, filters = rng.choice((3, 16, 40, 96)), rng.choice((8, 24, 64, 160))
    side, window = rng.choice((7, 13, 28)), rng.choice((1, 3))
    groups = channels if rng.random() < 0.2 and window == 3 else 1
    filters = channels if groups > 1 else filters
    weights = b.constant(filters, channels // groups, window, window)
    pads = (window // 2,) * 4
    x = b.input(1, channels, side, side)
    return b.finish(b.op("Conv", x, weights, shape=(1, filters, side, side), pads=pads, group=groups))


def boxes(region: Region, rng: random.Random) -> list[Region]:
    """A region cut in two again and again, a few times."""
    long = [axis for axis, (start, stop) in enumerate(region) if stop - start > 1]
    if not long or rng.random() < 0.3:
        return [region]
    axis = rng.choice(long)
    start, stop = region[axis]
    middle = rng.randint(start + 1, stop - 1)
    parts = [(start, middle), (middle, stop)]
    return [box for part in parts for box in boxes((*region[:axis], part, *region[axis + 1 :]), rng)][:99]


def unit_seconds(works: Works, node: Node, box: Region, rng: random.Random) -> float:
    """What a box takes of the unit that multiplies on some cores, as all cores' work."""
    num_cores = works.machine.num_cores_per_cluster
    spread = distribution_of(works, node, box, rng.randint(1, num_cores))
    work = works.of(node, box, spread.binding, spread.blocks)[0]
    return work.seconds * spread.num_cores / num_cores


def test_what_is_remembered_of_a_layer_is_what_another_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_MOST_LEAST", 5)
    rng, machine = random.Random(0), load_preset("a310")
    types = element_types(machine)
    remembering = Works(machine, types)
    for _ in range(5):
        (node,) = layer(rng).nodes
        for box in (*boxes(full_region(node.output.shape), rng)[:4], full_region(node.output.shape)):
            for in_blocks in (False, True, False):
                found = remembering.at_least(node, box, in_blocks=in_blocks)
                assert found == Works(machine, types).at_least(node, box, in_blocks=in_blocks)
                assert len(remembering._least) <= 5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine_name", ["ipu-mk2", "stcp920", "a310", "ipu-mk1", "v100", "k80"])
@pytest.mark.parametrize("seed", range(8))
def test_no_boxes_take_less_than_a_layer_at_least(machine_name: str, seed: int) -> None:
    rng = random.Random(seed)
    machine = load_preset(machine_name)
    works = Works(machine, element_types(machine), "rule" if seed % 4 else "search")
    is_launched = machine.launches == "each subgraph"
    for _ in range(4):
        graph = layer(rng)
        (node,) = graph.nodes
        region = full_region(node.output.shape)
        least = works.at_least(node, region, in_blocks=is_launched)[0].seconds
        for _ in range(3):
            cover = boxes(region, rng)[:12]
            if len(cover) < 12:
                assert least <= sum(unit_seconds(works, node, box, rng) for box in cover) * (1 + 1e-9)


def test_cores_buffers_limit_how_busy_units_are() -> None:
    """16 multipliers that read 24.3 bytes a cycle: in squares of 4 by 4 they need 8 words of 4 bytes."""
    b = GraphBuilder()
    graph = b.finish(b.op("MatMul", b.input(64, 64), b.constant(64, 64), shape=(64, 64)))
    machine = load_preset("ipu-mk2")
    works = Works(machine, element_types(machine))
    assert works.busy_share(graph.nodes[0]) == pytest.approx(32.3e9 / 1.33e9 / 32, rel=1e-6)


def test_a_row_fills_a_part_of_a_block_of_threads() -> None:
    """Blocks have 32 rows or columns at least, and 128 of the other."""
    b = GraphBuilder()
    graph = b.finish(b.op("MatMul", b.input(1, 64), b.constant(64, 256), shape=(1, 256)))
    (node,) = graph.nodes
    works = Works(load_preset("v100"), element_types(load_preset("v100")))
    apart, blocks = (
        works.at_least(node, full_region((1, 256)), in_blocks=in_blocks)[0].seconds
        for in_blocks in (False, True)
    )
    assert blocks == pytest.approx(32 * apart)
