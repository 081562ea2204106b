"""From a schedule to kernel launches: layouts, kernels, aliases, and the buffers they need.

A step runs one kernel, the kernels of a stage's groups side by side, or a host operator. Copies that
move nothing under the chosen layouts (reshapes, transposes between them) become aliases: the tensor is
another name for the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.ir.expr import Read
from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Access, Dim, Nest, Opaque, Operand, affine
from tilewright.options import Accuracy
from tilewright.progress import Progress
from tilewright.schedule.base import Schedule
from tilewright.targets.cpu.addresses import Walk, access_walk, looping
from tilewright.targets.cpu.arrange import arrange_constants, transposed
from tilewright.targets.cpu.exact import round_products
from tilewright.targets.cpu.fused import Blocking, Chain, find_chains, lower_fused
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout, Layouts, OperandKey, Packed
from tilewright.targets.cpu.layouts import Tensor, assign_layouts
from tilewright.targets.cpu.loopnest import lower_nests
from tilewright.targets.cpu.products import Product, Products
from tilewright.targets.cpu.repeats import Repeats
from tilewright.targets.cpu.select import lower_product
from tilewright.targets.cpu.views import TensorOf, find_views
from tilewright.tuning import NO_CHOICES, Choices

# With this many channels or fewer an input is read as it comes: reordering it first would not pay.
_MAX_PLANAR_CHANNELS = 8
# A constant that so many nodes read is one that steps of time share; what runs between them is small. At
# batch 1, with 2 MiB of cache, 24-bit weights take 1.3 times as long up to 1 MiB, and as long at 1.6 MiB.
_MIN_REPEATED_READS = 4
_CACHED_SHARE = 0.625


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """A constant of the model in the arrangement one kernel wants."""

    value: Value
    packed: Packed


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A constant that an operator brought along."""

    operand: Operand


Storage = Value | tuple[int, int] | PackedTensor | Table


