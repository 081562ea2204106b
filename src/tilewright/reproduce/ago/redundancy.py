"""Figures 6, 7 and 9: what fusion computes again, counted, and which subgraphs would wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from onnx import ModelProto

from tilewright.frontend.onnx import load_onnx
from tilewright.ir.graph import Node
from tilewright.ir.region import Region, full_region, input_regions, volume
from tilewright.options import Options
from tilewright.partition.quotient import QuotientGraph
from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.ago.partitions import partition_of
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.zoo.builder import Builder

_CHANNELS, _SIDE, _WINDOW = 32, 32, 3
_VECTOR = 16
"""Pixels of a tile of figure 5's program."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A downstream convolution, and the extents of the tiles of its result: channels, rows, columns."""

    name: str
    window: int
    groups: int
    tile: tuple[int, int, int]


_CASES = (
    _Case("convolution, tiles of figure 5", _WINDOW, 1, (1, 1, _VECTOR)),
    _Case("convolution, all channels in a tile", _WINDOW, 1, (_CHANNELS, 1, _VECTOR)),
    _Case("convolution, not tiled", _WINDOW, 1, (_CHANNELS, _SIDE, _SIDE)),
    _Case("depthwise, tiles of rows", _WINDOW, _CHANNELS, (_CHANNELS, 1, _SIDE)),
    _Case("depthwise, tiles of channels (figure 7a)", _WINDOW, _CHANNELS, (4, _SIDE, _SIDE)),
    _Case("pointwise, tiles of channels", 1, 1, (4, _SIDE, _SIDE)),
    _Case("pointwise, tiles of pixels (figure 7b)", 1, 1, (_CHANNELS, 1, _VECTOR)),
)


def figures_6_and_7() -> Exhibit:
    """Elements of the upstream result that tiles of the downstream one compute, over those there are."""
    rows, figures, times = [], [], []
    for case in _CASES:
        node = _downstream(case)
        computed = sum(volume(region) for region in _read_regions(node, case.tile))
        read = node.inputs[0]
        assert read is not None
        once = volume(full_region(read.shape))
        times.append(computed / once)
        figures.append(Figure(f"{case.name}: computed over once", times[-1], _papers(case, once)))
        tile = "x".join(map(str, case.tile))
        rows.append((case.name, tile, f"{computed:,}", f"{once:,}", f"{times[-1]:.2f}"))
    return Exhibit(
        "Figures 6 and 7",
        "elements of an upstream convolution that are computed again for tiles of the downstream one",
        f"Counted from the loop nests: what each tile of {_SIDE} x {_SIDE} pixels in {_CHANNELS} channels "
        "reads. For the tiles of figure 5 the paper gives a formula, and says that nothing is computed again "
        "where the dims that are reused lie in one tile: rows and columns of a depthwise convolution, "
        "channels of a pointwise one. It holds for both.",
        tuple(figures),
        bar_chart("", "times computed", [case.name for case in _CASES], [Bars("times", tuple(times))]),
        ("downstream", "tile", "elements computed", "elements", "times"),
        tuple(rows),
        basis=Basis.COUNTED,
    )


def _papers(case: _Case, once: int) -> float | None:
    """The formula of section III-B, or 1 where the paper says that nothing is computed again."""
    if case is _CASES[0]:
        tiles = _CHANNELS * _SIDE * _SIDE // _VECTOR
        return tiles * _CHANNELS * _WINDOW * (_VECTOR - 1 + _WINDOW) / once
    return 1.0 if "figure 7" in case.name else None


def _downstream(case: _Case) -> Node:
    b = Builder("downstream", seed=0)
    side = _SIDE + case.window - 1
    x = b.input("x", (1, _CHANNELS, side, side))
    b.output(b.conv(x, _CHANNELS, case.window, groups=case.groups), "y")
    (node,) = load_onnx(b.finish()).nodes
    return node


def _read_regions(node: Node, tile: Sequence[int]) -> Iterator[Region]:
    """What of the first input each tile of the result needs."""
    (result,) = node.results()
    _, *extents = result.shape
    counts = [range(0, extent, step) for extent, step in zip(extents, tile, strict=True)]
    for starts in product(*counts):
        part = tuple((start, start + step) for start, step in zip(starts, tile, strict=True))
        region = input_regions(node, ((0, 1), *part))[0]
        if region is not None:
            yield region


def figure_9() -> Exhibit:
    """Three convolutions of which the first and the last cannot be a subgraph without the one between."""
    graph = load_onnx(_branch())
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    edges = [(numbers[v.producer], numbers[n]) for n in graph.nodes for v in n.inputs if v and v.producer]
    quotient = QuotientGraph(len(numbers), edges)
    relu, add = (numbers[n] for n in graph.nodes if n.name in ("relu1", "add"))
    subgraphs = {name: len(partition_of(graph, name, Options()).subgraphs) for name in ("layerwise", "ago")}
    is_allowed = quotient.can_contract(relu, add)
    return Exhibit(
        "Figure 9",
        "a cycle between subgraphs, and how both partitions go round it",
        "A convolution, another one of its result, and a third one of the sum of both. The first and the "
        "last of them in one subgraph would wait for the second, which waits for them: the merge is refused. "
        "Relay's rule makes three subgraphs, one for each convolution; AGO all three one.",
        (
            Figure("Relay's rule: subgraphs", subgraphs["layerwise"], 3),
            Figure("AGO: subgraphs", subgraphs["ago"], None),
            Figure("first and last alone: merges allowed", is_allowed, 0),
        ),
        basis=Basis.COUNTED,
    )


def _branch() -> ModelProto:
    b = Builder("figure_9", seed=0)
    x = b.input("x", (1, 8, 14, 14))
    first = b.relu(b.conv(x, 8, 1, name="conv1"), name="relu1")
    second = b.relu(b.conv(first, 8, 3, padding=1, name="conv2"), name="relu2")
    b.output(b.conv(b.add(first, second, name="add"), 8, 1, name="conv3"), "y")
    return b.finish()
