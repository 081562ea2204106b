"""The best of several plans by simulated time: planning capacities, axes that are split, orders, spills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.errors import InternalError, TilewrightError
from tilewright.memory.largest_size import LargestSize
from tilewright.partition.analysis import Analysis
from tilewright.partition.base import Partition
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.graphturbo.split import Dims
from tilewright.targets.npu.plan import BASELINES, GRAPHTURBO_RECIPE, OrderName, Planned, Planner, Recipe
from tilewright.targets.npu.schedules import plan_by_name

ALPHAS = (1.0, 1.25, 0.8)
"""Shares of the local capacity to plan with. A larger one means fewer slices and more spilling."""

NAMED: Mapping[str, Recipe] = {GRAPHTURBO_RECIPE.name: GRAPHTURBO_RECIPE, **BASELINES}
"""The recipes that have names: the paper's own and its baselines."""

_CUTS: tuple[tuple[str, Dims, bool], ...] = (
    ("batch-first", "batch-first", True),
    ("batch", "batch", True),
    ("any", "any", True),
    ("layers alone", "batch-first", False),
)
"""Which axes are cut, and whether layers are joined. Layers alone compute nothing twice: the rows that
neighbouring slices share are read from the slices that lie there."""

_ORDERS: tuple[OrderName, ...] = ("depth-first", "min-delta", "breadth-first", "exact")

_WHOLE = {
    "joined": GraphTurbo(),
    "layers alone": GraphTurbo(group=False),
    "operators with sums": GraphTurbo(group=False, fuse_joins=True),
}
"""Ways to cut without slices: where the cores' buffers are so small that slices cost more than they save."""

_SIMPLE = (("layerwise", "sequential"), ("layerwise", "greedy"))
"""Partitions and schedules that nothing of the portfolio is slower than."""

Tried = tuple[str, float | None]
"""The name of a recipe, and the seconds that its plan takes; None where none can be made."""
Update = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The fastest plan, and all that were tried. `num_simulated` of them differ from each other."""

    planned: Planned
    tried: Sequence[Tried]
    num_simulated: int


def recipes(planner: Planner) -> Iterator[Recipe]:
    """The recipes of the portfolio for a network; the paper's own is the first.

    Axes beyond the batch are in question only where a slice of the batch is too large. What is
    spilled is asked of the best of them only: it rarely matters.
    """
    yield GRAPHTURBO_RECIPE
    for alpha in ALPHAS:
        own = planner.partition(GraphTurbo(alpha=alpha))
        for cut, dims, joins in _CUTS if cuts_samples(planner.analysis, own) else _CUTS[:1]:
            for side_inputs in (False, True) if joins else (False,):
                for order in _ORDERS:
                    words = [f"alpha {alpha:g}", cut, order]
                    recipe = replace(
                        GRAPHTURBO_RECIPE,
                        name=", ".join([*words, "masks as inputs"] if side_inputs else words),
                        partitioner=GraphTurbo(alpha=alpha, dims=dims, side_inputs=side_inputs, group=joins),
                        order=order,
                    )
                    if replace(recipe, name=GRAPHTURBO_RECIPE.name) != GRAPHTURBO_RECIPE:
                        yield recipe
    for layers, partitioner in _WHOLE.items():
        for order in _ORDERS[:1] if layers == "joined" else _ORDERS:
            yield Recipe(f"whole, {layers}, {order}", partitioner, splits=False, order=order)


def cuts_samples(analysis: Analysis, partition: Partition) -> bool:
    """Whether slices of independent axes alone are too large somewhere."""
    return any(
        (partition.weighed is not None and not partition.weighed.is_feasible(subgraph.id))
        or any(analysis.axes.units_of(v, dim) == 1 for v in subgraph.outputs for dim, _ in split.cuts)
        for subgraph, split in zip(partition.subgraphs, partition.splits, strict=True)
    )


def best_plan(planner: Planner, update: Update | None = None) -> Best:
    """The fastest plan of the portfolio.

    Never slower than the paper's recipe, which is among them; the first of equals.

    Raises:
        TilewrightError: none can be made; the error of the paper's.
    """
    listed = list(recipes(planner))
    best: Planned | None = None
    tried: list[Tried] = []
    first_error: TilewrightError | None = None

    def attempt(name: str, make: Callable[[], Planned]) -> None:
        nonlocal best, first_error
        try:
            found = make()
        except InternalError:
            raise
        except TilewrightError as error:
            first_error = first_error or error
            tried.append((name, None))
            return
        tried.append((name, found.simulation.time_s))
        if best is None or found.simulation.time_s < best.simulation.time_s:
            best = found

    num_all = len(listed) + len(_SIMPLE)
    for number, recipe in enumerate(listed):
        if update is not None:
            update(recipe.name, number, num_all)
        attempt(recipe.name, partial(planner.plan, recipe))
    for number, (partition, schedule) in enumerate(_SIMPLE, len(listed)):
        name = f"{partition}, {schedule}"
        if update is not None:
            update(name, number, num_all)
        make = partial(plan_by_name, planner.graph, planner.machine, partition=partition, schedule=schedule)
        attempt(name, make)
    if best is None:
        assert first_error is not None
        raise first_error
    if best.recipe in listed:
        last = replace(best.recipe, name=f"{best.recipe.name}, largest-size", memory=LargestSize())
        attempt(last.name, partial(planner.plan, last))
    return Best(best, tried, planner.num_simulated + len(_SIMPLE))
