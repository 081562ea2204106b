"""What a node costs the units of one cluster: cycles of the unit that takes its class of work.

The operation class follows from the nests: sums of products over channels, sums of each channel alone, other
sums, functions, plain arithmetic, copies. Which unit takes it, how fast and at what energy says the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from tilewright.errors import MachineError
from tilewright.hardware.lacks import lacks_of, refusal
from tilewright.hardware.machine import Machine, Unit, Work
from tilewright.hardware.parts import MULTIPLYING
from tilewright.ir.contraction import contraction_of, contractions
from tilewright.ir.derive import macs, nest_flops, nests_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Call, Read
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.nest import Indirect, Nest, row_major_address
from tilewright.ir.region import Region, full_region, volume
from tilewright.targets.npu.ports import CORE_DMA, ports_of


@dataclass(frozen=True, slots=True)
class UnitWork:
    """Work of one node on one unit of every core: how long it takes, and what it computes."""

    unit: str
    seconds: float
    macs: float
    ops: float
    energy_pj: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A contraction as a matrix unit sees it: output axes of rows and of columns."""

    rows: frozenset[int]
    columns: frozenset[int]


@dataclass(frozen=True, slots=True)
class Rest:
    """What a node that multiplies matrices computes besides: an operation for each element of each pass."""

    work: Work
    ops: int


