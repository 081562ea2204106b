"""How networks are planned for an accelerator: the paper's way, its baselines, and the ways worth comparing.

The baselines are those of GraphTurbo's evaluation (section 5): operators one by one as TVM runs them,
stitched kernels, and the variants of its figure 15, each of which adds a technique.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.families import PARTITIONERS
from tilewright.options import Options
from tilewright.partition.analysis import Analysis
from tilewright.partition.base import Partition
from tilewright.planning import Spec
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.target_ref import TargetRef

DEFAULT_OPTIONS = Options()
MEMORY = "longest-liveness"
GRAPHTURBO = Recipe("graphturbo", "depth-or-breadth-first", MEMORY)
"""Algorithms 1 to 4 with the paper's choices: of both orders the one that runs faster."""
_PAPERS_ORDERS = ("depth-first", "breadth-first")


@dataclass(frozen=True, slots=True)
class Baseline:
    """A recipe, and how the machine runs it, as options of the target."""

    recipe: Recipe
    execution: str = ""

    def target(self, machine: TargetRef) -> TargetRef:
        """A machine run so, whatever options it was named with."""
        ours = Spec.parse(f"{machine.name}{{{self.execution}}}")
        return machine.with_options(**dict(ours.options))

    def options(self, machine: TargetRef, known: Options = DEFAULT_OPTIONS) -> Options:
        """Options that ask for it on a machine, in place of what `known` ones say."""
        return replace(
            known,
            target=self.target(machine),
            partition=self.recipe.partition,
            schedule=self.recipe.schedule,
            memory=self.recipe.memory,
        )


_RELAY = "graphturbo{fuse_joins=true, group=false}"
_WHOLE = "breadth-first{split=false}"
_SERIAL, _DOUBLE_BUFFERED = "overlap=none", "overlap=tiles"
_ONE_PROGRAM = "launches=once"

_SERIAL_BASELINES: Mapping[str, Baseline] = {
    "tvm": Baseline(
        Recipe(_RELAY, _WHOLE, f"{MEMORY}{{without=local+shared}}"),
        f"{_SERIAL}, keeps_weights=false, launches=each step",
    ),
    "astitch": Baseline(Recipe(_RELAY, _WHOLE, f"{MEMORY}{{without=shared}}"), f"{_SERIAL}, {_ONE_PROGRAM}"),
    "variant-1": Baseline(Recipe(_RELAY, _WHOLE, f"{MEMORY}{{without=local}}"), f"{_SERIAL}, {_ONE_PROGRAM}"),
    "variant-2": Baseline(Recipe(_RELAY, _WHOLE, MEMORY), f"{_SERIAL}, {_ONE_PROGRAM}"),
    "variant-3": Baseline(GRAPHTURBO, f"{_SERIAL}, {_ONE_PROGRAM}"),
}


def overlapped(baseline: str) -> str:
    """The name of a baseline whose steps load, compute and store tile by tile at the same time."""
    return f"{baseline}-overlapped"


BASELINES: Mapping[str, Baseline] = {
    **_SERIAL_BASELINES,
    "variant-4": Baseline(GRAPHTURBO, _ONE_PROGRAM),
    **{
        overlapped(name): replace(serial, execution=serial.execution.replace(_SERIAL, _DOUBLE_BUFFERED))
        for name, serial in _SERIAL_BASELINES.items()
    },
}
"""`tvm` runs a kernel for each fused operator with everything in main memory, `astitch` one kernel with what
fits in the cores; variants 1 to 4 use the shared buffer, the cores' buffers too, then splitting and ordering,
then overlap. Before that the phases of a step follow each other; those that end in `-overlapped` are the same
plans with double buffering within each step."""

NAMED: Mapping[str, Baseline] = {"graphturbo": Baseline(GRAPHTURBO), **BASELINES}
"""What has a name: the paper's own and its baselines."""

IN_GROUPS = ("core-groups{number=1, instances=4}", "core-groups{number=4}", "core-pipeline{stages=2}")
"""Instances, or layers, on groups of cores, which hold weights. A group of all cores runs slices as well, so
that inputs of the next one come while one is computed."""

RESIDENT = "resident_weights=true"
"""Weights that fit stay on the chip from batch to batch."""

ALPHAS = (1.25, 1.0, 0.8)
"""Shares of the local capacity to plan with. A larger one means fewer slices and more spilling: of three
which gains most often comes first."""

_ALONE = "group=false"
"""Layers alone compute nothing twice: rows that neighbouring slices share are read where they lie."""
_CUTS = ("", "dims=batch", "dims=any", _ALONE)
"""Which axes are split, and whether layers are joined."""

_KEEPING_ROWS = "rows=keep"
"""Slices of images that keep rows for the next one: they run in order, so that orders differ little."""

_OTHER_ORDERS = ("min-delta", "exact-order{max_states=5000}")
_WHOLE_PARTITIONS = ("graphturbo", "graphturbo{group=false}", _RELAY)
"""Ways to cut without slices: where the cores' buffers are so small that slices cost more than they save."""


_COARSE = "max_instances_per_sample=8"
"""Where buffers are small, tiles inside of layers often cost less than slices with their halos."""


