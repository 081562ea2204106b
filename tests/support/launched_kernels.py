"""Small graphs whose plans launch kernels, and their planner."""

from __future__ import annotations

from typing import Any

from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Graph, Value
from tilewright.joint.launched.content import Numbered
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.options import Options
from tilewright.planner import Planner, machine_of
from tilewright.planning.portfolio import Recipe
from tilewright.progress import PhaseClock
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target

RECIPES = tuple(
    Recipe(partition, schedule, "longest-liveness")
    for partition in ("layerwise", "none", "ago", "pcgc", "graphturbo")
    for schedule in ("sequential", "greedy", "ios", "virtual-units", "depth-first")
)


def product(b: GraphBuilder, x: Any, rows: int, columns: int, inner: int) -> Value:
    return b.op("MatMul", x, b.constant(inner, columns), shape=(rows, columns))


def chain() -> Graph:
    b = GraphBuilder()
    x = b.input(256, 64)
    for _ in range(3):
        x = product(b, x, 256, 64, 64)
    return b.finish(b.op("Relu", x))


def fork() -> Graph:
    b = GraphBuilder()
    x = b.input(64, 128)
    left, right = product(b, x, 64, 128, 128), product(b, b.op("Relu", x), 64, 128, 128)
    return b.finish(left, b.op("Sigmoid", right))


def diamond() -> Graph:
    b = GraphBuilder()
    x = product(b, b.input(64, 64), 64, 64, 64)
    left, right = product(b, x, 64, 64, 64), b.op("Tanh", x)
    return b.finish(b.op("Add", left, right))


def deep_and_small() -> Graph:
    """A sum over many channels for few results: on `v100` two blocks of threads, and as many idle cores."""
    b = GraphBuilder()
    x = b.input(1, 256, 7, 7)
    weight = b.constant(64, 256, 3, 3, value=0.01)
    y = b.op("Conv", x, weight, b.constant(64), shape=(1, 64, 7, 7), pads=(1, 1, 1, 1))
    return b.finish(b.op("Relu", y))


def siblings() -> Graph:
    b = GraphBuilder()
    x = b.op("Relu", b.input(1, 8, 14, 14))
    parts = []
    for channels in (8, 16, 8):
        weights, shape = b.constant(channels, 8, 1, 1), (1, channels, 14, 14)
        convolved = b.op(
            "Conv", x, weights, shape=shape, kernel_shape=(1, 1), pads=(0, 0, 0, 0), strides=(1, 1)
        )
        parts.append(b.op("Relu", convolved))
    return b.finish(b.op("Concat", *parts, shape=(1, 32, 14, 14), axis=1))


GRAPHS = {"chain": chain, "fork": fork, "diamond": diamond}


def planner_of(graph: Graph, machine: str) -> Planner:
    options = Options(target=TargetRef.parse(machine))
    target = find_target(TargetRef.parse(machine))
    return Planner(graph, target, target.backend(graph, options), options, PhaseClock(None, None))


def pricer_of(planner: Planner, numbered: Numbered) -> LaunchedPricer:
    return LaunchedPricer(numbered, machine_of(planner.backend, planner.options))
