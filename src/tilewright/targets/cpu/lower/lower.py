"""From a partition to kernels: layouts, aliases, views and the kernels of every subgraph.

Nothing here knows in which order subgraphs will run. Copies that move nothing under the chosen layouts
(reshapes, transposes between them) become aliases: the tensor is another name for the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.ir.bounds import require_bounded_nests
from tilewright.ir.expr import Read
from tilewright.ir.fuse import FusedNodes, NestGroup, steps_group
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Access, Dim, Nest, Opaque, Operand, RowsOf, Stepwise, Walks, affine
from tilewright.ir.past import past_inputs, with_past_loops
from tilewright.ir.rows import RowAxes, rows_of, with_row_loops, without_row_loops
from tilewright.options import Accuracy
from tilewright.partition.base import Partition, Subgraph, make_subgraph
from tilewright.partition.form import KernelForm
from tilewright.progress import Progress, checkpoint
from tilewright.records import dataclass
from tilewright.targets.cpu.attention import lower_attention
from tilewright.targets.cpu.fused import lower_fused
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import REPORTS, ROWS, Declined, Kernel, KernelArg, Layout, OperandKey
from tilewright.targets.cpu.loopnest import chooser_of, lower_nests
from tilewright.targets.cpu.lower.layouts import LAYOUT, ROW_MAJOR, Tensor, assign_layouts
from tilewright.targets.cpu.lower.lowered import (
    HostOperator,
    KernelLaunch,
    LoweredPartition,
    NumRows,
    Reports,
    Storage,
)
from tilewright.targets.cpu.lower.lowered_forms import partition_as_lowered
from tilewright.targets.cpu.lower.sharing import SharedMemory, make_alias, may_overwrite
from tilewright.targets.cpu.lower.tensors import ModelTensors, Names
from tilewright.targets.cpu.lower.views import TensorOf, find_views
from tilewright.targets.cpu.product.select import lower_product
from tilewright.targets.cpu.products import Product
from tilewright.targets.cpu.recurrent import lower_steps
from tilewright.targets.cpu.repeats import Repeats
from tilewright.targets.cpu.runtime.executor import CheckedIndex
from tilewright.targets.cpu.template import Context
from tilewright.targets.cpu.trees import lower_trees
from tilewright.targets.llvm.attention import attention_run
from tilewright.targets.llvm.exact import round_products
from tilewright.tuning import NO_CHOICES, Choice, Choices

# With this many channels or fewer an input is read as it comes: reordering it first would not pay.
_MAX_PLANAR_CHANNELS = 8


def lower_partition(
    partition: Partition,
    isa: Isa,
    progress: Progress | None = None,
    *,
    accuracy: Accuracy = "default",
    choices: Choices = NO_CHOICES,
    fuse: FusedNodes | None = None,
    repeats: Repeats | None = None,
    has_rows: bool = True,
) -> LoweredPartition:
    """Kernels for every subgraph, whatever their order will be; `progress` counts subgraphs.

    `choices` say how to compute products, everywhere or in one subgraph; the estimate decides for all others.
    `fuse` remembers groups of the graph's nodes, `repeats` the kernels of earlier lowerings with the same
    choices. With `has_rows`, a run may have fewer rows than the graph, where it says which axes hold them.
    """
    lowering = _Lowering(partition, isa, accuracy, choices, fuse or FusedNodes(), repeats or Repeats())
    lowering.row_axes = rows_of(partition.graph) if has_rows and not partition.graph.past_axes else None
    return lowering.run(progress or (lambda what, done, total: None))


@dataclass(frozen=True, slots=True, eq=False)
class StepLoop:
    """A node that works step by step; its group has the nests of all steps."""

    node: Node
    description: Stepwise
    group: NestGroup


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """A node that data steer through tables; its group has operands and no nests."""

    node: Node
    description: Walks
    group: NestGroup


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """What is lowered together: the nests of a kernel of a form, or of one node, or a node for the host."""

    index: int
    work: NestGroup | StepLoop | Walk | HostOperator
    nodes: tuple[Node, ...]
    form: KernelForm


class _Lowering:
    def __init__(
        self,
        partition: Partition,
        isa: Isa,
        accuracy: Accuracy,
        choices: Choices,
        fuse: FusedNodes,
        repeats: Repeats,
    ) -> None:
        self.partition = partition
        self.fuse = fuse
        self.choices = choices
        self.products: dict[str, Product] = {}
        self.isa = isa
        self.accuracy = accuracy
        self.graph = partition.graph
        self.tensors = ModelTensors(self.graph)
        self.units: list[_Unit] = []
        self.repeats = repeats
        self.row_axes: RowAxes | None = None
        self.pasts = past_inputs(partition.graph)
        self.declined: set[tuple[int, KernelForm]] = set()  # with the number of the subgraph
        self.separate: set[Value] = set()
        self.row_major: set[Value] = set()  # as forms say

    def run(self, progress: Progress) -> LoweredPartition:
        units_of = [self._units(subgraph) for subgraph in self.partition.subgraphs]
        self._choose_layouts()
        self._choose_views()
        before = self._reorder_inputs()
        work: list[tuple[KernelLaunch | HostOperator, ...]] = []
        for number, units in enumerate(units_of):
            progress("lower", number, len(units_of))
            work.append(tuple(x for unit in units for x in self._work(unit)))
        t = self.tensors
        return LoweredPartition(
            t.alias,
            t.offsets,
            t.layouts,
            t.locals,
            self.products,
            partition_as_lowered(self.partition, self.declined, self.separate),
            tuple(work),
            tuple(before),
            tuple(self._reorder_outputs()),
        )

    def _units(self, subgraph: Subgraph) -> list[_Unit]:
        """One for each kernel of the form; one for each node of a kernel whose nodes do not compose."""
        kernels = subgraph.kernels
        if len(kernels) == 1:
            return self._units_of(kernels[0], subgraph.nodes, subgraph.outputs)
        units: list[_Unit] = []
        for kernel in kernels:
            nodes = tuple(subgraph.nodes[position] for position in kernel.nodes)
            outputs = make_subgraph(0, nodes, self.graph).outputs
            self.separate.update(outputs)
            if dict(kernel.choices).get(LAYOUT) == ROW_MAJOR:
                self.row_major.update(value for value in outputs if value not in subgraph.outputs)
            units += self._units_of(kernel, nodes, outputs)
        return units

    def _units_of(self, form: KernelForm, nodes: tuple[Node, ...], outputs: tuple[Value, ...]) -> list[_Unit]:
        fused = self.fuse(nodes, outputs)
        if not isinstance(fused, Opaque):
            return [self._unit(fused, nodes, form)]
        self.separate.update(v for node in nodes for v in node.results())
        self._decline(form, nodes)
        units: list[_Unit] = []
        for node in nodes:
            alone = self.fuse((node,), tuple(node.results()))
            work = self._alone(node, alone) if isinstance(alone, Opaque) else alone
            units.append(self._unit(work, (node,), replace(form, blocking=None)))
        return units

    def _alone(self, node: Node, description: Opaque) -> StepLoop | Walk | HostOperator:
        """A node that no group has: a loop over steps, a walk, or else for the host."""
        if isinstance(description, Stepwise):
            return StepLoop(node, description, steps_group(node))
        if isinstance(description, Walks):
            inputs = tuple(value for value in node.inputs if value is not None)
            return Walk(node, description, NestGroup((), inputs, tuple(node.results()), (), ()))
        return HostOperator(node, description.reason)

    def _unit(
        self, work: NestGroup | StepLoop | Walk | HostOperator, nodes: tuple[Node, ...], form: KernelForm
    ) -> _Unit:
        if isinstance(work, NestGroup):
            require_bounded_nests(work.nests, work.inputs, work.outputs, "fusion")
            if self.accuracy == "strict":
                work = replace(work, nests=tuple(map(round_products, work.nests)))
            if self.row_axes is not None:
                work = with_row_loops(work, self.row_axes)
            if self.pasts:
                work = with_past_loops(work, self.pasts)
        self.units.append(_Unit(len(self.units), work, nodes, form))
        return self.units[-1]

    # Layouts.

    def _choose_layouts(self) -> None:
        groups = [u.work if isinstance(u.work, NestGroup) else _EMPTY for u in self.units]
        host = {
            v
            for u in self.units
            if not isinstance(u.work, NestGroup)
            for v in (*u.work.node.operands(), *u.work.node.results())
        }
        pinned = frozenset(host | self.row_major)
        layouts = assign_layouts(groups, pinned)
        planar = {
            v
            for v in self.graph.inputs
            if v.shape and v in layouts and v.shape[layouts[v].order[-1]] <= _MAX_PLANAR_CHANNELS
        }
        if planar:
            layouts = assign_layouts(groups, pinned | planar)
        self.tensors.layouts = layouts
        for value in dict.fromkeys((*self.graph.inputs, *self.graph.outputs)):
            layout = layouts.get(value)
            if layout is not None and not layout.is_row_major:
                self.tensors.relayouts[value] = self.tensors.new_local(
                    Operand("local", 0, value.dtype, value.shape)
                )
                layouts[self.tensors.relayouts[value]] = layouts.pop(value)

    def _choose_views(self) -> None:
        """Leave out copies into concatenations and out of slices."""
        fixed: set[Tensor] = {*self.graph.inputs, *self.graph.outputs, *self.tensors.relayouts.values()}
        caches = {v for v in self.graph.outputs if v.name in self.graph.past_axes}
        groups: list[tuple[NestGroup, TensorOf]] = []
        for unit in self.units:
            if not isinstance(unit.work, NestGroup):
                fixed.update((*unit.work.node.operands(), *unit.work.node.results()))
                continue
            names = Names(self.tensors, unit.index, unit.work)
            groups.append((unit.work, names.tensor))
            for nest in unit.work.nests:
                for access in (*nest.reads, nest.write):
                    tensor = names.tensor(access.operand)
                    is_constant = isinstance(tensor, Value) and tensor.is_constant
                    if tensor is not None and (access.view is not None or is_constant):
                        fixed.add(tensor)
                if caches and names.tensor(nest.write.operand) in caches:  # where, the run says
                    sources = (names.tensor(access.operand) for access in nest.reads)
                    fixed.update(tensor for tensor in sources if tensor is not None)
        self.tensors.place(find_views(groups, self.tensors.layouts, frozenset(fixed)))

    def _reorder_inputs(self) -> list[KernelLaunch]:
        return [
            self._copy(v, self.tensors.relayouts[v], v)
            for v in self.graph.inputs
            if v in self.tensors.relayouts
        ]

    def _reorder_outputs(self) -> list[KernelLaunch]:
        inputs = set(self.graph.inputs)
        return [
            self._copy(tensor, value, value)
            for value, tensor in self.tensors.relayouts.items()
            if value not in inputs
        ]

    def _copy(self, source: Tensor, target: Tensor, like: Value) -> KernelLaunch:
        rows = None if self.row_axes is None else self.row_axes.get(like)
        dims = tuple(Dim(f"d{a}", e, rows=RowsOf(e) if a == rows else None) for a, e in enumerate(like.shape))
        index = tuple(affine(d.name) for d in dims)
        read = Access(Operand("input", 0, like.dtype, like.shape), index)
        write = Access(Operand("output", 0, like.dtype, like.shape), index)
        nest = Nest(dims, (read,), write, Read(0, like.dtype.compute))
        rank = len(like.shape)
        layouts = {
            ("input", 0): self.tensors.layout(source, rank),
            ("output", 0): self.tensors.layout(target, rank),
        }
        (kernel,) = lower_nests((nest,), layouts, self.isa)
        passed: dict[str, Storage] = {"input": source, "output": target, ROWS: NumRows()}
        args = tuple(passed[arg.kind] for arg in kernel.args if isinstance(arg, Operand))
        return KernelLaunch(kernel, args, (), (source,), (target,), nests=(nest,))

    # Kernels.

    def _work(self, unit: _Unit) -> list[KernelLaunch | HostOperator]:
        if isinstance(unit.work, HostOperator):
            return [unit.work]
        if isinstance(unit.work, StepLoop):
            return self._steps(unit, unit.work)
        if isinstance(unit.work, Walk):
            return [self._walk(unit, unit.work)]
        group = unit.work
        names = Names(self.tensors, unit.index, group)
        fused = self._fused(group, unit.form, names)
        if fused is not None:
            return [self._launch(fused, names, unit, group.nests)]
        launches: list[KernelLaunch] = []
        choices = self._local_choices(unit)
        for nests, kernels in self._segments(group, names, choices):
            if kernels is None:
                nests = tuple(names.escape(nest) for nest in nests)
                names.arrange_constants(nests)
                layouts = names.layouts(nests)
                kernels = self._loops(nests, layouts, choices)
            launches.extend(self._launch(k, names, unit, nests) for k in kernels)
            names.forget_arrangements()
        self._note_separate(unit, launches)
        return list(launches)

    def _steps(self, unit: _Unit, loop: StepLoop) -> list[KernelLaunch | HostOperator]:
        """Kernels of a loop over steps, which runs on the host where there are none."""
        nests = loop.group.nests
        if self.accuracy == "strict":
            nests = tuple(map(round_products, nests))
        names = Names(self.tensors, unit.index, loop.group)
        may_round = Context(self.isa, accuracy=self.accuracy).may_round(a.operand for a in nests[0].reads)
        kernels = lower_steps(
            loop.description, nests, names.constants, names.num_locals, self.isa, may_round=may_round
        )
        if isinstance(kernels, Declined):
            return [HostOperator(loop.node, f"{loop.description.reason}; {kernels.reason}")]
        names.declare(kernels)
        *before, kernel = kernels
        launches: list[KernelLaunch | HostOperator] = [self._launch(k, names, unit, ()) for k in before]
        return [*launches, self._launch(kernel, names, unit, nests)]

    def _walk(self, unit: _Unit, walk: Walk) -> KernelLaunch | HostOperator:
        """The kernel of a walk, which runs on the host where there is none."""
        has_rows = self.row_axes is not None and walk.node.require(0) in self.row_axes
        kernel = lower_trees(walk.node, self.isa, has_rows=has_rows)
        if isinstance(kernel, Declined):
            return HostOperator(walk.node, f"{walk.description.reason}; {kernel.reason}")
        names = Names(self.tensors, unit.index, walk.group)
        return self._launch(kernel, names, unit, (), written=[("output", 0)])

    def _note_separate(self, unit: _Unit, launches: Sequence[KernelLaunch]) -> None:
        """Take note of what several kernels took part in, and of blocks that could not be made."""
        group = unit.work
        assert isinstance(group, NestGroup)
        self._decline(unit.form, unit.nodes)
        written = {t for launch in launches for t in launch.writes}
        for tensor in (t for launch in launches for t in launch.reads if t not in launch.writes):
            if tensor in written:
                value = tensor if isinstance(tensor, Value) else _held(group, tensor[1])
                self.separate.update(v for v in [value] if v is not None)

    def _decline(self, form: KernelForm, nodes: Sequence[Node]) -> None:
        """Take note of blocks that are not made."""
        if form.blocking is not None:
            self.declined.add((self.partition.subgraph_of(nodes[0]).id, form))

    def _fused(self, group: NestGroup, form: KernelForm, names: Names) -> Kernel | None:
        """One kernel that computes the group block by block, if that is asked for and there is one."""
        if form.blocking is None:
            return None
        local_tensors = {t for o in group.locals if (t := names.tensor(o)) is not None}
        if local_tensors & (set(self.tensors.alias) | set(self.tensors.alias.values())):
            return None
        layouts, run_bytes = names.layouts(group.nests), self.tensors.run_bytes
        context = Context(self.isa, layouts, self.accuracy, run_bytes=run_bytes)
        make = partial(lower_fused, group, form.blocking, context, dict(form.choices))
        kernel = self.repeats.blocks(group, form, context.layouts, make)
        return None if isinstance(kernel, Declined) else kernel

    def _local_choices(self, unit: _Unit) -> Mapping[str, Choice]:
        """Choices for products of this unit alone: those of its form."""
        return dict(unit.form.choices) if unit.form.choices else NO_CHOICES

    def _segments(
        self, group: NestGroup, names: Names, choices: Choices
    ) -> list[tuple[tuple[Nest, ...], tuple[Kernel, ...] | None]]:
        """The group's nests in order: contractions and attentions with their kernels, runs of others without.

        Copies that move nothing are left out. Temporaries that more than one segment or an alias uses are
        marked as escaping: they need memory that outlives a kernel. Nests that meet in memory under different
        names come into different segments, because generators order nests by names alone.
        """
        segments: list[tuple[tuple[Nest, ...], tuple[Kernel, ...] | None]] = []
        users: dict[OperandKey, set[int]] = {}
        memory = SharedMemory()
        done = 0
        for number, nest in enumerate(group.nests):
            checkpoint()
            if number < done:
                continue
            run = attention_run(group.nests, number, grows=True)
            attention = None if run is None else self._attention(run, names)
            if run is not None and attention is not None:
                segments.append((run, attention))
                for part in run:
                    memory.use(part, len(segments))
                    for key in _locals_of(part):
                        users.setdefault(key, set()).add(len(segments))
                done = number + len(run)
                continue
            touched = _locals_of(nest)
            if make_alias(nest, names, self.tensors):
                memory.join(nest)
                for key in touched:
                    users.setdefault(key, set()).add(-1)
                continue
            layouts = names.layouts([nest])
            kernels = self._product(nest, layouts, names, choices)
            if not isinstance(kernels, Declined):
                names.declare(kernels)
                segments.append(((nest,), kernels))
            elif segments and segments[-1][1] is None and not self._meets(nest, segments[-1][0], names):
                segments[-1] = ((*segments[-1][0], nest), None)
            else:
                segments.append(((nest,), None))
            memory.use(nest, len(segments))
            for key in touched:
                users.setdefault(key, set()).add(len(segments))
        for key, numbers in users.items():
            if len(numbers) > 1:
                names.mark_escaping(key)
        for key in memory.passed_on():
            value = group.outputs[key[1]] if key[0] == "output" else _held(group, key[1])
            self.separate.update(v for v in [value] if v is not None)
        return segments

    def _attention(self, run: tuple[Nest, ...], names: Names) -> tuple[Kernel, ...] | None:
        """The kernels of nests that may be one attention; None where they are not."""
        context = Context(
            self.isa,
            names.layouts(run),
            self.accuracy,
            names.constants,
            next_local=names.num_locals,
            run_bytes=self.tensors.run_bytes,
        )
        made = self.repeats.run(run, context, partial(lower_attention, run, context))
        if isinstance(made, Declined):
            return None
        names.declare(made)
        return made

    def _product(
        self, nest: Nest, layouts: Mapping[OperandKey, Layout], names: Names, choices: Choices
    ) -> tuple[Kernel, ...] | Declined:
        """Kernels of a contraction, which carry its signature, or why it is none."""
        context = Context(
            self.isa,
            layouts,
            self.accuracy,
            names.constants,
            names.cached_constants(self.isa.caches.l2_bytes),
            names.num_locals,
            run_bytes=self.tensors.run_bytes,
            few_bits=names.few_bits(nest),
            shared=names.shared_constants(),
            small_sums=names.small_sums(nest),
        )
        make = partial(lower_product, nest, context, {**self.choices, **choices} if choices else self.choices)
        kernels = self.repeats.product(nest, context, make, choices)
        if isinstance(kernels, Declined):
            return kernels
        if kernels[-1].signature:
            (plain,) = without_row_loops((nest,))
            self.products[kernels[-1].signature] = Product.of(plain, context)
        return kernels

    def _loops(
        self, nests: tuple[Nest, ...], layouts: Mapping[OperandKey, Layout], choices: Choices
    ) -> tuple[Kernel, ...]:
        """Kernels of nests that no other template computes."""
        make = partial(lower_nests, nests, layouts, self.isa, chooser_of(choices, layouts))
        return self.repeats.nests(nests, layouts, make, choices)

    def _meets(self, nest: Nest, before: Sequence[Nest], names: Names) -> bool:
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
                if target is not None and t != target and self.tensors.root(t) == self.tensors.root(target):
                    return True
        return False

    def _launch(
        self,
        kernel: Kernel,
        names: Names,
        unit: _Unit,
        nests: tuple[Nest, ...],
        written: Sequence[OperandKey] = (),
    ) -> KernelLaunch:
        """`written` is what the kernel writes besides what its nests do."""
        args = tuple(_storage(a, kernel, names, unit.nodes) for a in kernel.args)
        outputs = {*written, *(n.write.operand.key for n in nests)} | {
            a.key
            for a in kernel.args
            if isinstance(a, Operand) and a.kind == "local" and a.key in names.extra
        }
        tensors = [(a, names.tensor(a)) for a in kernel.args if isinstance(a, Operand)]
        writes = tuple(t for a, t in tensors if t is not None and a.key in outputs)
        reads = tuple(t for a, t in tensors if t is not None)
        overwrite = may_overwrite(nests[0], kernel, names, self.tensors) if len(nests) == 1 else ()
        computed = kernel.nests or (nests if kernel.macs or kernel.parts else ())
        return KernelLaunch(
            kernel, args, unit.nodes, reads, tuple(dict.fromkeys(writes)), overwrite, computed
        )


def _locals_of(nest: Nest) -> list[OperandKey]:
    return [a.operand.key for a in (*nest.reads, nest.write) if a.operand.kind == "local"]


def _storage(arg: KernelArg, kernel: Kernel, names: Names, nodes: Sequence[Node]) -> Storage:
    """What to pass for a kernel argument."""
    if isinstance(arg, Operand) and arg.kind == ROWS:
        return NumRows()
    return _reports(kernel, nodes) if isinstance(arg, Operand) and arg.kind == REPORTS else names.storage(arg)


def _reports(kernel: Kernel, nodes: Sequence[Node]) -> Reports:
    labels = [f"{node.op_type} {node.name!r}" for node in nodes]
    return Reports(tuple(CheckedIndex(labels[c.node], c.axis, c.extent) for c in kernel.checks))


def _held(group: NestGroup, position: int) -> Value | None:
    """The graph's value in a temporary of a group; None for those of operators and generators."""
    return group.local_values[position] if position < len(group.local_values) else None


_EMPTY = NestGroup((), (), (), (), ())
