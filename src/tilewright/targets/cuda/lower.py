"""From a partition to kernels on tensors: which nests each kernel computes, and what is memory of another.

Nothing here knows in which order subgraphs will run, or where tensors will lie. Tensors are row-major.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.arrays import Array
from tilewright.ir.bounds import require_bounded_nests
from tilewright.ir.expr import Read
from tilewright.ir.fuse import FusedNodes, NestGroup
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Nest, Opaque, Operand
from tilewright.options import Accuracy
from tilewright.partition.base import Partition, Subgraph, make_subgraph
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.targets.cuda.attention import lower_attention
from tilewright.targets.cuda.kernel import Context, CountersOperand, Kernel, KernelArg, Packed, ReportsOperand
from tilewright.targets.cuda.loopnest import lower_loops
from tilewright.targets.cuda.loopnest.rows import lower_rows
from tilewright.targets.cuda.products import lower_made_product, lower_product
from tilewright.targets.cuda.products.match import with_activation
from tilewright.targets.cuda.rates import Rates
from tilewright.targets.llvm.attention import NUM_NESTS, attention_run
from tilewright.targets.llvm.exact import round_products
from tilewright.targets.llvm.layout import Declined, IndexCheck, OperandKey
from tilewright.targets.llvm.refs import linearise, simplify
from tilewright.targets.llvm.shared_loops import form_groups


@dataclass(frozen=True, slots=True)
class Local:
    """A temporary of a kernel's nests, or of several kernels of one unit."""

    unit: int
    position: int
    size_bytes: int

    @property
    def name(self) -> str:
        """What errors and reports call it."""
        return f"local {self.unit}.{self.position}"


