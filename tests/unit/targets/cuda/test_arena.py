"""Arenas of graphs: sharing is proven by paths, and whatever edge that needs is found when it is removed."""

# mypy: disable-error-code="arg-type, attr-defined"

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.support.cuda import needs_fibers

from tilewright.memory import MEMORY_PLANNERS
from tilewright.memory.check import check_memory
from tilewright.planning import Budget, Spec
from tilewright.targets.cuda.arena import GraphArena, GraphBuffer, place_in_graph
from tilewright.targets.cuda.check_graph import check_graph
from tilewright.targets.cuda.device import Copy, GraphNode, KernelCode, Launch, Span
from tilewright.targets.cuda.emulated.device import EmulatedDevice, EmulatedKernels

pytestmark = needs_fibers
SIZE = 128
KERNEL = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @k(ptr %x, ptr %w, ptr %y) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr i32, ptr %x, i32 %t
  %q = getelementptr i32, ptr %w, i32 %t
  %r = getelementptr i32, ptr %y, i32 %t
  %a = load i32, ptr %p, align 4
  %b = load i32, ptr %q, align 4
  %c = mul i32 %a, 3
  %d = mul i32 %b, 5
  %e = add i32 %c, %d
  %f = add i32 %e, 1
  store i32 %f, ptr %r, align 4
  ret void
}
"""


def solve(problem: Any) -> Any:
    plan = MEMORY_PLANNERS.get(Spec("arena")).solve(problem, Budget(200))
    assert not check_memory(problem, plan)
    return plan


@cache
def loaded() -> tuple[EmulatedDevice, EmulatedKernels]:
    device = EmulatedDevice()
    return device, device.load([KernelCode(KERNEL)])


class Network:
    """A random graph of kernels with two operands each, in an arena; the last node's value is its result."""

    def __init__(self, seed: int, num_nodes: int = 7) -> None:
        draw = random.Random(seed)
        # Node 0 copies the input; node i reads two values before it, each at least once.
        self.operands = [(0, 0)] + [
            (draw.randrange(max(0, i - 3), i), draw.randrange(i)) for i in range(1, num_nodes)
        ]
        readers: list[list[int]] = [[] for _ in range(num_nodes)]
        for node, pair in enumerate(self.operands[1:], 1):
            for value in set(pair):
                readers[value].append(node)
        self.after = [(), *(tuple(sorted(set(pair))) for pair in self.operands[1:])]
        ends = [n for n in range(num_nodes) if not readers[n]]
        self.outputs = ends
        buffers = [
            GraphBuffer(
                f"v{n}",
                SIZE * draw.choice((1, 2)),
                (n, *readers[n], *([num_nodes + ends.index(n)] if n in ends else [])),
            )
            for n in range(num_nodes)
        ]
        self.after += [(n,) for n in ends]
        self.buffers = buffers
        durations = [draw.choice((1.0, 5.0)) for _ in self.after]
        arena = place_in_graph(self.after, buffers, durations, solve)
        assert isinstance(arena, GraphArena)
        self.arena = arena
        self.durations = durations
        self.device, self.kernels = loaded()
        self.memory = self.device.allocate(arena.plan.peak_bytes)
        self.host = self.device.pinned(SIZE * (1 + len(ends)))
        self.host.array[:SIZE] = np.arange(32, dtype=np.int32).view(np.uint8)
        edges = [
            sorted({*nodes, *(u for u, v in arena.added if v == n)}) for n, nodes in enumerate(self.after)
        ]
        self.nodes = [
            GraphNode("in", Copy(Span("x", self.host.address, SIZE), self.span(0))),
            *(GraphNode(f"k{n}", self.launch(n), tuple(edges[n])) for n in range(1, num_nodes)),
            *(
                GraphNode(
                    f"out{n}",
                    Copy(self.span(n), Span(f"y{n}", self.host.address + SIZE * (1 + i), SIZE)),
                    tuple(edges[num_nodes + i]),
                )
                for i, n in enumerate(ends)
            ),
        ]

    def span(self, value: int) -> Span:
        return Span(f"v{value}", self.memory.address + self.arena.plan.offsets[f"v{value}"], SIZE)

    def launch(self, node: int) -> Launch:
        x, w, y = (self.span(value) for value in (*self.operands[node], node))
        return Launch("k", (1, 1, 1), (32, 1, 1), (x.address, w.address, y.address), (x, w), (y,))

    def expected(self) -> np.ndarray:
        values = [np.arange(32, dtype=np.int32)]
        for a, b in self.operands[1:]:
            values.append(values[a] * np.int32(3) + values[b] * np.int32(5) + np.int32(1))
        return np.concatenate([values[n] for n in self.outputs])

    def num_wrong(self, nodes: list[GraphNode], orders: int = 12) -> int:
        """How many orders of the nodes give another result."""
        graph = self.device.graph(nodes, self.kernels)
        wrong = 0
        for self.device.seed in range(1, orders + 1):
            graph.launch()
            wrong += not np.array_equal(self.host.array[SIZE:].view(np.int32), self.expected())
        return wrong


