"""The fused kernel: for each block of the result the kernels of its part, one after the other.

Every part is computed by the templates that would compute the whole, on windows of the model's tensors;
what lies between them lives in the scratch area, small enough to stay in the cache. A table says for each
block which variant of the code runs it and where its windows start.

Condition of use: one result, blocks that are nests on windows, and few variants. It beats kernels of their
own where what lies between them does not fit the cache; halos are computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.ir.fuse import NestGroup
from tilewright.ir.nest import Access, Nest, Operand
from tilewright.ir.region import Region
from tilewright.memory.base import Buffer, MemoryProblem, aligned
from tilewright.memory.greedy_by_size import GreedyBySize
from tilewright.options import Accuracy
from tilewright.planning import Budget, Infeasible
from tilewright.targets.cpu.arrange import arrange_constants, transposed
from tilewright.targets.cpu.emitter import Emitter, Param
from tilewright.targets.cpu.fused.blocks import BlockedWork, Blocking, Variant, cut, start_of, window_layout
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import (
    SYMBOL_PLACEHOLDER,
    Declined,
    Kernel,
    KernelArg,
    Layout,
    Layouts,
    OperandKey,
    Packed,
    name_by_content,
)
from tilewright.targets.cpu.loopnest import loop_nest_supports, lower_nests
from tilewright.targets.cpu.select import lower_product
from tilewright.targets.cpu.values import I64, PTR, Int, Val

TEMPLATE = "fused"
# First, last and inner blocks along two axes, the last of them smaller.
MAX_VARIANTS = 6
_ALIGNMENT_BYTES = 64


def lower_fused(
    group: NestGroup,
    layouts: Layouts,
    isa: Isa,
    blocking: Blocking,
    *,
    accuracy: Accuracy,
) -> Kernel | Declined:
    """The kernel that computes a group block by block, or why there is none.

    `layouts` are those of all operands of the group, its temporaries included.
    """
    if len(group.outputs) != 1:
        return Declined(f"{len(group.outputs)} results")
    work = cut(group, blocking, MAX_VARIANTS)
    if work is None:
        return Declined(f"blocks of {blocking.block} are not {MAX_VARIANTS} kinds of nests on windows")
    variants = [_lower_variant(group, v, layouts, isa, accuracy) for v in work.variants]
    lowered = [v for v in variants if not isinstance(v, Declined)]
    if len(lowered) != len(variants):
        return next(v for v in variants if isinstance(v, Declined))
    return _Driver(group, layouts, isa, work, lowered, blocking).kernel()


@dataclass(frozen=True, slots=True, eq=False)
class _Lowered:
    """Kernels of a variant, in order; `scratch` has the offset of each temporary, `size_bytes` their area."""

    kernels: tuple[Kernel, ...]
    scratch: Mapping[OperandKey, int]
    size_bytes: int


@dataclass(slots=True)
class _Segment:
    """Neighbouring nests that are lowered together; a product has its kernels already."""

    nests: list[Nest]
    kernels: tuple[Kernel, ...] | None = field(default=None)


def _lower_variant(
    group: NestGroup, variant: Variant, layouts: Layouts, isa: Isa, accuracy: Accuracy
) -> _Lowered | Declined:
    part = variant.part
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    on_windows = {o.key: _layout(group, o, layouts, part.windows) for o in variant.operands}
    segments = _segments(part.nests, on_windows, isa, constants, len(group.locals), accuracy)
    shared = _shared_locals(segments)
    kernels: list[Kernel] = []
    for segment in segments:
        if segment.kernels is not None:
            kernels.extend(segment.kernels)
            continue
        refusal = loop_nest_supports(segment.nests, on_windows)
        if refusal is not None:
            return refusal
        escaped = [_escape(n, shared, len(group.outputs)) for n in segment.nests]
        renamed = {**on_windows, **{_escaped(k, len(group.outputs)): on_windows[k] for k in shared}}
        arranged = arrange_constants(escaped, renamed, constants)
        for kernel in lower_nests(escaped, {**renamed, **arranged}, isa):
            kernels.append(replace(kernel, args=tuple(_arranged(a, arranged) for a in kernel.args)))
    return _with_scratch([_local_again(k, len(group.outputs)) for k in kernels])


def _layout(
    group: NestGroup,
    operand: Operand,
    layouts: Layouts,
    windows: Mapping[OperandKey, Region],
) -> Layout:
    """Of an operand's window: in the model's tensor, or dense in the scratch area."""
    full = layouts.get(operand.key, Layout.row_major(len(operand.shape)))
    if operand.kind == "local":
        return Layout(full.order)
    if operand.kind == "table":
        return full
    value = group.inputs[operand.position] if operand.kind == "input" else group.outputs[operand.position]
    return window_layout(full, value.shape, windows[operand.key])


def _segments(
    nests: Sequence[Nest],
    layouts: Layouts,
    isa: Isa,
    constants: frozenset[OperandKey],
    next_local: int,
    accuracy: Accuracy,
) -> list[_Segment]:
    segments: list[_Segment] = []
    for nest in nests:
        kernels = lower_product(
            nest,
            layouts,
            isa,
            constants=constants,
            next_local=next_local,
            accuracy=accuracy,
            divide=False,
        )
        if not isinstance(kernels, Declined):
            segments.append(_Segment([nest], kernels))
            own = [
                a.position for k in kernels for a in k.args if isinstance(a, Operand) and a.kind == "local"
            ]
            next_local = max([next_local, *(p + 1 for p in own)])
        elif segments and segments[-1].kernels is None:
            segments[-1].nests.append(nest)
        else:
            segments.append(_Segment([nest]))
    return segments


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


def _with_scratch(kernels: Sequence[Kernel]) -> _Lowered | Declined:
    """Places for the temporaries: each lives from the first kernel that has it to the last."""
    first: dict[OperandKey, int] = {}
    last: dict[OperandKey, int] = {}
    sizes: dict[OperandKey, int] = {}
    for number, kernel in enumerate(kernels):
        for arg in kernel.args:
            if isinstance(arg, Operand) and arg.kind == "local":
                first.setdefault(arg.key, number)
                last[arg.key] = number
                sizes[arg.key] = arg.num_elements * arg.dtype.size_bytes
    buffers = tuple(Buffer(str(k), sizes[k], first[k], last[k]) for k in first)
    plan = GreedyBySize().solve(MemoryProblem(buffers), Budget())
    assert not isinstance(plan, Infeasible)
    offsets = {k: plan.offsets[str(k)] for k in first}
    return _Lowered(tuple(kernels), offsets, aligned(plan.peak_bytes, _ALIGNMENT_BYTES))


class _Driver:
    """Emits the function that runs a block: its variant's kernels, with the addresses of its windows."""

    def __init__(
        self,
        group: NestGroup,
        layouts: Layouts,
        isa: Isa,
        work: BlockedWork,
        variants: Sequence[_Lowered],
        blocking: Blocking,
    ) -> None:
        self.group = group
        self.layouts = layouts
        self.work = work
        self.variants = variants
        self.blocking = blocking
        self.emitter = Emitter(attributes=isa.function_attributes)
        self.args: dict[object, KernelArg] = {}
        for variant in variants:
            for kernel in variant.kernels:
                for arg in kernel.args:
                    if isinstance(arg, Packed) or arg.kind != "local":
                        self.args.setdefault(_identity(arg), self._whole(arg))
        # Arguments whose windows move from block to block, and their columns in the table.
        self.moving = {
            identity: column
            for column, identity in enumerate(
                (i for i, a in self.args.items() if isinstance(a, Operand) and a.key in self._starts(0)),
                start=1,
            )
        }

    def _whole(self, arg: KernelArg) -> KernelArg:
        """The argument as the group has it: the whole tensor."""
        if isinstance(arg, Packed) or arg.kind == "table":
            return arg
        values = self.group.inputs if arg.kind == "input" else self.group.outputs
        return replace(arg, shape=values[arg.position].shape)

    def _starts(self, block: int) -> dict[OperandKey, int]:
        """Bytes from the start of each of the model's tensors to a block's window."""
        _, part = self.work.blocks[block]
        starts: dict[OperandKey, int] = {}
        for key, window in part.windows.items():
            if key[0] not in ("input", "output"):
                continue
            value = (self.group.inputs if key[0] == "input" else self.group.outputs)[key[1]]
            layout = self.layouts.get(key, Layout.row_major(len(value.shape)))
            starts[key] = start_of(layout, value.shape, window) * value.dtype.size_bytes
        return starts

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e = self.emitter
        rows: list[int] = []
        for number, (variant, _) in enumerate(self.work.blocks):
            starts = self._starts(number)
            moving = [self.args[i] for i in self.moving]
            rows += [variant, *(starts[a.key] for a in moving if isinstance(a, Operand))]
        params = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))
        with e.function(SYMBOL_PLACEHOLDER.removeprefix("@"), params) as (args, chunk, scratch):
            width_bytes = 8 * (1 + len(self.moving))
            row = e.gep(e.constant_array("i64", rows), e.mul(chunk, width_bytes))
            pointers = {identity: e.load(PTR, e.gep(args, 8 * i)) for i, identity in enumerate(self.args)}
            for identity, column in self.moving.items():
                pointers[identity] = e.gep(pointers[identity], e.load(I64, e.gep(row, 8 * column)))
            kind = e.load(I64, row)
            most = max(len(k.args) for v in self.variants for k in v.kernels)
            block = e.alloca(PTR, most)
            for number, lowered in enumerate(self.variants):
                if len(self.variants) == 1:
                    self._run(lowered, pointers, block, scratch)
                else:
                    e.if_(e.compare("eq", kind, number), self._runner(lowered, pointers, block, scratch))
        symbol, text = name_by_content(e.text(), TEMPLATE)
        parts = {k.symbol: k for v in self.variants for k in v.kernels}
        counts = [0] * len(self.variants)
        for number, _ in self.work.blocks:
            counts[number] += 1
        return Kernel(
            symbol=symbol,
            text=text,
            num_chunks=len(self.work.blocks),
            args=tuple(self.args.values()),
            scratch_bytes=max(_scratch_bytes(v) for v in self.variants),
            template=TEMPLATE,
            macs=sum(n * k.macs for n, v in zip(counts, self.variants, strict=True) for k in v.kernels),
            notes=(
                f"blocks of {'x'.join(map(str, self.blocking.block))}",
                " > ".join(k.template for k in self.variants[0].kernels),
            ),
            parts=tuple(parts.values()),
        )

    def _runner(
        self, lowered: _Lowered, pointers: Mapping[object, Val], block: Val, scratch: Val
    ) -> Callable[[], None]:
        return lambda: self._run(lowered, pointers, block, scratch)

    def _run(self, lowered: _Lowered, pointers: Mapping[object, Val], block: Val, scratch: Val) -> None:
        e = self.emitter
        own = e.gep(scratch, lowered.size_bytes)
        for kernel in lowered.kernels:
            for position, arg in enumerate(kernel.args):
                if isinstance(arg, Operand) and arg.kind == "local":
                    pointer = e.gep(scratch, lowered.scratch[arg.key])
                else:
                    pointer = pointers[_identity(arg)]
                e.store(pointer, e.gep(block, 8 * position))

            def chunk(number: Int, _: Sequence[Val], kernel: Kernel = kernel) -> None:
                e.call(kernel.symbol, (block, e.index(number), own))

            e.loop(0, kernel.num_chunks, 1, chunk)


def _identity(arg: KernelArg) -> object:
    if isinstance(arg, Packed):
        return "packed", arg.source.key, arg.signature
    return arg.key


def _scratch_bytes(lowered: _Lowered) -> int:
    return lowered.size_bytes + max(k.scratch_bytes for k in lowered.kernels)
