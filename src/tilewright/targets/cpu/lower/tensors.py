"""The tensors of a model while it is lowered: where each lies, in whose memory, and what groups call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Graph, Value
from tilewright.ir.nest import Access, Affine, Nest, Operand
from tilewright.targets.cpu.few_bits import FewBitKeys, FewBits, block_of
from tilewright.targets.cpu.kernel import Kernel, Layout, OperandKey, Packed
from tilewright.targets.cpu.loopnest.constant_layouts import arrange_constants, transposed
from tilewright.targets.cpu.lower.layouts import Tensor
from tilewright.targets.cpu.lower.lowered import PackedTensor, Storage, Table, root_of, root_offset_of
from tilewright.targets.cpu.lower.views import View
from tilewright.targets.cpu.template import CACHED_SHARE
from tilewright.targets.llvm.byte_products import constant_factor, product_of

# A constant that so many nodes read is one that steps of time share; what runs between them is small.
_MIN_REPEATED_READS = 4
# Smaller constants are packed as each code likes best.
_MIN_SHARED_BYTES = 1 << 18
# Axes of weights that a convolution of images sums over: channels, and two of taps.
_NUM_WINDOW_AXES = 3


class ModelTensors:
    """Layouts, aliases and temporaries, filled in by `lower.py`.

    `alias` maps a tensor to the one whose memory it shares, `offsets` to where in it it starts. `relayouts`
    are the relayout copies that kernels use of inputs and outputs which the caller wants in another layout.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.layouts: dict[Tensor, Layout] = {}
        self.alias: dict[Tensor, Tensor] = {}
        self.offsets: dict[Tensor, int] = {}
        self.locals: dict[Tensor, Operand] = {}
        self.relayouts: dict[Value, Tensor] = {}
        self._num_users: dict[Value, int] = {}
        self._few_bits: dict[Value, tuple[tuple[int, FewBits], ...]] = {}

    @cached_property
    def run_bytes(self) -> int:
        """Bytes of constants, inputs and outputs, which each run touches."""
        return sum(v.size_bytes for v in {*self.graph.initializers, *self.graph.inputs, *self.graph.outputs})

    def root(self, tensor: Tensor) -> Tensor:
        """The tensor that owns the memory."""
        return root_of(self.alias, tensor)

    def root_offset(self, tensor: Tensor) -> int:
        """Elements from the start of the root's memory to the tensor."""
        return root_offset_of(self.alias, self.offsets, tensor)

    def layout(self, tensor: Tensor, rank: int) -> Layout:
        """How it lies in memory."""
        return self.layouts.get(tensor, Layout.row_major(rank))

    def is_dense(self, tensor: Tensor) -> bool:
        """Whether it fills its memory: it is no window of another."""
        layout = self.layouts.get(tensor)
        return layout is None or layout.steps is None

    def is_given(self, root: Tensor) -> bool:
        """Whether its memory is the caller's already, as an input or an output."""
        given = set(self.graph.outputs) | set(self.graph.inputs)
        return root in given or any(t in given for t in self.alias if self.root(t) == root)

    def place(self, views: Mapping[Tensor, View]) -> None:
        """From now on these tensors lie in the memory of others."""
        for tensor, view in views.items():
            self.alias[tensor] = view.parent
            self.offsets[tensor] = view.offset
            self.layouts[tensor] = Layout(self.layout(tensor, len(view.steps)).order, view.steps)

    def new_local(self, operand: Operand) -> Tensor:
        """A temporary of no group."""
        tensor = (-1 - len(self.locals), 0)
        self.locals[tensor] = operand
        return tensor

    def few_bits(self, value: Value) -> tuple[tuple[int, FewBits], ...]:
        """Axes along which a constant matrix has blocks of numbers of few bits, and how these are stored."""
        if value not in self._few_bits:
            stored = value.stored
            if isinstance(stored, BlockWeights):
                known = FewBits.of(stored)
                self._few_bits[value] = () if known is None else ((stored.axis, known),)
            else:
                axes = range(2) if stored is not None and len(value.shape) == 2 else ()
                found = ((axis, block_of(stored, axis)) for axis in axes if stored is not None)
                self._few_bits[value] = tuple((axis, FewBits(4, block)) for axis, block in found if block)
        return self._few_bits[value]

    def num_users(self, value: Value) -> int:
        """Nodes that read a value, counted once: thousands of steps of time may ask."""
        if value not in self._num_users:
            self._num_users[value] = len(value.users)
        return self._num_users[value]