def longest(nodes: Sequence[GraphNode] | Sequence[tuple[int, ...]], durations: Sequence[float]) -> float:
    """The longest path."""
    ends: list[float] = []
    for node, duration in zip(nodes, durations, strict=True):
        after = node.after if isinstance(node, GraphNode) else node
        ends.append(duration + max((ends[before] for before in after), default=0.0))
    return max(ends)


@pytest.mark.parametrize("seed", range(3))
def test_every_order_agrees_and_every_necessary_edge_is_missed(seed: Any) -> None:
    network = Network(seed)
    assert not check_graph(network.nodes)
    assert longest(network.nodes, network.durations) == longest(network.after, network.durations)
    assert network.num_wrong(network.nodes) == 0
    necessary = 0
    for number, node in enumerate(network.nodes):
        for before in node.after:
            without = list(network.nodes)
            without[number] = replace(node, after=tuple(n for n in node.after if n != before))
            if check_graph(without):
                necessary += 1
                assert network.num_wrong(without), (seed, before, number)
    assert necessary >= 3


@pytest.mark.parametrize(("durations", "added"), [((1, 1, 1, 1, 1), ()), ((1, 1, 1, 3, 1), ((1, 2),))])
def test_branches_share_memory_with_an_edge_only_where_that_costs_no_time(durations: Any, added: Any) -> None:
    """Two branches with a workspace each, and a third that may take longer than both one after the other."""
    after = [(), (0,), (0,), (0,), (1, 2, 3)]
    buffers = [GraphBuffer("one", 1024, (1,)), GraphBuffer("two", 1024, (2,))]
    arena = place_in_graph(after, buffers, durations, solve)
    assert isinstance(arena, GraphArena)
    assert arena.added == added
    assert arena.plan.peak_bytes == (1024 if added else 2048)


def test_branches_that_share_memory_without_an_edge_are_refused() -> Any:
    device, _ = loaded()
    memory, host = device.allocate(4 * SIZE), device.pinned(3 * SIZE)
    x, a, b, c = (Span(name, memory.address + SIZE * i, SIZE) for i, name in enumerate("xabc"))
    shared = replace(a, name="d")

    def launch(of: Span, also: Span, to: Span) -> Launch:
        return Launch("k", (1, 1, 1), (32, 1, 1), (of.address, also.address, to.address), (of, also), (to,))

    nodes = [
        GraphNode("in", Copy(Span("in", host.address, SIZE), x)),
        GraphNode("a", launch(x, x, a), (0,)),
        GraphNode("b", launch(a, a, b), (1,)),
        GraphNode("d", launch(x, x, shared), (0,)),
        GraphNode("c", launch(shared, shared, c), (3,)),
    ]
    (first, *_) = check_graph(nodes)
    assert first.message.endswith("that are the same, and no path of edges orders them")
    assert not check_graph([*nodes[:3], replace(nodes[3], after=(0, 2)), nodes[4]])


def test_an_argument_outside_of_what_a_kernel_states_is_refused() -> None:
    span = Span("x", 1024, 128)
    node = GraphNode("k", Launch("k", (1, 1, 1), (32, 1, 1), (1024, 1024 + 128), (span,)))
    (violation,) = check_graph([node])
    assert "argument 1 lies in none of its spans" in str(violation)