class Works:
    """The work of a graph's nodes on a machine that computes floating-point numbers as `dtype`."""

    def __init__(self, machine: Machine, dtype: DType) -> None:
        self.machine, self.dtype = machine, dtype
        self.ports = ports_of(machine)
        assert machine.clock_hz is not None, "ports are only of machines that lack nothing"
        self.clock_hz = machine.clock_hz
        self._classes: dict[Node, tuple[Work, int, Shape | None, Rest | None]] = {}

    def of(self, node: Node, region: Region, binding: tuple[int, ...] | None) -> tuple[UnitWork, ...]:
        """The work to make a region of a node's result, on cores as bound; none if nothing is computed.

        A node that multiplies matrices and does more, as attention does, has a share on each of two units.
        Without a binding: on all cores, with nothing left over in any tile.
        """
        if node not in self._classes:
            work = work_of(node)
            rest = rest_of(node) if work in MULTIPLYING else None
            self._classes[node] = work, macs(node), shape_of(node), rest
        work, products, shape, rest = self._classes[node]
        if work is Work.MOVEMENT or not volume(region):
            return ()
        whole = max(1, node.output.num_elements)
        share = volume(region) / whole
        cores = self.machine.num_cores_per_cluster if binding is None else prod(binding)
        unit, rate, is_mac = self._unit(work, node.output.dtype)
        per_core = rate * unit.efficiency * max(1, unit.num_per_instance)
        elements = volume(region)
        if is_mac:
            done = products * share
            filled = 1.0
            if work is Work.CONTRACTION and shape is not None and binding is not None:
                filled = _filled(unit, shape, region, binding)
            cycles = done / (per_core * cores * filled)
            main = UnitWork(unit.name, cycles / self.clock_hz, done, 0.0, done * (unit.mac_pj or 0.0))
            return (main,) if rest is None else (main, self._rest(node, rest, share, cores))
        ops = self._operations(node, unit, share, elements)
        return (self._plain(unit, rate, ops, cores),)

    def least_seconds(
        self, nodes: Sequence[Node], outputs: Sequence[Value], maps: RegionMaps
    ) -> dict[str, float]:
        """Seconds that each unit takes at least for what results of nodes need, however these are cut.

        The nodes are in topological order.
        """
        found: dict[str, float] = {}
        for work in self.least(nodes, outputs, maps):
            found[work.unit] = found.get(work.unit, 0.0) + work.seconds
        return found

    def least(self, nodes: Sequence[Node], outputs: Sequence[Value], maps: RegionMaps) -> Iterator[UnitWork]:
        """The work that results of nodes need at least; as `least_seconds`."""
        wanted = {value: full_region(value.shape) for value in outputs}
        regions = value_regions(nodes, wanted, maps)
        for node in nodes:
            region = regions.get(node.output)
            if region is not None:
                yield from self.of(node, region, None)

    def of_movement(self, nodes: Sequence[Node], dtype: DType, elements: int, size_bytes: int) -> UnitWork:
        """The work to lay out anew, within the cores, what nodes that compute nothing make together.

        A unit that computes does it where the machine says so, else what moves data between the cores.
        """
        for unit in self.machine.units:
            if unit.takes(Work.MOVEMENT) and unit.ops_per_cycle:
                each = max(unit.ops_per_element.get(node.op_type, 1.0) for node in nodes)
                rate = _rate_of(unit.ops_per_cycle, self._name(dtype))
                return self._plain(unit, rate, each * elements, self.machine.num_cores_per_cluster)
        return UnitWork(CORE_DMA, size_bytes / self.ports.local_bytes_per_s, 0.0, 0.0, 0.0)

    def axes_of(self, node: Node) -> tuple[int, ...]:
        """Axes of a result in the order in which they get cores: columns last, which fill a unit's tile."""
        shape = shape_of(node)
        columns = frozenset() if shape is None else shape.columns
        return tuple(sorted(range(len(node.output.shape)), key=lambda axis: axis in columns))

    def _rest(self, node: Node, rest: Rest, share: float, cores: int) -> UnitWork:
        unit, rate, _ = self._unit(rest.work, node.output.dtype)
        return self._plain(unit, rate, rest.ops * share, cores)

    def _plain(self, unit: Unit, rate: float, ops: float, cores: int) -> UnitWork:
        cycles = ops / (rate * unit.efficiency * max(1, unit.num_per_instance) * cores)
        return UnitWork(unit.name, cycles / self.clock_hz, 0.0, ops, ops * (unit.op_pj or 0.0))

    def _operations(self, node: Node, unit: Unit, share: float, elements: int) -> float:
        """Of each element that a reduction reads, else of the result, as the machine weighs the operator."""
        each = unit.ops_per_element.get(node.op_type, 1.0)
        reduced = [n.num_iterations for n in nests_of(node) if n.combine is not None]
        is_listed = node.op_type in unit.ops_per_element
        return each * (elements if is_listed or not reduced else max(reduced) * share)

    def _unit(self, work: Work, dtype: DType) -> tuple[Unit, float, bool]:
        """The first unit that takes a class of work, its rate per cycle, whether that counts products.

        An element type that the machine gives no rate for runs at the unit's slowest one.
        """
        name = self._name(dtype)
        for unit in self.machine.units:
            if not unit.takes(work):
                continue
            if table := unit.rates_of(work):
                return unit, _rate_of(table, name), work in MULTIPLYING
        raise MachineError(refusal(self.machine, lacks_of(self.machine, (work,))))

    def _name(self, dtype: DType) -> str:
        """The name of the type that a unit computes values of this type as."""
        return str(self.dtype if dtype.is_float else dtype)


def _rate_of(table: Mapping[str, float], name: str) -> float:
    return table.get(name, min(table.values()))


def only_moves(nodes: Sequence[Node]) -> bool:
    """Whether nodes together only bring elements to other places within the cores' buffers.

    Views move nothing, nor do look-ups in a constant table, whose rows arrive where they are wanted.
    """
    if any(work_of(node) is not Work.MOVEMENT or _looks_up(node) for node in nodes):
        return False
    return not all(map(is_view, nodes))


def _looks_up(node: Node) -> bool:
    return any(is_table(node, position) for position, v in enumerate(node.inputs) if v and v.is_constant)


def is_view(node: Node) -> bool:
    """Whether each result is a run of elements of an operand, in the same order: a look at what is there."""
    nests = nests_of(node)
    return len(nests) == len(list(node.results())) and all(map(_passes_on, nests))


