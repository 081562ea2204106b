"""Sums of products of nodes as mappings run them on the cores of a cluster: one model of what they cost.

The mapping is the exact mapper's for the part of the machine that a step has; its counts are those of
`cost/nest_analysis.py`, as in `tilewright map`. A slice of a layer takes the layer's mapping, cut down to its
extents, unless that leaves units idle: then it is mapped for itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import gcd, prod
from types import MappingProxyType
from typing import Literal, cast

from tilewright.cost.bound import check_smallest_tiles, num_mac_units
from tilewright.cost.count import Cost, LevelCount
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.sparsity import skipped_share, with_zeros
from tilewright.errors import InfeasibleMapping
from tilewright.families import MAPPERS
from tilewright.hardware.cluster_part import cluster_part
from tilewright.hardware.machine import Machine, SameMachine
from tilewright.hardware.operator_view import multipliers, operator_view
from tilewright.hardware.parts import MULTIPLYING
from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Node
from tilewright.ir.nest import Affine, Nest
from tilewright.ir.region import Region, volume
from tilewright.loops.mapping import LevelLoops, Loop
from tilewright.loops.mapping import Mapping as LoopMapping
from tilewright.loops.problem import Problem
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.mapping.checked import solved
from tilewright.mapping.constraints import UNCONSTRAINED, Constraints, FixedSpatial
from tilewright.mapping.exact.ports import most_busy_share
from tilewright.mapping.gpu import evaluate_blocks, solve_blocks
from tilewright.mapping.network import layers_in, products_of
from tilewright.planning import UNLIMITED, Budget, Infeasible
from tilewright.progress import checkpoint
from tilewright.targets.npu.kept_mappings import kept_mapping
from tilewright.targets.npu.rates import Rate

SEARCH = "exact{max_search_states=1000, pads=false}"
"""The mapper of steps: a plan asks for hundreds of mappings, of which padded extents make few faster."""
MappedBy = Literal["search", "rule"]
"""How sums of products of steps are mapped: so, or by GraphTurbo's rule, which has no loops to compile."""
_MAPPERS: Mapping[MappedBy, str] = {"search": SEARCH, "rule": "paper"}

_IDLE = 1.1  # a cut mapping that takes so much longer than its share of the layer's is given up


@dataclass(frozen=True, slots=True, eq=False)
class MappedProducts:
    """Sums of products of one node with their mapping on `num_cores` cores, or fewer.

    `machine` is the part that they are mapped onto, whole with its threads where it has such; `local` the
    number of the cores' buffers among the levels of `cost`, which begin with the outermost. Units that
    read a level outside these are not `is_in_cores`.
    """

    problem: Problem
    machine: Machine
    mapping: LoopMapping
    cost: Cost
    num_cores: int
    local: int
    is_in_cores: bool

    @property
    def inner(self) -> tuple[LevelCount, ...]:
        """The levels from the cores' buffers inwards, or the one that units read if it is outside."""
        return self.cost.levels[self.local :]

    @property
    def outer(self) -> tuple[LevelCount, ...]:
        """The levels outside these."""
        return self.cost.levels[: self.local]

    @property
    def cycles(self) -> int:
        """Cycles of the units and the levels from the cores' buffers inwards, with zeros."""
        cost = self._with_zeros
        return max([cost.compute_cycles, *(level.cycles for level in cost.levels[self.local :])])

    @property
    def cores_used(self) -> int:
        """Cores that the mapping spreads over; all of them where units are not the cores' own."""
        if not self.is_in_cores:
            return self.num_cores
        return max([1, *(t.num_instances for t in self.inner[0].tensors.values())])

    @property
    def utilization(self) -> float:
        """The share of the products that the units of these cores could do in as many cycles, without those
        that they skip."""
        products: float = self.problem.num_macs
        if self.machine.densities:
            products *= skipped_share(self.machine, multipliers(self.machine))
        return min(1.0, products / (self.cycles * self._lanes_of_core * self.cores_used))

    @property
    def _lanes_of_core(self) -> float:
        return num_lanes(self.machine) / self.num_cores

    @property
    def _with_zeros(self) -> Cost:
        return with_zeros(self.problem, self.machine, self.cost)

    @property
    def mac_energy_pj(self) -> float:
        """Energy of the units, without what they gate or skip."""
        return self._with_zeros.mac_energy_pj

    def inner_energy_pj(self) -> Iterator[tuple[str, float]]:
        """Energy of the levels from the cores' buffers inwards, without what fills the cores' buffers."""
        for number, level in enumerate(self._with_zeros.levels[self.local :]):
            fills = sum(t.fill_energy_pj for t in level.tensors.values()) if number == 0 else 0.0
            yield level.level, sum(t.energy_pj for t in level.tensors.values()) - fills