class Names:
    """What a group's operands are in the model."""

    def __init__(self, tensors: ModelTensors, index: int, group: NestGroup) -> None:
        self._tensors = tensors
        self._index = index
        self._group = group
        self.extra: set[OperandKey] = set()
        self._arranged: dict[OperandKey, Layout] = {}
        self._escaping: dict[OperandKey, Operand] = {}
        self.num_locals = len(group.locals)
        self.constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
        for operand in group.locals:
            tensors.locals[index, operand.position] = operand

    def tensor(self, operand: Operand) -> Tensor | None:
        """The tensor behind an operand; None for tables."""
        match operand.kind:
            case "input":
                value = self._group.inputs[operand.position]
                return self._tensors.relayouts.get(value, value)
            case "output":
                if operand.position >= len(self._group.outputs):
                    return (self._index, operand.position - len(self._group.outputs))
                value = self._group.outputs[operand.position]
                return self._tensors.relayouts.get(value, value)
            case "local":
                if operand.position >= len(self._group.locals):
                    self._tensors.locals[self._index, operand.position] = operand
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
            and self._tensors.num_users(value) >= _MIN_REPEATED_READS
            and value.size_bytes <= CACHED_SHARE * cache_bytes
        )

    def shared_constants(self) -> frozenset[OperandKey]:
        """Constants that code for other shapes of the model reads in one form (`Context.shared`)."""
        if not self._tensors.graph.shares_constants:
            return frozenset()
        values = ((key, self._group.inputs[key[1]]) for key in self.constants)
        return frozenset(key for key, value in values if value.size_bytes >= _MIN_SHARED_BYTES)

    def few_bits(self, nest: Nest) -> FewBitKeys:
        """Constants of a nest that are integers of four bits times scales (`Context.few_bits`)."""
        keys = {a.operand.key for a in nest.reads} & self.constants
        values = {key: self._group.inputs[key[1]] for key in keys}
        return frozenset(
            (key, axis, few) for key, value in values.items() for axis, few in self._tensors.few_bits(value)
        )

    def small_sums(self, nest: Nest) -> frozenset[OperandKey]:
        """The constant factor of a convolution of bytes, if its sums are small (`Context.small_sums`).

        The other factor less its zero point spans 255, with zero in between: a sum is at most 255 times what
        the positive, or the negative, weights of a result add up to.
        """
        factors = product_of(nest)
        b = None if factors is None else constant_factor(nest, factors, self.constants)
        if b is None or b.zero_read is not None:
            return frozenset()
        access = nest.reads[b.read]
        summed = {d.name for d in nest.reduce_dims if d.extent > 1}
        axes = tuple(
            axis
            for axis, index in enumerate(access.index)
            if isinstance(index, Affine) and summed.intersection(index.dims())
        )
        data = self._group.inputs[access.operand.position].data
        if len(axes) != _NUM_WINDOW_AXES or len(access.shape) != _NUM_WINDOW_AXES + 1:
            return frozenset()
        if data is None or access.view is not None:
            return frozenset()
        weights = data.astype(np.int16) - np.int16(b.zero)
        sides = (np.maximum(sign * weights, 0).sum(axis=axes, dtype=np.int64).max() for sign in (1, -1))
        return frozenset({access.operand.key} if max(sides) * 255 < 1 << 25 else ())

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
                    layout = self._tensors.layouts.get(tensor, layout)
                result[operand.key] = self._arranged.get(operand.key, layout)
        return result