def _passes_on(nest: Nest) -> bool:
    if not isinstance(nest.body, Read) or nest.combine is not None or nest.finish is not None:
        return False
    written, read = row_major_address(nest.write), row_major_address(nest.reads[nest.body.index])
    if written is None or read is None:
        return False
    walked = {dim.name for dim in nest.dims if dim.extent > 1}
    left, right = ({term for term in a.terms if term[0] in walked} for a in (written, read))
    return left == right


def is_read(node: Node, position: int) -> bool:
    """Whether a node reads an operand as it runs; the shape of a Reshape is known before."""
    nests = nests_of(node)
    return not nests or any(a.operand.key == ("input", position) for nest in nests for a in nest.reads)


def is_table(node: Node, position: int) -> bool:
    """Whether data say which rows of an operand are read."""
    return any(
        access.operand.key == ("input", position) and any(isinstance(i, Indirect) for i in access.index)
        for nest in nests_of(node)
        for access in nest.reads
    )


def works_of(node: Node) -> Iterator[Work]:
    """The operation classes of a node that units take."""
    work = work_of(node)
    rest = rest_of(node) if work in MULTIPLYING else None
    yield from (w for w in (work, None if rest is None else rest.work) if w not in (None, Work.MOVEMENT))


def work_of(node: Node) -> Work:
    """The operation class that takes most of a node's time."""
    nests = nests_of(node)
    products = contractions(nests)
    if not products:
        return _work_without_products(nests)
    main = max(products, key=lambda form: form.nest.num_iterations)
    return Work.DEPTHWISE if main.is_depthwise else Work.CONTRACTION


def rest_of(node: Node) -> Rest | None:
    """What the nests that multiply no matrices compute: the softmax of attention, the gates of an LSTM."""
    nests = [n for n in nests_of(node) if contraction_of(n) is None and nest_flops(n)]
    if not nests:
        return None
    return Rest(_work_without_products(nests), sum(n.num_iterations for n in nests))


def _work_without_products(nests: Sequence[Nest]) -> Work:
    if nests and not any(nest_flops(nest) for nest in nests):
        return Work.MOVEMENT
    if any(nest.combine is not None for nest in nests):
        return Work.REDUCTION
    if any(_calls_function(nest) for nest in nests):
        return Work.SPECIAL
    return Work.ELEMENTWISE


def _calls_function(nest: Nest) -> bool:
    parts = [part for part in (nest.body, nest.finish) if part is not None]
    calls = (e for part in parts for e in part.walk() if isinstance(e, Call))
    return any(FUNCTIONS[call.function].cost_flop > 1 for call in calls)


def shape_of(node: Node) -> Shape | None:
    """Rows and columns of the largest contraction that makes a node's result, as axes of that result.

    None where no contraction makes it: the products of attention may be laid out anew after the last one.
    """
    result = ("output", node.outputs.index(node.output))
    products = [
        form
        for form in contractions(nests_of(node))
        if form.nest.write.operand.key == result and form.nest.write.view is None
    ]
    if not products:
        return None
    main = max(products, key=lambda form: form.nest.num_iterations)
    return Shape(main.result_axes(main.rows), main.result_axes(main.columns))


def _filled(unit: Unit, shape: Shape, region: Region, binding: tuple[int, ...]) -> float:
    """The share of a matrix unit's tile that the part of one core fills."""
    if len(unit.tile) < 2:
        return 1.0
    own = [ceil((stop - start) / b) for (start, stop), b in zip(region, binding, strict=True)]
    rows = prod(own[axis] for axis in shape.rows)
    columns = prod(own[axis] for axis in shape.columns)
    full = _rounded(rows, unit.tile[0]) * _rounded(columns, unit.tile[1])
    return rows * columns / full


def _rounded(value: int, step: int) -> int:
    return -(-value // step) * step