def worth_trying(
    partition: Callable[[str], Partition], analysis: Analysis, local_bytes: int
) -> Iterator[Recipe]:
    """The paper's own first, then layers one by one, then other ways to cut in the paper's orders, then the
    same in other orders, which gain less.

    `local_bytes` is what the cores' buffers hold of values.
    """
    yield GRAPHTURBO
    yield Recipe(PLAIN_RECIPE.partition, PLAIN_RECIPE.schedule, MEMORY)
    found: list[str] = []
    for name, has_others in _cuts(partition, analysis):
        found += [name] * has_others
        if name != GRAPHTURBO.partition:
            yield from (Recipe(name, order, MEMORY) for order in _PAPERS_ORDERS)
    yield from (Recipe(name, order, MEMORY) for name in found for order in _OTHER_ORDERS)
    for name in _WHOLE_PARTITIONS:
        orders = (*_PAPERS_ORDERS, *_OTHER_ORDERS)
        for order in orders[:1] if name == GRAPHTURBO.partition else orders:
            yield Recipe(name, _whole(order), MEMORY)
    yield Recipe(PLAIN_RECIPE.partition, "greedy", MEMORY)
    weighed = partition(GRAPHTURBO.partition).weighed
    # A capacity above what any instance holds cuts nothing.
    most_bytes = local_bytes if weighed is None else max(weighed.peak_bytes, default=local_bytes)
    for capacity in smaller_capacities(min(local_bytes, most_bytes)):
        yield Recipe(_graphturbo(f"capacity_bytes={capacity}"), GRAPHTURBO.schedule, MEMORY)


def _cuts(partition: Callable[[str], Partition], analysis: Analysis) -> Iterator[tuple[str, bool]]:
    """Ways to cut into slices, and whether other orders than the paper's are worth trying of each: kept rows
    and other shares of the capacity, which gain most often, then other axes.

    Axes beyond the batch are in question only where a slice of the batch is too large, rows that are kept
    only where joined layers that share some are then cut.
    """
    cutting: list[float] = []
    for alpha in ALPHAS:
        plain, keeping = (_graphturbo(f"alpha={alpha:g}", rows) for rows in ("", _KEEPING_ROWS))
        if cuts_samples(analysis, partition(plain)):
            cutting.append(alpha)
            if any(split.chain_length > 1 for split in partition(keeping).splits):
                yield keeping, False
        yield plain, True
    if cutting:
        yield _graphturbo(_COARSE), False
    for alpha in ALPHAS:
        for side_inputs in ("", "side_inputs=true"):
            for cut in _CUTS if alpha in cutting else _CUTS[:1]:
                if (cut or side_inputs) and not (side_inputs and cut == _ALONE):
                    yield _graphturbo(f"alpha={alpha:g}", cut, side_inputs), True


def smaller_capacities(
    capacity_bytes: int, quarters: Sequence[int] = (7, 5), least_share: int = 8
) -> tuple[int, ...]:
    """Capacities to plan for instead, down to a share: so many quarters of powers of two, which larger
    machines have, too.

    A plan for a smaller machine is one for a larger machine, too, and may be better than what is found there.
    Few for each power of two that reach far, rather than many that do not: of what a smaller machine tries a
    larger one leaves out the smallest alone.

    >>> [size >> 20 for size in smaller_capacities(8 << 20, (6, 4), least_share=4)]
    [6, 4, 3, 2]
    """
    powers = (1 << n for n in reversed(range(capacity_bytes.bit_length() - 2)))
    rounded = (power * count for power in powers for count in quarters)
    return tuple(size for size in rounded if capacity_bytes // least_share <= size < capacity_bytes)


def for_less_memory(local_bytes: int) -> tuple[str, ...]:
    """Partitioners that plan with less of the cores' buffers, which hold so much: with a little less, which
    is planned soonest, then with about a third of it, less and less, and more and more.

    >>> [name.partition("=")[2].rstrip("}") for name in for_less_memory(8 << 20)]
    ['0.8', '2560KiB', '1792KiB', '1280KiB', '3584KiB', '5MiB', '7MiB']
    """
    sizes = smaller_capacities(local_bytes)
    few = len(sizes) // 2
    sizes = (*sizes[few:], *reversed(sizes[:few]))
    return tuple(map(_graphturbo, (f"alpha={min(ALPHAS):g}", *(f"capacity_bytes={size}" for size in sizes))))


def cuts_samples(analysis: Analysis, partition: Partition) -> bool:
    """Whether slices of independent axes alone are too large somewhere."""
    return any(
        (partition.weighed is not None and not partition.weighed.is_feasible(subgraph.id))
        or any(analysis.axes.units_of(v, dim) == 1 for v in subgraph.outputs for dim, _ in split.cuts)
        for subgraph, split in zip(partition.subgraphs, partition.splits, strict=True)
    )


def _graphturbo(*options: str) -> str:
    return PARTITIONERS.canonical(f"graphturbo{{{', '.join(filter(None, options))}}}")


def _whole(order: str) -> str:
    """An order of whole subgraphs."""
    name, brace, options = order.partition("{")
    return f"{name}{{split=false, {options}" if brace else f"{name}{{split=false}}"
