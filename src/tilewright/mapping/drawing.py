"""A mapping as people look at it: what levels hold, what moves there beside the least, what is in use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.cost.bound import level_capacities, num_mac_units, touched_words
from tilewright.cost.count import Cost, TensorCount
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.hardware.machine import Level, Machine, TensorKind
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Operand, Problem
from tilewright.results import Table


@dataclass(frozen=True, slots=True)
class DrawnTensor:
    """A tensor at a level: the tile of one instance, and words that all instances read and write.

    `least_words` is what no mapping beats: every word enters and leaves once, and the innermost level that
    holds the tensor serves every multiplication, but for those that share a word.
    """

    name: str
    kind: TensorKind
    tile_words: int
    read_words: int
    written_words: int
    least_words: int
    energy_pj: float

    @property
    def moved_words(self) -> int:
        """Read and written."""
        return self.read_words + self.written_words


@dataclass(frozen=True, slots=True)
class DrawnLevel:
    """A level with its loops. `capacity_words` is what tiles may take, None without a limit."""

    name: str
    temporal: tuple[Loop, ...]
    spatial: tuple[Loop, ...]
    num_used: int
    num_instances: int
    fan_out: int
    capacity_words: int | None
    cycles: int
    tensors: tuple[DrawnTensor, ...]

    @property
    def num_spread(self) -> int:
        """Instances of the next inner level, or units, that one instance feeds."""
        return prod(loop.factor for loop in self.spatial)

    @property
    def share_held(self) -> float | None:
        """Share of the capacity that tiles take; None without a limit."""
        if not self.capacity_words:
            return None
        return sum(tensor.tile_words for tensor in self.tensors) / self.capacity_words


@dataclass(frozen=True, slots=True)
class DrawnMapping:
    """A layer's mapping, levels from the outermost to the innermost, and its figures beside the bounds."""

    name: str
    levels: tuple[DrawnLevel, ...]
    num_units_used: int
    num_units: int
    cycles: int
    bound_cycles: int
    energy_pj: float
    bound_energy_pj: float
    utilization: float

    def lines(self) -> Iterator[str]:
        """The loop nest, each level with what it holds."""
        depth = 0
        for level in self.levels:
            pad = "  " * depth
            yield f"{pad}{level.name}, {level.num_used:,} of {level.num_instances:,}:{_held(level)}"
            for loop in level.temporal:
                depth += 1
                yield f"{'  ' * depth}for {loop.dim} in {loop.factor}"
            if level.spatial:
                depth += 1
                factors = ", ".join(f"{loop.dim} in {loop.factor}" for loop in level.spatial)
                yield f"{'  ' * depth}spatial {factors} ({level.num_spread} of {level.fan_out})"
        units = f"{self.num_units_used:,} of {self.num_units:,} units"
        yield f"{'  ' * depth}multiply, {units}, {100 * self.utilization:.0f} % of their time"

    def table(self) -> Table:
        """Words moved per level and tensor, beside the least."""
        rows = [
            (
                level.name,
                tensor.name,
                f"{tensor.tile_words:,}",
                f"{tensor.read_words:,}",
                f"{tensor.written_words:,}",
                f"{tensor.least_words:,}",
                f"{tensor.moved_words / tensor.least_words:,.2f}" if tensor.least_words else "-",
                f"{tensor.energy_pj / 1e6:,.2f} µJ",
            )
            for level in self.levels
            for tensor in level.tensors
        ]
        heads = ("level", "tensor", "holds", "reads", "writes", "at least", "times that", "energy")
        title = f"{self.name}: words of one instance's tile, and moved by all instances"
        return Table(heads, tuple(rows), title, tuple(range(2, 8)), (7, 2))


def _held(level: DrawnLevel) -> str:
    held = ", ".join(f"{tensor.name} {tensor.tile_words:,}" for tensor in level.tensors)
    share = level.share_held
    return f" {held}{'' if share is None else f' ({100 * share:.0f} % of its words)'}" if held else ""


def drawn(
    name: str,
    problem: Problem,
    part: Machine,
    mapping: Mapping,
    cost: Cost,
    bounds: tuple[int, float],
    cost_options: CostOptions = TIMELOOP,
) -> DrawnMapping:
    """A mapping with its cost, onto the part of a machine that layers are mapped onto.

    `bounds` are cycles and energy that no mapping beats.
    """
    machine = part
    if part.threads is not None:
        from tilewright.mapping.gpu import view_of

        machine = view_of(part, mapping).machine
    loops = {laid.level: laid for laid in mapping.levels}
    counts = {count.level: count for count in cost.levels}
    levels = []
    for number, level in reversed(list(enumerate(machine.levels))):
        laid = loops.get(level.name, LevelLoops(level.name))
        count = counts[level.name]
        tensors = tuple(
            _tensor(problem, machine, level, operand, count.tensors[operand.name], cost_options)
            for operand in problem.operands
            if operand.name in count.tensors
        )
        used = {tensor.num_instances for tensor in count.tensors.values()}
        levels.append(
            DrawnLevel(
                level.name,
                tuple(loop for loop in laid.temporal if loop.factor > 1),
                tuple(loop for loop in laid.spatial if loop.factor > 1),
                max(used, default=0),
                machine.num_instances(level),
                machine.fan_out(number),
                _capacity_words(machine, level, cost_options),
                count.cycles,
                tensors,
            )
        )
    return DrawnMapping(
        name,
        tuple(levels),
        cost.num_units_used,
        num_mac_units(machine),
        cost.cycles,
        bounds[0],
        cost.energy_pj,
        bounds[1],
        cost.utilization,
    )


def _tensor(
    problem: Problem,
    machine: Machine,
    level: Level,
    operand: Operand,
    count: TensorCount,
    cost_options: CostOptions,
) -> DrawnTensor:
    kept = [x for x in machine.levels if operand.kind in x.holds]
    words = touched_words(problem, operand)
    served = words
    if level is kept[0]:
        fed = max(1, num_mac_units(machine) // machine.num_instances(level))
        served = max(words, -(-problem.num_macs // fed))
    is_spared = operand.kind is TensorKind.OUTPUT and cost_options.elides_first_fills
    entering = 0 if level is kept[-1] or is_spared else words
    return DrawnTensor(
        operand.name,
        operand.kind,
        count.tile_words,
        count.reads * count.num_instances,
        (count.updates + count.fills) * count.num_instances,
        served + entering,
        count.energy_pj,
    )


def _capacity_words(machine: Machine, level: Level, cost_options: CostOptions) -> int | None:
    parts = level_capacities(machine, level, cost_options)
    return sum(words for _, words, _ in parts) if parts else None