Tensor = Value | Local


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An array that is loaded once, before any run."""

    data: Array


@dataclass(frozen=True, slots=True)
class Reports:
    """Where a launch notes indices outside their axes: of these nodes, axes and extents, in order."""

    checks: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """Zeros of 32 bits by which blocks of one launch tell which of them is the last."""

    number: int


VIEW_BYTES = 16
"""What kernels expect tensors to begin at a multiple of."""

Storage = Value | Local | Constant | Reports | Counters


@dataclass(frozen=True, slots=True, eq=False)
class KernelLaunch:
    """One kernel on tensors; `nodes` are the operators that it serves."""

    kernel: Kernel
    args: tuple[Storage, ...]
    nodes: tuple[Node, ...]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HostOperator:
    """An operator that runs in Python."""

    node: Node
    reason: str

    @property
    def reads(self) -> tuple[Value, ...]:
        """What it takes."""
        return tuple(dict.fromkeys(self.node.operands()))

    @property
    def writes(self) -> tuple[Value, ...]:
        """What it makes."""
        return tuple(self.node.results())


Work = KernelLaunch | HostOperator


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """What each subgraph runs, in order; `alias` maps a tensor to the one in whose memory it lies, and to the
    byte at which it begins there."""

    work: tuple[tuple[Work, ...], ...]
    alias: Mapping[Tensor, tuple[Tensor, int]]

    def root(self, tensor: Tensor) -> Tensor:
        """The tensor that owns the memory."""
        return place_of(self.alias, tensor)[0]

    def place(self, tensor: Tensor) -> tuple[Tensor, int]:
        """The same, and the byte of it at which a tensor begins."""
        return place_of(self.alias, tensor)


def place_of(alias: Mapping[Tensor, tuple[Tensor, int]], tensor: Tensor) -> tuple[Tensor, int]:
    """The end of a chain of aliases, and the byte of it at which a tensor begins."""
    offset = 0
    while tensor in alias:
        tensor, own = alias[tensor]
        offset += own
    return tensor, offset


def lower_partition(
    partition: Partition,
    rates: Rates,
    *,
    accuracy: Accuracy = "default",
    num_multiprocessors: Sequence[int],
    fuse: FusedNodes | None = None,
    progress: Progress | None = None,
) -> Lowered:
    """Kernels of every subgraph, whatever their order will be, cut for so many multiprocessors each;
    `progress` counts subgraphs."""
    lowering = _Lowering(partition, rates, accuracy, fuse or FusedNodes())
    work: list[tuple[Work, ...]] = []
    for number, subgraph in enumerate(partition.subgraphs):
        if progress is not None:
            progress("lower", number, len(partition.subgraphs))
        lowering.rates = replace(rates, num_multiprocessors=num_multiprocessors[number])
        work.append(tuple(lowering.subgraph(subgraph)))
    return Lowered(tuple(work), lowering.alias)


class _Lowering:
    def __init__(self, partition: Partition, rates: Rates, accuracy: Accuracy, fuse: FusedNodes) -> None:
        self.graph = partition.graph
        self.accuracy = accuracy
        self.rates = rates  # of the subgraph at hand
        self.fuse = fuse
        self.alias: dict[Tensor, tuple[Tensor, int]] = {}
        self.fixed: set[Tensor] = {*partition.graph.inputs, *partition.graph.outputs}
        self.num_units = 0

    def subgraph(self, subgraph: Subgraph) -> Iterator[Work]:
        """What a subgraph runs: each kernel of its form, composed as far as its nests allow."""
        for form in subgraph.kernels:
            nodes = tuple(subgraph.nodes[position] for position in form.nodes)
            is_whole = len(nodes) == len(subgraph.nodes)
            outputs = subgraph.outputs if is_whole else make_subgraph(0, nodes, self.graph).outputs
            made = self._together(nodes, outputs)
            if not isinstance(made, Declined):
                yield from made
                continue
            for node in nodes:
                alone = self._together((node,), tuple(node.results()))
                yield from [HostOperator(node, alone.reason)] if isinstance(alone, Declined) else alone

    def _together(self, nodes: tuple[Node, ...], outputs: tuple[Value, ...]) -> list[Work] | Declined:
        """The kernels of nodes whose nests are composed, or why there are none."""
        group = self.fuse(nodes, outputs)
        if isinstance(group, Opaque):
            return Declined(group.reason)
        require_bounded_nests(group.nests, group.inputs, group.outputs, "fusion")
        if self.accuracy == "strict":
            group = replace(group, nests=tuple(map(round_products, group.nests)))
        unit = _Unit(self.num_units, group)
        self.num_units += 1
        alias: dict[Tensor, tuple[Tensor, int]] = {}
        num_writers = Counter(nest.write.operand.key for nest in group.nests)
        nests: list[Nest] = []
        for nest in group.nests:
            if is_empty(nest):
                continue
            found = self._aliased(nest, unit, alias, is_alone=num_writers[nest.write.operand.key] == 1)
            if found is None:
                nests.append(nest)
            else:
                alias[found[0]] = found[1:]
        context = Context(self.rates, self.accuracy, unit.constants, unit.next_local)
        kernels = self._kernels(
            nests, context, {t for inner, (outer, _) in alias.items() for t in (inner, outer)}, unit
        )
        if isinstance(kernels, Declined):
            return kernels
        made: list[Work] = [self._launch(kernel, unit, nodes) for kernel in kernels]
        self.alias |= alias
        return made

    def _aliased(
        self, nest: Nest, unit: _Unit, alias: Mapping[Tensor, tuple[Tensor, int]], *, is_alone: bool
    ) -> tuple[Tensor, Tensor, int] | None:
        """Of a copy that need not be made: the tensor that gets no memory, and where in which it lies.

        The result lies where its source does; or the source, such as the branch of a concatenation, is made
        where the copy would put it.
        """
        start = copied_to(nest)
        if start is None:
            return None
        source, target = unit.tensor(nest.reads[0].operand), unit.tensor(nest.write.operand)
        known = {**self.alias, **alias}
        root, offset = place_of(known, source)
        is_whole = offset == 0 and root.size_bytes == source.size_bytes
        if source.size_bytes == target.size_bytes:
            # What callers are given is no part of something else.
            return (target, source, 0) if is_alone and (is_whole or target not in self.fixed) else None
        fixed = {place_of(known, value)[0] for value in self.fixed}
        is_made = root not in fixed and not (isinstance(root, Value) and root.is_constant)
        if start % VIEW_BYTES or not is_made or not is_whole or place_of(known, target)[0] is root:
            return None
        return root, target, start

    def _kernels(
        self, nests: Sequence[Nest], context: Context, named: set[Tensor], unit: _Unit
    ) -> list[Kernel] | Declined:
        """Kernels of a group's nests in order: of products, of runs of nests row by row, of single nests.

        Temporaries among the `named` tensors are known by other names, too, and so lie in memory.
        """
        made: list[Kernel] = []
        run: list[Nest] = []

        def finish() -> Declined | None:
            for numbers in form_groups(run):
                part = [run[number] for number in numbers]
                is_named = any(unit.tensor(n.write.operand) in named for n in part[:-1])
                if len(part) > 1 and not is_named:
                    rows = lower_rows(part, [n for n in nests if n not in part])
                    if not isinstance(rows, Declined):
                        made.append(rows)
                        continue
                for nest in part:
                    loops = lower_loops(nest)
                    if isinstance(loops, Declined):
                        return loops
                    made.append(loops)
            run.clear()
            return None

        skip = 0
        for number, nest in enumerate(nests):
            if skip:
                skip -= 1
                continue
            attention = self._attention(nests, number, context, named, unit)
            if attention is not None:
                declined = finish()
                if declined is not None:
                    return declined
                made.append(attention)
                unit.count_local(attention)
                skip = NUM_NESTS - 1
                continue
            with_makers = self._with_makers(nests, number, context, named, unit)
            if with_makers is not None:
                declined = finish()
                if declined is not None:
                    return declined
                kernel, skip = with_makers
                made.append(kernel)
                continue
            product = lower_product(nest, replace(context, next_local=unit.next_local))
            if isinstance(product, Declined):
                run.append(nest)
                continue
            declined = finish()
            if declined is not None:
                return declined
            made.append(product)
            unit.count_local(product)
        return finish() or made

    def _attention(
        self, nests: Sequence[Nest], first: int, context: Context, named: set[Tensor], unit: _Unit
    ) -> Kernel | None:
        """The kernel of the nests from one on that are an attention whose temporaries nothing else knows."""
        run = attention_run(nests, first)
        if run is None or any(unit.tensor(n.write.operand) in named for n in run[:-1]):
            return None
        kernel = lower_attention(run, context.accuracy, context.rates, unit.next_local)
        return None if isinstance(kernel, Declined) else kernel

    def _with_makers(
        self, nests: Sequence[Nest], number: int, context: Context, named: set[Tensor], unit: _Unit
    ) -> tuple[Kernel, int] | None:
        """The kernel of nests that make the factor of a product behind them, and how many these are."""
        for maker, place in made_chains(nests, number):
            if any(unit.tensor(n.write.operand) in named for n in nests[number:place]):
                continue
            kernel = lower_made_product(maker, nests[place], context)
            if not isinstance(kernel, Declined):
                return kernel, place - number
        return None

    def _launch(self, kernel: Kernel, unit: _Unit, nodes: tuple[Node, ...]) -> KernelLaunch:
        args = tuple(unit.storage(arg, kernel, nodes) for arg in kernel.args)
        operands = [a for a in kernel.args if isinstance(a, Operand)]
        writes = [unit.tensor(o) for o in operands if o.key in kernel.writes]
        tensors = (s for s in args if isinstance(s, Value | Local))
        reads = [t for t in tensors if t not in writes and not (isinstance(t, Value) and t.is_constant)]
        return KernelLaunch(kernel, args, nodes, tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes)))


class _Unit:
    """The operands of a group as tensors of the model."""

    def __init__(self, number: int, group: NestGroup) -> None:
        self.number, self.group = number, group
        self.next_local = len(group.locals)
        self.constants: dict[OperandKey, Array] = {
            ("input", i): v.data for i, v in enumerate(group.inputs) if v.data is not None
        }

    def count_local(self, kernel: Kernel) -> None:
        """Leave the next temporary to later kernels, where this one has taken it."""
        own = ("local", self.next_local)
        self.next_local += any(isinstance(a, Operand) and a.key == own for a in kernel.args)

    def tensor(self, operand: Operand) -> Tensor:
        """The tensor that an operand is."""
        match operand.kind:
            case "input":
                return self.group.inputs[operand.position]
            case "output":
                return self.group.outputs[operand.position]
            case "local":
                held = (
                    self.group.local_values[operand.position]
                    if operand.position < len(self.group.local_values)
                    else None
                )
                if held is not None:
                    return held
                self.next_local = max(self.next_local, operand.position + 1)
                size_bytes = operand.num_elements * operand.dtype.size_bytes
                return Local(self.number, operand.position, size_bytes)
        raise AssertionError(f"{operand.kind} is no tensor")

    def storage(self, arg: KernelArg, kernel: Kernel, nodes: Sequence[Node]) -> Storage:
        """What a kernel is given."""
        if isinstance(arg, ReportsOperand):
            return Reports(tuple(_described(check, nodes) for check in kernel.checks))
        if isinstance(arg, CountersOperand):
            return Counters(arg.number)
        if isinstance(arg, Packed):
            return Constant(arg.arrange(self.constants[arg.source.key]))
        if arg.data is not None:
            return Constant(arg.data)
        return self.tensor(arg)


def _described(check: IndexCheck, nodes: Sequence[Node]) -> tuple[str, int, int]:
    node = nodes[check.node]
    return f"{node.op_type} {node.name!r}", check.axis, check.extent


def made_chains(nests: Sequence[Nest], number: int) -> Iterator[tuple[Nest, int]]:
    """Nests from one on, as one, that may make a factor of the nest at a place; first with an activation."""
    if not _makes_for_next(nests, number):
        return
    if _makes_for_next(nests, number + 1):
        both = with_activation(nests[number], nests[number + 1])
        if both is not None:
            yield both, number + 2
    yield nests[number], number + 1


def _makes_for_next(nests: Sequence[Nest], number: int) -> bool:
    """Whether a nest writes a temporary that the next one reads once, and nothing else touches."""
    if number + 1 >= len(nests) or nests[number].write.operand.kind != "local":
        return False
    key = nests[number].write.operand.key
    users = [i for i, n in enumerate(nests) for a in (n.write, *n.reads) if a.operand.key == key]
    return users == [number, number + 1]


def is_empty(nest: Nest) -> bool:
    """Whether a nest writes nothing."""
    return any(dim.extent == 0 for dim in nest.parallel_dims)


def copied_to(nest: Nest) -> int | None:
    """The byte of its target from which on a nest copies its whole source in order; None for any other."""
    if nest.combine is not None or len(nest.reads) != 1 or not isinstance(nest.body, Read):
        return None
    source, target = nest.reads[0].operand, nest.write.operand
    if source.kind == "table" or source.dtype is not target.dtype:
        return None
    linear = linearise(nest, {})
    if isinstance(linear, Declined):
        return None
    linear = simplify(linear)
    (read,), write = linear.refs, linear.write
    if any(ref.guards or ref.tables or ref.data for ref in (read, write)) or read.form.offset:
        return None
    if len(linear.dims) > 1 or prod(d.extent for d in linear.dims) != source.num_elements:
        return None
    if any(ref.coefficient(d.name) != 1 for d in linear.dims for ref in (read, write)):
        return None
    return write.form.offset * target.dtype.size_bytes