@dataclass(frozen=True, slots=True, eq=False)
class NodeProducts:
    """All sums of products of a node, of whose work a region of its result takes a `share`.

    `axes` are the axes of the result along which dims of the only one move.
    """

    parts: tuple[MappedProducts, ...]
    share: float
    axes: tuple[tuple[str, int], ...] = ()

    def own_extents(self, num_axes: int) -> tuple[int, ...]:
        """Of the result's axes how many elements a core has, as the only mapping spreads them."""
        (part,) = self.parts
        outer = {level.level for level in part.outer}
        extents = dict(part.problem.dims)
        for level in part.mapping.levels:
            for loop in level.spatial if level.level in outer else ():
                extents[loop.dim] = -(-extents[loop.dim] // loop.factor)
        own = [1] * num_axes
        for dim, axis in self.axes:
            own[axis] *= extents[dim]
        return tuple(own)

    @property
    def utilization(self) -> float:
        """The share of the products that the units of the cores that are used could do meanwhile."""
        macs = [part.problem.num_macs for part in self.parts]
        return sum(macs) / sum(n / part.utilization for n, part in zip(macs, self.parts, strict=True))

    @property
    def cores_used(self) -> int:
        """Cores that mappings spread over."""
        return max(part.cores_used for part in self.parts)

    @property
    def mac_energy_pj(self) -> float:
        """Energy of the units."""
        return self.share * sum(part.mac_energy_pj for part in self.parts)

    def inner_energy_pj(self) -> dict[str, float]:
        """Energy of the levels from the cores' buffers inwards, without what fills the cores' buffers."""
        found: dict[str, float] = {}
        for part in self.parts:
            for level, energy_pj in part.inner_energy_pj():
                found[level] = found.get(level, 0.0) + self.share * energy_pj
        return found

    def local_bytes(self, level: str) -> tuple[int, int]:
        """Bytes that units read from the cores' buffers, of that name, and write to them."""
        read = written = 0.0
        for part in self.parts:
            if part.inner[0].level == level:
                word_bytes = part.machine.level(level).word_bits / 8
                read += word_bytes * sum(t.read_words for t in part.inner[0].tensors.values())
                updates = (t.updates * t.num_instances for t in part.inner[0].tensors.values())
                written += word_bytes * sum(updates)
        return round(self.share * read), round(self.share * written)


def num_lanes(machine: Machine) -> float:
    """Products per cycle of a machine that a mapper sees."""
    if machine.threads is None:
        return num_mac_units(machine)
    (unit,) = machine.units
    (rate,) = unit.macs_per_cycle.values()
    return machine.num_units(unit) * rate


@dataclass(slots=True, eq=False)
class ProductMapper:
    """Mappings of sums of products on a cluster of a machine; equal ones are found once."""

    machine: Machine
    mapped_by: MappedBy = "search"
    _known: dict[object, MappedProducts | None] = field(init=False, repr=False, default_factory=dict)
    _parts: dict[object, Machine] = field(init=False, repr=False, default_factory=dict)
    _shares: dict[object, float] = field(init=False, repr=False, default_factory=dict)
    _texts: dict[int, str] = field(init=False, repr=False, default_factory=dict)  # of parts, which live on

    def of_node(
        self,
        node: Node,
        region: Region,
        rate: Rate,
        element_bytes: int,
        num_cores: int,
        *,
        is_inner: bool,
        summed: Mapping[str, int] = MappingProxyType({}),
    ) -> NodeProducts | None:
        """The sums of products that make a region of a node's result; None where some have no mapping.

        `is_inner`: the mapping is that of what the cores do, whatever brings operands to them. Of the dims
        that are `summed` the sums have so many iterations.
        """
        part_key = (rate.unit.name, rate.dtype, rate.per_cycle, element_bytes, num_cores, is_inner)
        nests = [nest for nest in nests_of(node) if contraction_of(nest)]
        whole = [layer.problem for layer in layers_in([node]) if layer.problem is not None]
        restricted = _alone(nests, node, region, summed) if len(whole) == 1 else None
        products = None if restricted is None else products_of(node, restricted)
        if restricted is not None and products is not None:
            mapped = self._slice(products.problem, whole[0], rate, part_key)
            return (
                None
                if mapped is None
                else NodeProducts((mapped,), 1.0, axes_of_dims(restricted, products.problem))
            )
        found = [self._whole(problem, rate, part_key) for problem in whole]
        if None in found or not found:
            return None
        share = volume(region) / max(1, node.output.num_elements)
        return NodeProducts(tuple(part for part in found if part is not None), share)

    def most_utilization(self, node: Node, rate: Rate, element_bytes: int, num_cores: int) -> float:
        """The most that the utilization of a node's sums of products can be, whatever part of its result they
        make and however they are mapped."""
        part_key = (rate.unit.name, rate.dtype, rate.per_cycle, element_bytes, num_cores, True)
        part = self._part(rate, part_key)
        if part.threads is not None or part.densities:
            return 1.0
        macs_of, busy = 0, 0.0
        for layer in layers_in([node]):
            if layer.problem is None:
                continue
            key = "busy", layer.problem.dims, layer.problem.operands, part_key
            if key not in self._shares:
                self._shares[key] = _most_utilization(layer.problem, part)
            macs_of += layer.problem.num_macs
            busy += layer.problem.num_macs / self._shares[key]
        return macs_of / busy if macs_of else 1.0

    def in_parts(
        self,
        node: Node,
        region: Region,
        rate: Rate,
        element_bytes: int,
        num_cores: int,
        binding: tuple[int, ...],
    ) -> NodeProducts | None:
        """The only sums of products that make a region, from main memory to main memory, in so many parts
        along each axis of the result; None where extents do not divide so, or cores lie in groups."""
        nests = [nest for nest in nests_of(node) if contraction_of(nest)]
        restricted = _alone(nests, node, region)
        products = None if restricted is None else products_of(node, restricted)
        if restricted is None or products is None:
            return None
        problem, axes = products.problem, axes_of_dims(restricted, products.problem)
        part_key = (rate.unit.name, rate.dtype, rate.per_cycle, element_bytes, num_cores, False)
        part = self._part(rate, part_key)
        names = [level.name for level in part.levels]
        assert self.machine.local is not None, "only of machines that run networks"
        if self.machine.local.name not in names[:-1]:
            return None
        around = names[names.index(self.machine.local.name) + 1]
        factors = dict.fromkeys(problem.extents, 1)
        for dim, axis in axes:
            factors[dim] = gcd(
                problem.extents[dim], binding[axis] // prod(factors[d] for d, a in axes if a == axis)
            )
        if prod(factors.values()) != prod(binding):
            return None
        key = problem.dims, problem.operands, part_key, binding
        if key not in self._known:
            fixed = tuple(FixedSpatial(around, dim, factor) for dim, factor in factors.items())
            self._known[key] = self._mapped(problem, part, num_cores, Constraints(spatial=fixed))
        found = self._known[key]
        return None if found is None else NodeProducts((found,), 1.0, axes)

    def _slice(
        self, problem: Problem, whole: Problem, rate: Rate, part_key: tuple[object, ...]
    ) -> MappedProducts | None:
        is_inner = bool(part_key[-1])
        if is_inner:
            whole = of_one_sample(whole)
        layer = self._whole(whole, rate, part_key)
        if layer is None or problem.dims == whole.dims:
            return layer
        # Slices alike of different layers have different mappings.
        key = problem.dims, problem.operands, whole.dims, whole.operands, part_key
        if key in self._known:
            return self._known[key]
        found = None
        with suppress(InfeasibleMapping):
            found = self._counted(problem, fitted(layer.mapping, problem), layer.machine, layer.num_cores)
        if found is None or found.cycles * layer.problem.num_macs > _IDLE * layer.cycles * problem.num_macs:
            own = self._whole(of_one_sample(problem) if is_inner else problem, rate, part_key)
            if own is not None and own.problem.dims != problem.dims:
                own = self._counted(problem, fitted(own.mapping, problem), own.machine, own.num_cores)
            found = own
        self._known[key] = found
        return found

    def _whole(self, problem: Problem, rate: Rate, part_key: tuple[object, ...]) -> MappedProducts | None:
        key = problem.dims, problem.operands, part_key
        if key not in self._known:
            self._known[key] = self._mapped(problem, self._part(rate, part_key), cast("int", part_key[-2]))
        return self._known[key]

    def _part(self, rate: Rate, part_key: tuple[object, ...]) -> Machine:
        if part_key not in self._parts:
            *_, element_bytes, num_cores, is_inner = cast("tuple[int, ...]", part_key)
            part = cluster_part(
                self.machine,
                rate.unit,
                rate.dtype,
                rate.per_cycle,
                element_bytes,
                num_cores,
                is_inner=bool(is_inner),
            )
            work = next(x for x in MULTIPLYING if rate.unit.takes(x))
            self._parts[part_key] = part if part.threads is not None else operator_view(part, work).machine
        return self._parts[part_key]

    def _mapped(
        self,
        problem: Problem,
        part: Machine,
        num_cores: int,
        constraints: Constraints = UNCONSTRAINED,
    ) -> MappedProducts | None:
        checkpoint()
        if id(part) not in self._texts:
            self._texts[id(part)] = part.model_dump_json()
        found: list[Cost] = []
        mapper = _MAPPERS[self.mapped_by]

        def search() -> LoopMapping | None:
            answer = _solved(mapper, problem, part, constraints)
            found.extend([] if answer is None else [answer.cost])
            return None if answer is None else answer.mapping

        question = repr((problem.dims, problem.operands, constraints, mapper, self._texts[id(part)]))
        mapping = kept_mapping(question, search)
        return None if mapping is None else self._counted(problem, mapping, part, num_cores, *found)

    def _counted(
        self,
        problem: Problem,
        mapping: LoopMapping,
        part: Machine,
        num_cores: int,
        cost: Cost | None = None,
    ) -> MappedProducts:
        if cost is None and part.threads is None:
            cost = evaluate(problem, part, mapping)
        elif cost is None:
            cost = evaluate_blocks(problem, part, mapping)[0]
        assert self.machine.local is not None, "only of machines that run networks"
        names = [level.level for level in cost.levels]
        is_in_cores = self.machine.local.name in names
        local = names.index(self.machine.local.name) if is_in_cores else len(names) - 1
        return MappedProducts(problem, part, mapping, cost, num_cores, local, is_in_cores)


def _most_utilization(problem: Problem, part: Machine) -> float:
    """What no mapping exceeds; 1 where there is none, as then nothing is said of units."""
    try:
        check_smallest_tiles(problem, part)
    except InfeasibleMapping:
        return 1.0
    return most_busy_share(MappingProblem(problem, part))


@functools.cache
def _mapper(name: str) -> Mapper:
    mapper: Mapper = MAPPERS.get(name)
    return mapper


def _solved(name: str, problem: Problem, part: Machine, constraints: Constraints) -> MappingSolution | None:
    """A mapper's answer; None where nothing fits."""
    mapper, budget = _mapper(name), Budget(UNLIMITED)
    task = MappingProblem(problem, part, constraints=constraints)
    try:
        if part.threads is None:
            answer = solved(mapper, task, budget)
        else:
            answer = solve_blocks(mapper, problem, part, "latency", task.cost_options, budget)
    except InfeasibleMapping:
        return None
    return None if isinstance(answer, Infeasible) else answer


def _alone(
    nests: Sequence[Nest], node: Node, region: Region, summed: Mapping[str, int] = MappingProxyType({})
) -> Nest | None:
    """The only nest, which makes a region of a node's result alone; None where it makes something else, such
    as the gates of a recurrent layer."""
    if len(nests) != 1 or nests[0].write.shape != node.output.shape:
        return None
    nest = restricted_nest(nests[0], region)
    if nest is None or not summed:
        return nest
    dims = (replace(dim, extent=summed.get(dim.name, dim.extent)) for dim in nest.dims)
    return replace(nest, dims=tuple(dims))


def restricted_nest(nest: Nest, region: Region) -> Nest | None:
    """A nest that makes a region of its result alone; None where the result is laid out anew."""
    if nest.write.view is not None or len(nest.write.index) != len(region):
        return None
    lengths: dict[str, int] = {}
    for index, (start, stop) in zip(nest.write.index, region, strict=True):
        if not isinstance(index, Affine):
            return None
        # Digits of the index: as many of each as the length of the region asks for.
        for name, step in index.terms:
            lengths[name] = min(nest.extents[name], max(1, -(-(stop - start) // abs(step))))
    dims = tuple(replace(dim, extent=lengths.get(dim.name, dim.extent)) for dim in nest.dims)
    return replace(nest, dims=dims)


def axes_of_dims(nest: Nest, problem: Problem) -> tuple[tuple[str, int], ...]:
    """The axis of the result along which each dim of a problem moves."""
    names = {dim.name: name for dim, (name, _) in zip(nest.dims, problem.dims, strict=True)}
    return tuple(
        (names[name], axis)
        for axis, index in enumerate(nest.write.index)
        if isinstance(index, Affine)
        for name in index.dims()
    )


def of_one_sample(problem: Problem) -> Problem:
    """A problem of one sample of the batch, where its dims have the letters of a convolution."""
    return replace(problem, dims=tuple((dim, 1 if dim == "N" else extent) for dim, extent in problem.dims))


def fitted(mapping: LoopMapping, problem: Problem) -> LoopMapping:
    """A mapping of other extents fitted to a problem's: cut down from the outermost loops on, and where
    extents are larger, repeated outside.

    >>> from tilewright.loops.problem import layer
    >>> whole = LoopMapping((LevelLoops("Memory", (Loop("P", 14),), (Loop("K", 8),)),))
    >>> [loop.factor for _, _, loop in fitted(whole, layer("1_28_1_4_1")).loops()]
    [2, 28, 14, 4]
    """
    left = dict(problem.dims)

    def shorter(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
        kept = []
        for loop in reversed(loops):
            factor = min(loop.factor, left[loop.dim])
            left[loop.dim] = -(-left[loop.dim] // factor)
            kept.append(Loop(loop.dim, factor))
        return tuple(reversed(kept))

    levels = []
    for level in reversed(mapping.levels):
        spatial = shorter(level.spatial)
        levels.append(LevelLoops(level.level, shorter(level.temporal), spatial))
    outermost = levels[-1]
    repeated = tuple(Loop(dim, times) for dim, times in left.items() if times > 1)
    levels[-1] = replace(outermost, temporal=(*repeated, *outermost.temporal))
    return LoopMapping(tuple(reversed(levels)))


def product_mapper(machine: Machine, mapped_by: MappedBy) -> ProductMapper:
    """What maps sums of products on a machine; the last machines' are kept."""
    return _product_mapper(SameMachine(machine), mapped_by)


@functools.lru_cache(maxsize=16)
def _product_mapper(same: SameMachine, mapped_by: MappedBy) -> ProductMapper:
    return ProductMapper(same.machine, mapped_by)
