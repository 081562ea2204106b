"""The fused kernel: for each block of the result the kernels of its part, one after the other.

Every part is computed by the templates that would compute the whole, on windows of the model's tensors;
what lies between them lives in the scratch area, small enough to stay in the cache. A table says for each
block which variant of the code runs it and where its windows start.

Condition of use: blocks that are nests on windows, and few variants; of several results the last is cut, and
its blocks must make every element of the others once. It beats kernels of their
own where what lies between them does not fit the cache; halos are computed twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from functools import partial
from itertools import accumulate

from tilewright.ir.contraction import contraction_of, contractions
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Value
from tilewright.ir.nest import Access, Indirect, Nest, Operand
from tilewright.ir.region import Region, full_region
from tilewright.ir.restrict import RestrictedNests
from tilewright.ir.rows import without_row_loops
from tilewright.memory.base import aligned
from tilewright.partition.form import Blocking
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import Arrangement, Stacked
from tilewright.targets.cpu.attention import lower_attention
from tilewright.targets.cpu.fused.blocks import (
    BlockedWork,
    Move,
    Variant,
    blocked_result,
    cut,
    passed_on,
    row_axis,
    start_of,
    window_layout,
)
from tilewright.targets.cpu.fused.scratch import Scratch
from tilewright.targets.cpu.kernel import Declined, Kernel, KernelArg, Layout, Layouts, OperandKey, Packed
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.loopnest import loop_nest_supports, lower_nests
from tilewright.targets.cpu.loopnest.constant_layouts import arrange_constants, transposed
from tilewright.targets.cpu.product.select import lower_product
from tilewright.targets.cpu.products import product_signature
from tilewright.targets.cpu.template import START_CYCLES, Context
from tilewright.targets.llvm.attention import attention_run
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import I64, PTR, Int, Val
from tilewright.text.formatting import counted
from tilewright.tuning import NO_CHOICES, Choice, Choices

TEMPLATE = "fused"
# First, inner and last blocks along two axes.
MAX_VARIANTS = 9


@dataclass(frozen=True, slots=True, eq=False)
class FusedProblem:
    """A group, the blocks in which it is computed, and what each of them computes.

    `choices` say how products are made in each block, by `inner_product`, and loop nests, by `inner_loops`. A
    run may ask for the first places along `row_axis` of the last result, where there is one.
    """

    group: NestGroup
    blocking: Blocking
    work: BlockedWork
    row_axis: int | None = None
    choices: Choices = field(default_factory=lambda: NO_CHOICES)

    @property
    def constants(self) -> frozenset[OperandKey]:
        """Operands of the group whose data are known now."""
        return frozenset(("input", i) for i, v in enumerate(self.group.inputs) if v.is_constant)

    @property
    def block_counts(self) -> Counter[int]:
        """Blocks of each variant."""
        return Counter(variant for strip in self.work.strips for variant, _ in strip)

    def on_windows(self, variant: Variant, context: Context) -> Context:
        """What surrounds the nests of a variant: its windows of the tensors, on one thread."""
        windows = variant.part.windows
        return replace(
            context,
            layouts={o.key: _layout(self.group, o, context.layouts, windows) for o in variant.operands},
            constants=self.constants,
            next_local=len(self.group.locals),
            divides=False,
        )


def inner_product(number: int) -> str:
    """What a choice for the product of this number, among those that each block makes, is named.

    A signature would not do: at the edges blocks are smaller, so that one product has several.
    """
    return f"product {number}"


def inner_loops(number: int) -> str:
    """What a choice for the loop nest of this number is named, among those that multiply and add up."""
    return f"loops {number}"


def match_fused(
    group: NestGroup, blocking: Blocking, layouts: Layouts, choices: Choices = NO_CHOICES
) -> FusedProblem | Declined:
    """What each block of the group computes, or why it is not computed in these blocks.

    `layouts` are those of all operands of the group, its temporaries included.
    """
    if not group.outputs:
        return Declined("no result")
    accesses = (a for nest in group.nests for a in (*nest.reads, nest.write))
    if any(isinstance(i, Indirect) and i.node is not None for a in accesses for i in a.index):
        return Declined("indices that are data are checked by a kernel of their own")
    rows, group = row_axis(group), replace(group, nests=without_row_loops(group.nests))
    work = cut(group, layouts, blocking, MAX_VARIANTS)
    if work is None:
        what = f"blocks of {blocking.block}"
        return Declined(f"{what} are not {MAX_VARIANTS} kinds of nests on windows that make each result once")
    return FusedProblem(group, blocking, work, rows, choices)


def generate_fused(problem: FusedProblem, context: Context) -> Kernel | Declined:
    """The kernel that computes a group block by block, or why there is none."""
    work = problem.work
    lowered: list[tuple[Kernel, ...]] = []
    for variant in work.variants:
        made = _lower_variant(problem, variant, context)
        if isinstance(made, Declined):
            return made
        lowered.append(made)
    passed = {a.key for kernels in lowered for k in kernels for a in k.args if isinstance(a, Operand)}
    if not {m.key for v in work.variants for m in v.moves} <= passed:
        return Declined("what should stay from block to block lies within a kernel")
    return _Driver(problem, context, lowered).kernel()


@dataclass(slots=True)
class _Segment:
    """Neighbouring nests that are lowered together; a product or an attention has its kernels already.

    `chosen` says how nests run, by what they write.
    """

    nests: list[Nest]
    kernels: tuple[Kernel, ...] | None = field(default=None)
    chosen: dict[OperandKey, Choice] = field(default_factory=dict)


def _lower_variant(
    problem: FusedProblem, variant: Variant, context: Context
) -> tuple[Kernel, ...] | Declined:
    group, here = problem.group, problem.on_windows(variant, context)
    on_windows = here.layouts
    results = {("output", i) for i in range(len(group.outputs))}
    between = passed_on(contractions(group.nests)) | results
    segments = _segments(variant.part.nests, here, between, problem.choices)
    shared = _shared_locals(segments) | problem.work.kept
    kernels: list[Kernel] = []
    for segment in segments:
        if segment.kernels is not None:
            kernels.extend(segment.kernels)
            continue
        refusal = loop_nest_supports(segment.nests, on_windows)
        if refusal is not None:
            return refusal
        escaped = [_escape(n, shared, len(group.outputs)) for n in segment.nests]
        renamed = dict(on_windows)
        renamed |= {_escaped(k, len(group.outputs)): on_windows[k] for k in shared if k in on_windows}
        arranged = arrange_constants(escaped, renamed, here.constants)
        chosen = {
            e.write.operand.key: segment.chosen.get(n.write.operand.key)
            for n, e in zip(segment.nests, escaped, strict=True)
        }
        choose = partial(_chosen, chosen) if segment.chosen else None
        for kernel in lower_nests(escaped, {**renamed, **arranged}, here.isa, choose):
            kernels.append(replace(kernel, args=tuple(_arranged(a, arranged) for a in kernel.args)))
    return tuple(_local_again(k, len(group.outputs)) for k in kernels)


def _chosen(choices: Mapping[OperandKey, Choice | None], nests: Sequence[Nest]) -> Choice | None:
    return choices[nests[0].write.operand.key] if len(nests) == 1 else None


def _layout(
    group: NestGroup, operand: Operand, layouts: Layouts, windows: Mapping[OperandKey, Region]
) -> Layout:
    """Of an operand's window: in the model's tensor, or dense in the scratch area."""
    full = layouts.get(operand.key, Layout.row_major(len(operand.shape)))
    if operand.kind == "local":
        return Layout(full.order)
    if operand.kind == "table":
        return full
    if operand.kind == "input" and group.inputs[operand.position].is_constant:
        return Layout.row_major(len(operand.shape))  # a part of it is stored as a constant of its own
    value = group.inputs[operand.position] if operand.kind == "input" else group.outputs[operand.position]
    return window_layout(full, value.shape, windows[operand.key])


def _segments(
    nests: Sequence[Nest], context: Context, between: Set[OperandKey], choices: Choices
) -> list[_Segment]:
    """The nests in order, cut at products and where one reads what lies `between` kernels.

    Runs of nests that are one attention are one kernel, whose products have no choice.
    """
    segments: list[_Segment] = []
    next_local, num_products, num_loops = context.next_local, 0, 0
    done = 0
    for number, nest in enumerate(nests):
        if number < done:
            continue
        run = attention_run(nests, number)
        attention = None if run is None else lower_attention(run, context)
        if run is not None and attention is not None and not isinstance(attention, Declined):
            segments.append(_Segment(list(run), attention))
            done = number + len(run)
            continue
        chosen = NO_CHOICES
        if inner_product(num_products) in choices:
            signature = product_signature(nest, context)
            chosen = {signature: choices[inner_product(num_products)]}
        kernels = lower_product(nest, replace(context, next_local=next_local), chosen)
        if not isinstance(kernels, Declined):
            num_products += 1
            segments.append(_Segment([nest], kernels))
            positions = [
                a.position for k in kernels for a in k.args if isinstance(a, Operand) and a.kind == "local"
            ]
            next_local = max([next_local, *(p + 1 for p in positions)])
            continue
        if segments and segments[-1].kernels is None and not _reads(nest, segments[-1], between):
            segments[-1].nests.append(nest)
        else:
            segments.append(_Segment([nest]))
        if contraction_of(nest) is not None:
            if inner_loops(num_loops) in choices:
                segments[-1].chosen[nest.write.operand.key] = choices[inner_loops(num_loops)]
            num_loops += 1
    return segments


def _reads(nest: Nest, segment: _Segment, between: Set[OperandKey]) -> bool:
    written = {n.write.operand.key for n in segment.nests}
    return any(access.operand.key in written & between for access in nest.reads)


def _shared_locals(segments: Sequence[_Segment]) -> frozenset[OperandKey]:
    """Temporaries of more than one segment: generators of loops keep the others to themselves."""
    users: dict[OperandKey, set[int]] = {}
    for number, segment in enumerate(segments):
        for nest in segment.nests:
            for access in (*nest.reads, nest.write):
                if access.operand.kind == "local":
                    users.setdefault(access.operand.key, set()).add(number)
    return frozenset(key for key, numbers in users.items() if len(numbers) > 1)


def _escaped(key: OperandKey, num_outputs: int) -> OperandKey:
    return "output", num_outputs + key[1]


def _escape(nest: Nest, shared: frozenset[OperandKey], num_outputs: int) -> Nest:
    """The nest with shared temporaries as outputs, which generators never keep to themselves."""

    def renamed(access: Access) -> Access:
        operand = access.operand
        if operand.key not in shared:
            return access
        position = num_outputs + operand.position
        return replace(access, operand=replace(operand, kind="output", position=position))

    return replace(nest, reads=tuple(renamed(a) for a in nest.reads), write=renamed(nest.write))


def _local_again(kernel: Kernel, num_outputs: int) -> Kernel:
    def renamed(arg: KernelArg) -> KernelArg:
        if isinstance(arg, Operand) and arg.kind == "output" and arg.position >= num_outputs:
            return replace(arg, kind="local", position=arg.position - num_outputs)
        return arg

    return replace(kernel, args=tuple(map(renamed, kernel.args)))


def _arranged(arg: KernelArg, arranged: Mapping[OperandKey, Layout]) -> KernelArg:
    if isinstance(arg, Operand) and arg.key in arranged:
        return transposed(arg, arranged[arg.key])
    return arg


@dataclass(frozen=True, slots=True, eq=False)
class FusedPlan:
    """What a fused kernel is made of, as text: chunks of blocks, the kernels of a block of each kind."""

    blocking: Blocking
    num_chunks: int
    counts: Sequence[int]
    variants: Sequence[tuple[Kernel, ...]]

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"blocks of {'x'.join(map(str, self.blocking.block))} in {counted(self.num_chunks, 'chunk')}"
        for count, kernels in zip(self.counts, self.variants, strict=True):
            yield f"  {counted(count, 'block')}"
            for kernel in kernels:
                text = kernel.template if kernel.plan is None else str(kernel.plan)
                yield from (f"    {line}" for line in text.splitlines())


class _Driver:
    """Emits the function that runs a strip: for each block its variant's kernels on the block's windows."""

    def __init__(
        self, problem: FusedProblem, context: Context, variants: Sequence[tuple[Kernel, ...]]
    ) -> None:
        self.problem = problem
        self.group, self.work, self.blocking = problem.group, problem.work, problem.blocking
        self.layouts = context.layouts
        self.variants = variants
        self.cold_rate = context.isa.rates.cold_bytes_per_cycle
        self.emitter = Emitter(attributes=context.isa.function_attributes)
        self.scratch = Scratch.of(variants, self.work.kept)
        shapes = {key: self._value(key).shape for key in sorted(problem.constants)}
        self.used = used_parts(self.work, shapes)
        self.parts: dict[object, Parts] = {}
        self.args: dict[object, KernelArg] = {}
        for variant, kernel in ((v, k) for v, kernels in enumerate(variants) for k in kernels):
            for arg in kernel.args:
                if isinstance(arg, Packed) or arg.kind != "local":
                    self._declare(variant, arg)
        # Arguments whose windows move from block to block, and their columns in the table.
        windowed = {key for strip in self.work.strips for _, part in strip for key in part.windows}
        moving = [
            i
            for i, a in self.args.items()
            if i in self.parts
            or (isinstance(a, Operand) and a.kind in ("input", "output") and a.key in windowed)
        ]
        self.moving = {identity: column for column, identity in enumerate(moving, start=1)}
        self.has_rows = problem.row_axis is not None
        self.num_columns = 1 + len(moving) + self.has_rows

    def _declare(self, variant: int, arg: KernelArg) -> None:
        """Take note of an argument of one of the kernels."""
        identity = self._identity(variant, arg)
        if identity in self.args:
            return
        windows = self.used[variant].get(_key(arg))
        if windows is None:
            self.args[identity] = self._whole(arg)
            return
        source = arg.source if isinstance(arg, Packed) else arg
        parts = stack(arg, replace(source, shape=self._value(_key(arg)).shape), windows)
        self.args[identity] = parts.packed
        self.parts[identity] = parts

    def _identity(self, variant: int, arg: KernelArg) -> object:
        """What tells arguments apart; the same constant in the same arrangement is one, unless in parts."""
        identity: object = ("packed", arg.source.key, arg.arrangement) if isinstance(arg, Packed) else arg.key
        windows = self.used[variant].get(_key(arg))
        return identity if windows is None else (identity, windows)

    def _whole(self, arg: KernelArg) -> KernelArg:
        """The argument as the group has it: the whole tensor."""
        if isinstance(arg, Packed) or arg.kind == "table":
            return arg
        return replace(arg, shape=self._value(arg.key).shape)

    def _value(self, key: OperandKey) -> Value:
        return (self.group.inputs if key[0] == "input" else self.group.outputs)[key[1]]

    def _start(self, identity: object, part: RestrictedNests) -> int:
        """Bytes from the start of an argument to a block's window of it; 0 if the block does not use it."""
        arg = self.args[identity]
        window = part.windows.get(_key(arg))
        if identity in self.parts:
            return 0 if window is None else self.parts[identity].starts.get(window, 0)
        if window is None:
            return 0
        value = self._value(_key(arg))
        layout = self.layouts.get(_key(arg), Layout.row_major(len(value.shape)))
        return start_of(layout, value.shape, window) * value.dtype.size_bytes

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e, strips = self.emitter, self.work.strips
        with kernel_function(e, tuple(self.args.values()), has_rows=self.has_rows) as function:
            table = e.constant_array("i64", self._table())
            pointers = dict(zip(self.args, function.pointers, strict=True))
            most = max(len(k.args) for v in self.variants for k in v)
            block_args = e.alloca(PTR, most)
            num_rows = function.num_rows()

            def block(number: Int, _: Sequence[Val]) -> None:
                row = e.gep(table, e.mul(number, 8 * self.num_columns))
                if num_rows is None:
                    run(row)
                else:
                    first_row = e.load(I64, e.gep(row, 8 * (self.num_columns - 1)))
                    e.if_(e.compare("slt", first_row, num_rows), partial(run, row))

            def run(row: Val) -> None:
                here = dict(pointers)
                for identity, column in self.moving.items():
                    here[identity] = e.gep(pointers[identity], e.load(I64, e.gep(row, 8 * column)))
                kind = e.load(I64, row)
                for variant in range(len(self.variants)):
                    kernels = partial(self._run, variant, here, block_args, function.scratch)
                    if len(self.variants) == 1:
                        kernels()
                    else:
                        e.if_(e.compare("eq", kind, variant), kernels)

            if all(len(strip) == 1 for strip in strips):
                block(function.chunk, ())
            else:
                ends = e.gep(e.constant_array("i64", self._strip_ends()), e.mul(function.chunk, 8))
                first, last = (e.load(I64, e.gep(ends, 8 * i)) for i in (0, 1))
                e.loop(first, last, 1, block, nonempty=True)
        counts, kinds = self.problem.block_counts, range(len(self.variants))
        most_own = max(k.scratch_bytes for v in self.variants for k in v)
        return function.kernel(
            TEMPLATE,
            num_chunks=len(strips),
            scratch_bytes=self.scratch.size_bytes + most_own,
            template=TEMPLATE,
            macs=sum(counts[i] * k.macs for i, v in enumerate(self.variants) for k in v),
            notes=self._notes(),
            parts=tuple({k.symbol: k for v in self.variants for k in v}.values()),
            plan=FusedPlan(self.blocking, len(strips), [counts[v] for v in kinds], self.variants),
            estimate_cycles=sum(
                _repeated_cycles(v, counts[i], self.cold_rate) for i, v in enumerate(self.variants)
            ),
        )

    def _notes(self) -> tuple[str, ...]:
        blocks = f"blocks of {'x'.join(map(str, self.blocking.block))}"
        strips = f", {self.blocking.strip} in a row share lines" if self.blocking.strip > 1 else ""
        return blocks + strips, " > ".join(k.template for k in self.variants[0])

    def _table(self) -> list[int]:
        """A row per block: its variant, the start in bytes of each moving window, the first row of a run."""
        rows: list[int] = []
        for variant, part in (block for strip in self.work.strips for block in strip):
            rows += [variant, *(self._start(identity, part) for identity in self.moving)]
            if self.problem.row_axis is not None:
                rows.append(part.windows[blocked_result(self.group)][self.problem.row_axis][0])
        return rows

    def _strip_ends(self) -> list[int]:
        return list(accumulate((len(strip) for strip in self.work.strips), initial=0))

    def _run(self, variant: int, pointers: Mapping[object, Val], block_args: Val, scratch: Val) -> None:
        """What stays is moved to its place, then the kernels run one after the other."""
        e = self.emitter
        for move in self.work.variants[variant].moves:
            self._move(move, e.gep(scratch, self.scratch.offset(variant, move.key)))
        kernel_scratch = e.gep(scratch, self.scratch.size_bytes)
        for kernel in self.variants[variant]:
            for position, arg in enumerate(kernel.args):
                if isinstance(arg, Operand) and arg.kind == "local":
                    pointer = e.gep(scratch, self.scratch.offset(variant, arg.key))
                else:
                    pointer = pointers[self._identity(variant, arg)]
                e.store(pointer, e.gep(block_args, 8 * position))

            def chunk(number: Int, _: Sequence[Val], kernel: Kernel = kernel) -> None:
                e.call(kernel.symbol, (block_args, e.index(number), kernel_scratch))

            e.loop(0, kernel.num_chunks, 1, chunk)

    def _move(self, move: Move, start: Val) -> None:
        e = self.emitter
        element_bytes = self.group.locals[move.key[1]].dtype.size_bytes
        source, target = (e.gep(start, n * element_bytes) for n in (move.source, move.target))
        e.declare("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
        size_bytes = move.count * element_bytes
        e.line(f"call void @llvm.memmove.p0.p0.i64(ptr {target}, ptr {source}, i64 {size_bytes}, i1 false)")


def _repeated_cycles(kernels: Sequence[Kernel], count: int, cold_rate: float) -> float:
    """Estimated cycles of kernels that `count` blocks run: constants are cold in the first of them alone."""
    total = 0.0
    for kernel in kernels:
        cycles = kernel.estimate_cycles or 0.0
        cold = sum(a.size_bytes for a in kernel.args if isinstance(a, Packed)) / cold_rate
        total += cycles + (count - 1) * max(cycles - cold, START_CYCLES)
    return total


def _key(arg: KernelArg) -> OperandKey:
    return arg.source.key if isinstance(arg, Packed) else arg.key


_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A constant as kernels want it, once for each of the parts that they are called with."""

    packed: Packed
    starts: Mapping[Region, int]  # bytes to each part


def used_parts(work: BlockedWork, constants: Mapping[OperandKey, Sequence[int]]) -> list[Used]:
    """For each variant the parts of constants, given with their shapes, that its blocks use where that is not
    always all of them; in order of first use."""
    used: list[dict[OperandKey, dict[Region, None]]] = [{} for _ in work.variants]
    for variant, part in (block for strip in work.strips for block in strip):
        for key, shape in constants.items():
            window = part.windows.get(key)
            if window is not None and window != full_region(shape):
                used[variant].setdefault(key, {})[window] = None
    return [{key: tuple(windows) for key, windows in of_variant.items()} for of_variant in used]


Used = Mapping[OperandKey, tuple[Region, ...]]


def stack(arg: KernelArg, whole: Operand, windows: Sequence[Region]) -> Parts:
    """The arrangements that `arg` wants of these parts of a constant, one after another."""
    inner: Arrangement | None
    if isinstance(arg, Packed):
        inner, size_bytes = arg.arrangement, arg.size_bytes
    else:
        inner, size_bytes = None, arg.num_elements * arg.dtype.size_bytes
    stride = aligned(size_bytes, _ALIGNMENT_BYTES)
    packed = Packed(whole, Stacked(inner, tuple(windows), stride), len(windows) * stride)
    return Parts(packed, {window: number * stride for number, window in enumerate(windows)})