@dataclass(frozen=True, slots=True, eq=False)
class KernelLaunch:
    """One kernel on tensors of the model; `nests` are what it computes, `nodes` the operators it serves.

    Kernels that only prepare the operands of another have no nests.
    """

    kernel: Kernel
    args: tuple[Storage, ...]
    nodes: tuple[Node, ...]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    may_overwrite: tuple[Tensor, ...] = ()
    nests: tuple[Nest, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class HostOperator:
    """An operator without nests, run in Python on row-major tensors."""

    node: Node
    reason: str


Step = tuple[KernelLaunch, ...] | HostOperator


@dataclass(frozen=True, slots=True, eq=False)
class LoweredModel:
    """Everything the CPU runs for one model, before addresses are known.

    `alias` maps a tensor to the tensor whose memory it shares, `offsets` to where in it it starts (elements;
    0 if absent). `layouts` holds the tensors that are not row-major, `locals` temporaries between kernels,
    `products` the contractions by the signature that their kernels carry.
    """

    steps: tuple[Step, ...]
    alias: Mapping[Tensor, Tensor]
    offsets: Mapping[Tensor, int]
    layouts: Mapping[Tensor, Layout]
    locals: Mapping[Tensor, Operand]
    products: Products

    def root(self, tensor: Tensor) -> Tensor:
        """The tensor that owns the memory."""
        return _root(self.alias, tensor)

    def root_offset(self, tensor: Tensor) -> int:
        """Elements from the start of the root's memory to the tensor."""
        return _root_offset(self.alias, self.offsets, tensor)

    @property
    def host_operators(self) -> tuple[HostOperator, ...]:
        """Operators that run in Python."""
        return tuple(s for s in self.steps if isinstance(s, HostOperator))


def lower_schedule(
    schedule: Schedule,
    isa: Isa,
    progress: Progress | None = None,
    *,
    accuracy: Accuracy = "default",
    choices: Choices = NO_CHOICES,
) -> LoweredModel:
    """Kernels for every subgraph, in the order and stages of the schedule; `progress` counts stages.

    `choices` say by signature how to compute products; the estimate decides for all others.
    """
    return _Lowering(schedule, isa, accuracy, choices).run(progress or (lambda what, done, total: None))


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """One subgraph's work, or that of a chain: nests, or a node for the host."""

    index: int
    work: NestGroup | HostOperator
    nodes: tuple[Node, ...]
    blocking: Blocking | None = None  # of one fused kernel


class _Lowering:
    def __init__(self, schedule: Schedule, isa: Isa, accuracy: Accuracy, choices: Choices) -> None:
        self.schedule = schedule
        self.choices = choices
        self.products: dict[str, Product] = {}
        self.isa = isa
        self.accuracy = accuracy
        self.graph = schedule.partition.graph
        self.stages: list[list[list[_Unit]]] = []
        self.layouts: dict[Tensor, Layout] = {}
        self.alias: dict[Tensor, Tensor] = {}
        self.offsets: dict[Tensor, int] = {}
        self.locals: dict[Tensor, Operand] = {}
        self.num_units = 0
        self.repeats = Repeats()
        self._num_users: dict[Value, int] = {}
        # Model inputs and outputs that kernels use in another layout than the caller: the copy they use.
        self.shadows: dict[Value, Tensor] = {}

    def run(self, progress: Progress) -> LoweredModel:
        for stage in find_chains(self.schedule, self.isa):
            self.stages.append([[u for chain in group for u in self._units(chain)] for group in stage])
        self._choose_layouts()
        self._choose_views()
        steps: list[Step] = [(launch,) for launch in self._reorder_inputs()]
        for number, stage_units in enumerate(self.stages):
            progress("lower", number, len(self.stages))
            steps.extend(_interleave([[s for u in group for s in self._steps(u)] for group in stage_units]))
        steps.extend((launch,) for launch in self._reorder_outputs())
        return LoweredModel(tuple(steps), self.alias, self.offsets, self.layouts, self.locals, self.products)

    def _units(self, chain: Chain) -> list[_Unit]:
        """The work of a chain: the results of its last subgraph are wanted."""
        subgraphs = [self.schedule.partition.subgraphs[i] for i in chain.subgraph_ids]
        nodes = tuple(node for subgraph in subgraphs for node in subgraph.nodes)
        fused = fuse_nodes(nodes, subgraphs[-1].outputs)
        if not isinstance(fused, Opaque):
            return [self._unit(fused, nodes, chain.blocking)]
        units: list[_Unit] = []
        for node in nodes:
            own = fuse_nodes((node,), tuple(node.results()))
            work = HostOperator(node, own.reason) if isinstance(own, Opaque) else own
            units.append(self._unit(work, (node,)))
        return units

    def _unit(
        self, work: NestGroup | HostOperator, nodes: tuple[Node, ...], blocking: Blocking | None = None
    ) -> _Unit:
        self.num_units += 1
        if isinstance(work, NestGroup) and self.accuracy == "strict":
            work = replace(work, nests=tuple(map(round_products, work.nests)))
        return _Unit(self.num_units - 1, work, nodes, blocking)

    # Layouts.

    def _choose_layouts(self) -> None:
        units = [u for stage in self.stages for group in stage for u in group]
        groups = [u.work if isinstance(u.work, NestGroup) else _EMPTY for u in units]
        host = {
            v
            for u in units
            if isinstance(u.work, HostOperator)
            for v in (*u.work.node.operands(), *u.work.node.results())
        }
        pinned = frozenset(host)
        layouts = assign_layouts(groups, pinned)
        planar = {
            v
            for v in self.graph.inputs
            if v.shape and v in layouts and v.shape[layouts[v].order[-1]] <= _MAX_PLANAR_CHANNELS
        }
        if planar:
            layouts = assign_layouts(groups, pinned | planar)
        self.layouts = layouts
        for value in dict.fromkeys((*self.graph.inputs, *self.graph.outputs)):
            layout = layouts.get(value)
            if layout is not None and not layout.is_row_major:
                self.shadows[value] = self._new_local(Operand("local", 0, value.dtype, value.shape))
                layouts[self.shadows[value]] = layouts.pop(value)

    def _choose_views(self) -> None:
        """Leave out copies into concatenations and out of slices."""
        units = [u for stage in self.stages for group in stage for u in group]
        fixed: set[Tensor] = {*self.graph.inputs, *self.graph.outputs, *self.shadows.values()}
        groups: list[tuple[NestGroup, TensorOf]] = []
        for unit in units:
            if isinstance(unit.work, HostOperator):
                fixed.update((*unit.work.node.operands(), *unit.work.node.results()))
                continue
            names = _Names(self, unit.index, unit.work)
            groups.append((unit.work, names.tensor))
            for nest in unit.work.nests:
                for access in (*nest.reads, nest.write):
                    tensor = names.tensor(access.operand)
                    is_constant = isinstance(tensor, Value) and tensor.is_constant
                    if tensor is not None and (access.view is not None or is_constant):
                        fixed.add(tensor)
        for tensor, view in find_views(groups, self.layouts, frozenset(fixed)).items():
            self.alias[tensor] = view.parent
            self.offsets[tensor] = view.offset
            order = self._layout(tensor, len(view.steps)).order
            self.layouts[tensor] = Layout(order, view.steps)

    def _layout(self, tensor: Tensor, rank: int) -> Layout:
        return self.layouts.get(tensor, Layout.row_major(rank))

    def _reorder_inputs(self) -> list[KernelLaunch]:
        return [self._copy(v, self.shadows[v], v) for v in self.graph.inputs if v in self.shadows]

    def _reorder_outputs(self) -> list[KernelLaunch]:
        inputs = set(self.graph.inputs)
        return [
            self._copy(tensor, value, value) for value, tensor in self.shadows.items() if value not in inputs
        ]

    def _new_local(self, operand: Operand) -> Tensor:
        tensor = (-1 - len(self.locals), 0)
        self.locals[tensor] = operand
        return tensor

    def _copy(self, source: Tensor, target: Tensor, like: Value) -> KernelLaunch:
        dims = tuple(Dim(f"d{a}", e) for a, e in enumerate(like.shape))
        index = tuple(affine(d.name) for d in dims)
        read = Access(Operand("input", 0, like.dtype, like.shape), index)
        write = Access(Operand("output", 0, like.dtype, like.shape), index)
        nest = Nest(dims, (read,), write, Read(0, like.dtype.compute))
        rank = len(like.shape)
        layouts = {("input", 0): self._layout(source, rank), ("output", 0): self._layout(target, rank)}
        (kernel,) = lower_nests((nest,), layouts, self.isa)
        args: list[Storage] = []
        for arg in kernel.args:
            assert isinstance(arg, Operand)
            args.append(source if arg.kind == "input" else target)
        return KernelLaunch(kernel, tuple(args), (), (source,), (target,), nests=(nest,))

    # Kernels.

    def _steps(self, unit: _Unit) -> list[Step]:
        if isinstance(unit.work, HostOperator):
            return [unit.work]
        group = unit.work
        names = _Names(self, unit.index, group)
        fused = None if unit.blocking is None else self._fused(group, unit.blocking, names)
        if fused is not None:
            return [(self._launch(fused, names, unit, group.nests),)]
        launches: list[Step] = []
        for nests, kernels in self._segments(group, names):
            if kernels is None:
                nests = tuple(names.escape(nest) for nest in nests)
                names.arrange_constants(nests)
                layouts = names.layouts(nests)
                kernels = self.repeats.nests(nests, layouts, partial(lower_nests, nests, layouts, self.isa))
            launches.extend((self._launch(k, names, unit, nests),) for k in kernels)
            names.forget_arrangements()
        return launches

    def _fused(self, group: NestGroup, blocking: Blocking, names: _Names) -> Kernel | None:
        """One kernel that computes the group block by block, if there is one."""
        own = {t for o in group.locals if (t := names.tensor(o)) is not None}
        if own & (set(self.alias) | set(self.alias.values())):
            return None
        layouts = names.layouts(group.nests)
        kernel = lower_fused(group, layouts, self.isa, blocking, accuracy=self.accuracy)
        return None if isinstance(kernel, Declined) else kernel

    def _segments(
        self, group: NestGroup, names: _Names
    ) -> list[tuple[tuple[Nest, ...], tuple[Kernel, ...] | None]]:
        """The group's nests in order: each contraction with its kernels, runs of others without (yet).

        Copies that move nothing are left out. Temporaries that more than one segment or an alias uses are
        marked as escaping: they need memory that outlives a kernel. Nests that meet in memory under different
        names come into different segments, because generators order nests by names alone.
        """
        segments: list[tuple[tuple[Nest, ...], tuple[Kernel, ...] | None]] = []
        users: dict[OperandKey, set[int]] = {}
        for nest in group.nests:
            touched = [a.operand.key for a in (*nest.reads, nest.write) if a.operand.kind == "local"]
            if self._is_alias(nest, names):
                for key in touched:
                    users.setdefault(key, set()).add(-1)
                continue
            layouts = names.layouts([nest])
            kernels = self._product(nest, layouts, names)
            if not isinstance(kernels, Declined):
                names.declare(kernels)
                segments.append(((nest,), kernels))
            elif segments and segments[-1][1] is None and not self._meets(nest, segments[-1][0], names):
                segments[-1] = ((*segments[-1][0], nest), None)
            else:
                segments.append(((nest,), None))
            for key in touched:
                users.setdefault(key, set()).add(len(segments))
        for key, numbers in users.items():
            if len(numbers) > 1:
                names.mark_escaping(key)
        return segments

    def _product(
        self, nest: Nest, layouts: Mapping[OperandKey, Layout], names: _Names
    ) -> tuple[Kernel, ...] | Declined:
        """Kernels of a contraction, which carry its signature, or why it is none."""
        constants, next_local = names.constants, names.num_locals
        cached = names.cached_constants(self.isa.caches.l2_bytes)
        make = partial(
            lower_product,
            nest,
            layouts,
            self.isa,
            constants=constants,
            next_local=next_local,
            accuracy=self.accuracy,
            choices=self.choices,
            cached=cached,
        )
        kernels = self.repeats.product(nest, layouts, (constants, cached), next_local, make)
        if isinstance(kernels, Declined):
            return kernels
        if kernels[-1].signature:
            self.products[kernels[-1].signature] = Product(nest, layouts, constants)
        return kernels

    def _meets(self, nest: Nest, before: Sequence[Nest], names: _Names) -> bool:
        """Whether a nest reads what earlier ones write under another name, or the other way round.

        Two names that are written both never meet: they are parts of one concatenation.
        """
        reads = [t for a in nest.reads if (t := names.tensor(a.operand)) is not None]
        written = names.tensor(nest.write.operand)
        for other in before:
            sources = [t for a in other.reads if (t := names.tensor(a.operand)) is not None]
            pairs = [(t, names.tensor(other.write.operand)) for t in reads]
            pairs += [(t, written) for t in sources]
            for t, target in pairs:
                if target is not None and t != target and self._root(t) == self._root(target):
                    return True
        return False

    def _root(self, tensor: Tensor) -> Tensor:
        return _root(self.alias, tensor)

    def num_users(self, value: Value) -> int:
        """Nodes that read a value, counted once: thousands of steps of time may ask."""
        if value not in self._num_users:
            self._num_users[value] = len(value.users)
        return self._num_users[value]

    def _launch(self, kernel: Kernel, names: _Names, unit: _Unit, nests: tuple[Nest, ...]) -> KernelLaunch:
        args = tuple(names.storage(a) for a in kernel.args)
        written = {n.write.operand.key for n in nests} | {
            a.key
            for a in kernel.args
            if isinstance(a, Operand) and a.kind == "local" and a.key in names.extra
        }
        tensors = [(a, names.tensor(a)) for a in kernel.args if isinstance(a, Operand)]
        writes = tuple(t for a, t in tensors if t is not None and a.key in written)
        reads = tuple(t for a, t in tensors if t is not None)
        overwrite = self._may_overwrite(nests[0], kernel, names) if len(nests) == 1 else ()
        computed = kernel.nests or (nests if kernel.macs or kernel.parts else ())
        return KernelLaunch(
            kernel, args, unit.nodes, reads, tuple(dict.fromkeys(writes)), overwrite, computed
        )

    def _is_alias(self, nest: Nest, names: _Names) -> bool:
        """Whether the nest copies elements to where they are already; then remember the alias."""
        if nest.combine is not None or not isinstance(nest.body, Read) or len(nest.reads) != 1:
            return False
        source, target = names.tensor(nest.reads[0].operand), names.tensor(nest.write.operand)
        if source is None or target is None or nest.reads[0].operand.dtype is not nest.write.operand.dtype:
            return False
        if isinstance(source, Value) and source.is_constant:
            return False
        layouts = names.layouts([nest])
        written = _place(nest.write, nest, layouts)
        read = _place(nest.reads[0], nest, layouts)
        if written is None or read is None:
            return False
        if _root(self.alias, source) == _root(self.alias, target):
            starts = [_root_offset(self.alias, self.offsets, t) for t in (source, target)]
            return (read[0], read[1] + starts[0]) == (written[0], written[1] + starts[1])
        if target in self.alias or read != written or not self._is_dense(source):
            return False
        if nest.num_iterations != nest.write.operand.num_elements:
            return False
        if nest.reads[0].operand.num_elements != nest.write.operand.num_elements:
            return False
        if target in self.graph.outputs and self._is_taken(_root(self.alias, source)):
            return False
        if names.num_writes(nest.write.operand.key) != 1:
            return False  # what is written over the copy would be written over its source
        self.alias[target] = source
        return True

    def _is_dense(self, tensor: Tensor) -> bool:
        layout = self.layouts.get(tensor)
        return layout is None or layout.steps is None

    def _is_taken(self, root: Tensor) -> bool:
        """Whether a tensor's memory is given by the caller already, as an input or another output."""
        given = set(self.graph.outputs) | set(self.graph.inputs)
        return root in given or any(t in given for t in self.alias if _root(self.alias, t) == root)

    def _may_overwrite(self, nest: Nest, kernel: Kernel, names: _Names) -> tuple[Tensor, ...]:
        """Operands read only at exactly the element being written: their memory may become the result's.

        Loop nests that reduce, or read another operand across the lanes of the result, may write an element
        twice (blocks of a transpose overlap at the edge), so nothing may lie under their result.
        """
        layouts = names.layouts([nest])
        written = _place(nest.write, nest, layouts)
        passed = {a.key for a in kernel.args if isinstance(a, Operand)}
        if written is None or nest.write.operand.key not in passed:
            return ()
        if kernel.template == "loop-nest" and not _reads_along(nest, written[0], layouts):
            return ()
        result: list[Tensor] = []
        for access in nest.reads:
            tensor = names.tensor(access.operand)
            same = [a for a in nest.reads if a.operand.key == access.operand.key]
            if tensor is None or access.operand.key not in passed:
                continue
            if access.operand.dtype.size_bytes != nest.write.operand.dtype.size_bytes:
                continue
            target = names.tensor(nest.write.operand)
            if target is None or not self._is_dense(tensor) or not self._is_dense(target):
                continue
            if all(_place(a, nest, layouts) == written for a in same):
                result.append(tensor)
        return tuple(dict.fromkeys(result))


class _Names:
    """What a group's operands are in the model."""

    def __init__(self, lowering: _Lowering, index: int, group: NestGroup) -> None:
        self._lowering = lowering
        self._index = index
        self._group = group
        self.extra: set[OperandKey] = set()
        self._arranged: dict[OperandKey, Layout] = {}
        self._escaping: dict[OperandKey, Operand] = {}
        self.num_locals = len(group.locals)
        self.constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
        for operand in group.locals:
            lowering.locals[index, operand.position] = operand

    def tensor(self, operand: Operand) -> Tensor | None:
        """The tensor behind an operand; None for tables."""
        match operand.kind:
            case "input":
                value = self._group.inputs[operand.position]
                return self._lowering.shadows.get(value, value)
            case "output":
                if operand.position >= len(self._group.outputs):
                    return (self._index, operand.position - len(self._group.outputs))
                value = self._group.outputs[operand.position]
                return self._lowering.shadows.get(value, value)
            case "local":
                if operand.position >= len(self._group.locals):
                    self._lowering.locals[self._index, operand.position] = operand
                    self.extra.add(operand.key)
                    self.num_locals = max(self.num_locals, operand.position + 1)
                return (self._index, operand.position)
        return None

    def num_writes(self, key: OperandKey) -> int:
        """Nests of the group that write an operand."""
        return sum(nest.write.operand.key == key for nest in self._group.nests)

    def cached_constants(self, cache_bytes: int) -> frozenset[OperandKey]:
        """Constants that the kernel before may have left in a cache: each step of time reads the same."""
        return frozenset(
            ("input", position)
            for position, value in enumerate(self._group.inputs)
            if value.is_constant
            and self._lowering.num_users(value) >= _MIN_REPEATED_READS
            and value.size_bytes <= _CACHED_SHARE * cache_bytes
        )

    def declare(self, kernels: Sequence[Kernel]) -> None:
        """Take note of the temporaries that a generator added."""
        for kernel in kernels:
            for arg in kernel.args:
                if isinstance(arg, Operand):
                    self.tensor(arg)

    def mark_escaping(self, key: OperandKey) -> None:
        """A temporary that needs memory of its own: generators of loops keep the others to themselves."""
        local = self._group.locals[key[1]]
        position = len(self._group.outputs) + local.position
        self._escaping[key] = replace(local, kind="output", position=position)

    def escape(self, nest: Nest) -> Nest:
        """The nest with escaping temporaries as outputs, which generators never keep to themselves."""

        def renamed(access: Access) -> Access:
            found = self._escaping.get(access.operand.key)
            return access if found is None else replace(access, operand=found)

        return replace(nest, reads=tuple(renamed(a) for a in nest.reads), write=renamed(nest.write))

    def storage(self, arg: Operand | Packed) -> Storage:
        """What to pass for a kernel argument."""
        if isinstance(arg, Packed):
            value = self._group.inputs[arg.source.position]
            return PackedTensor(value, arg)
        tensor = self.tensor(arg)
        if isinstance(tensor, Value) and arg.key in self._arranged:
            return PackedTensor(tensor, transposed(arg, self._arranged[arg.key]))
        return Table(arg) if tensor is None else tensor

    def forget_arrangements(self) -> None:
        """The next kernel sees constants row-major again."""
        self._arranged.clear()

    def arrange_constants(self, nests: Sequence[Nest]) -> None:
        """Choose the layouts of the constants that the next kernel reads."""
        self._arranged = arrange_constants(nests, self.layouts(nests), self.constants)

    def layouts(self, nests: Sequence[Nest]) -> dict[OperandKey, Layout]:
        """The layout of every operand the nests touch."""
        result: dict[OperandKey, Layout] = {}
        for nest in nests:
            for access in (*nest.reads, nest.write):
                operand = access.operand
                tensor = self.tensor(operand)
                layout = Layout.row_major(len(operand.shape))
                if tensor is not None:
                    layout = self._lowering.layouts.get(tensor, layout)
                result[operand.key] = self._arranged.get(operand.key, layout)
        return result


_EMPTY = NestGroup((), (), (), (), ())


def _root(alias: Mapping[Tensor, Tensor], tensor: Tensor) -> Tensor:
    while tensor in alias:
        tensor = alias[tensor]
    return tensor


def _root_offset(alias: Mapping[Tensor, Tensor], offsets: Mapping[Tensor, int], tensor: Tensor) -> int:
    total = 0
    while tensor in alias:
        total += offsets.get(tensor, 0)
        tensor = alias[tensor]
    return total


def _place(access: Access, nest: Nest, layouts: Layouts) -> Walk | None:
    """The walk of the dims that loop, for comparing accesses; None if it is not affine or padded."""
    found = None if access.fill is not None else access_walk(access, layouts)
    if found is None or isinstance(found, Declined):
        return None
    return looping(found[0], nest.extents), found[1]


def _reads_along(nest: Nest, written: Mapping[str, int], layouts: Layouts) -> bool:
    """Whether an elementwise nest reads every operand along the dim in which its result is contiguous."""
    if nest.combine is not None:
        return False
    contiguous = [dim for dim, step in written.items() if step == 1]
    for access in nest.reads:
        read = _place(access, nest, layouts)
        if read is None or any(step == 1 and dim not in contiguous for dim, step in read[0].items()):
            return False
    return True


def _interleave(groups: Sequence[Sequence[Step]]) -> list[Step]:
    """Steps of groups that run side by side: the first of each together, then the second of each, ..."""
    if len(groups) == 1:
        return list(groups[0])
    steps: list[Step] = []
    for position in range(max((len(g) for g in groups), default=0)):
        together: list[KernelLaunch] = []
        for group in groups:
            if position < len(group):
                step = group[position]
                if isinstance(step, HostOperator):
                    steps.append(step)
                else:
                    together.extend(step)
        if together:
            steps.append(tuple(together))
    return steps
