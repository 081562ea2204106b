"""The best of several plans by simulated time: planning capacities, axes that may be split, orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tilewright.errors import InternalError, TilewrightError
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.targets.npu.plan import GRAPHTURBO_RECIPE, OrderName, Planned, Recipe, plan

ALPHAS = (1.0, 1.25, 0.8)
"""Shares of the local capacity to plan with. A larger one means fewer slices and more spilling."""

_ORDERS: tuple[OrderName, ...] = ("depth-first", "min-delta", "breadth-first")


def recipes() -> Iterator[Recipe]:
    """All recipes of the portfolio; the paper's own is the first."""
    yield GRAPHTURBO_RECIPE
    for alpha in ALPHAS:
        for order in _ORDERS:
            recipe = replace(
                GRAPHTURBO_RECIPE,
                name=f"alpha {alpha:g}, {order}",
                partitioner=GraphTurbo(alpha=alpha),
                order=order,
            )
            if (alpha, order) != (1.0, GRAPHTURBO_RECIPE.order):
                yield recipe


def best_plan(
    graph: Graph, machine: Machine, update: Callable[[str, int, int], None] | None = None
) -> tuple[Planned, Sequence[tuple[str, float | None]]]:
    """The fastest plan of the portfolio, and the seconds of each (None: it cannot be made).

    Never slower than the paper's recipe, which is among them; the first of equals.

    Raises:
        TilewrightError: none can be made; the error of the paper's.
    """
    listed = list(recipes())
    best: Planned | None = None
    tried: list[tuple[str, float | None]] = []
    first_error: TilewrightError | None = None
    for number, recipe in enumerate(listed):
        if update is not None:
            update(recipe.name, number, len(listed))
        try:
            found = plan(graph, machine, recipe)
        except InternalError:
            raise
        except TilewrightError as error:
            first_error = first_error or error
            tried.append((recipe.name, None))
            continue
        tried.append((recipe.name, found.simulation.time_s))
        if best is None or found.simulation.time_s < best.simulation.time_s:
            best = found
    if best is None:
        assert first_error is not None
        raise first_error
    return best, tried
