"""Loop nests with affine accesses: the one description of an operator's work.

A nest is a perfect loop nest over `dims`. In each iteration it evaluates `body` on the values its
`reads` deliver and stores it through `write`; with `combine`, iterations that differ only in reduce
dims are accumulated, starting from `init`, and `finish` is applied once to the total. Everything the
schedulers and generators need of an operator (work, bytes, reuse, regions, classes) derives from this.

Tensors are addressed logically, by the row-major index of their own shape; where the elements lie in
memory is a target's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any, Literal

import numpy as np

from tilewright.errors import InputError
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Scalar, format_expr
from tilewright.records import dataclass

Role = Literal["parallel", "reduce"]
Combine = Literal["sum", "prod", "max", "min", "and", "or"]
OperandKind = Literal["input", "output", "local", "table", "reports", "rows"]


@dataclass(frozen=True, slots=True)
class RowsOf:
    """What a loop over rows runs for fewer of them: `per_row` iterations for each, in blocks of `size`.

    The rows are outermost in the loop, so that the first of them are its first iterations.

    >>> RowsOf(8).inside(6).blocks(4).iterations(3)
    5
    """

    num_rows: int
    per_row: int = 1
    size: int = 1

    def iterations(self, num_rows: int) -> int:
        """Of the loop, for so many rows."""
        return -(-num_rows * self.per_row // self.size)

    def inside(self, extent: int) -> RowsOf | None:
        """Of this loop and one inside it, walked as one; None where blocks may be shorter than others."""
        return RowsOf(self.num_rows, self.per_row * extent) if self.size == 1 else None

    def blocks(self, size: int) -> RowsOf:
        """Of the loop over blocks of `size` iterations."""
        return RowsOf(self.num_rows, self.per_row, self.size * size)


@dataclass(frozen=True, slots=True)
class Dim:
    """One loop: `extent` iterations from 0. With `rows`, a run may ask for the first of them only.

    Loops are made from others without `rows` wherever nothing is known of them: then all iterations run.
    """

    name: str
    extent: int
    role: Role = "parallel"
    rows: RowsOf | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Affine:
    """`offset + sum(coefficient * dim)`; terms are sorted by dim name and have no zero coefficient."""

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0

    def dims(self) -> tuple[str, ...]:
        """Names of the dims it depends on."""
        return tuple(name for name, _ in self.terms)

    def coefficient(self, dim: str) -> int:
        """Factor of a dim, 0 if absent."""
        for name, c in self.terms:
            if name == dim:
                return c
        return 0

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value over all iterations, both inclusive."""
        low = high = self.offset
        for name, c in self.terms:
            span = c * (extents[name] - 1)
            if span > 0:
                high += span
            else:
                low += span
        return low, high


@dataclass(frozen=True, slots=True)
class Lookup:
    """`table[dim]`: an index given by a constant table, for resizing and irregular slices."""

    table: tuple[int, ...]
    dim: str


@dataclass(frozen=True, slots=True)
class Indirect:
    """An index that is data: the value of the nest's `read`-th read, an integer.

    Negative values count from the end, as in ONNX. Values outside the axis are the fault of what was fed:
    every target raises `outside_axis`. Generated code, which does so after the run, takes 0 instead: it must
    never read elsewhere. `node` says which of the nodes that a group was made of the error names; it is None
    where the values cannot lie outside, because they are constants or were computed so.
    """

    read: int
    node: int | None = 0


Index = Affine | Lookup | Indirect


def index_dims(index: Index) -> tuple[str, ...]:
    """Dims that an index depends on; of data, the read that gives it is asked."""
    match index:
        case Affine():
            return index.dims()
        case Lookup(_, dim):
            return (dim,)
    return ()


def dim_of(index: Index) -> str | None:
    """The dim that an index is; None where there is none, or more is done to it."""
    if isinstance(index, Affine) and len(index.terms) == 1 and index.terms[0][1] == 1 and index.offset == 0:
        return index.terms[0][0]
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A tensor as seen from inside one node: its `position`-th input or output, a temporary, a table.

    Identity matters: two accesses concern the same temporary iff they hold the same object; inputs and
    outputs are the same iff kind and position are (see `key`).
    """

    kind: OperandKind
    position: int
    dtype: DType
    shape: tuple[int, ...]
    data: np.ndarray[Any, Any] | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[str, int]:
        """What distinguishes this operand within its node."""
        return self.kind, self.position

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One element of an operand per iteration: one index expression per axis of `shape`.

    `view` re-reads the operand's row-major elements under another shape of equal size (that is how
    reshape is affine). `fill` is the value read outside the bounds (padding); None promises that no
    index is ever outside. A write outside the bounds is not allowed.
    """

    operand: Operand
    index: tuple[Index, ...]
    fill: Scalar | None = None
    view: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape the indices refer to: the view if there is one."""
        return self.operand.shape if self.view is None else self.view

    def dims(self) -> tuple[str, ...]:
        """Names of the dims the address depends on, in order of appearance."""
        names: dict[str, None] = {}
        for index in self.index:
            if isinstance(index, Affine):
                for name, _ in index.terms:
                    names[name] = None
            elif isinstance(index, Lookup):
                names[index.dim] = None
        return tuple(names)


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """See the module's text. `body` and `init` are over `reads`; `finish` also over `Acc`.

    `init` and `finish` may only use reads whose address does not depend on reduce dims.
    Without `combine` there are no reduce dims, and `init` and `finish` are None.
    """

    dims: tuple[Dim, ...]
    reads: tuple[Access, ...]
    write: Access
    body: Expr
    combine: Combine | None = None
    init: Expr | None = None
    finish: Expr | None = None

    @property
    def extents(self) -> dict[str, int]:
        """Extent of each dim by name."""
        return {d.name: d.extent for d in self.dims}

    @property
    def parallel_dims(self) -> tuple[Dim, ...]:
        """Dims that distinguish output elements."""
        return tuple(d for d in self.dims if d.role == "parallel")

    @property
    def reduce_dims(self) -> tuple[Dim, ...]:
        """Dims that are accumulated over."""
        return tuple(d for d in self.dims if d.role == "reduce")

    @property
    def num_iterations(self) -> int:
        """Product of all extents."""
        product = 1
        for d in self.dims:
            product *= d.extent
        return product

    def parts(self) -> Iterator[Expr]:
        """Every part of its expressions."""
        for expression in (self.body, self.init, self.finish):
            if expression is not None:
                yield from expression.walk()

    def __str__(self) -> str:
        loops = " ".join(
            f"{'for' if d.role == 'parallel' else 'reduce'} {d.name}<{d.extent}" for d in self.dims
        )
        reads = ", ".join(f"r{i}={format_access(a)}" for i, a in enumerate(self.reads))
        text = f"{loops}: {format_access(self.write)} {self.combine or ''}= {format_expr(self.body)}"
        if self.init is not None:
            text += f" from {format_expr(self.init)}"
        if self.finish is not None:
            text += f" then {format_expr(self.finish)}"
        return f"{text} where {reads}" if reads else text


@dataclass(frozen=True, slots=True)
class Opaque:
    """An operator that no nest describes: full regions, one kernel, never fused, run on the host."""

    reason: str


Nests = tuple[Nest, ...]


@dataclass(frozen=True, slots=True)
class Stepwise(Opaque):
    """Nests that run step by step along one of their dims: what a step computes the next one reads.

    For each value of `dim`, in order, those nests that have it run, in their order; then the others run.
    Every element is written once: what goes from step to step has an axis for the steps, and the nests of the
    first one read its `fill` or select something else. To readers of nests such an operator is opaque:
    it can be neither cut nor fused.
    """

    nests: Nests = ()
    dim: str = "t"

    @property
    def num_steps(self) -> int:
        """Extent of the dim."""
        return next(nest.extents[self.dim] for nest in self.nests if self.dim in nest.extents)


@dataclass(frozen=True, slots=True)
class Walks(Opaque):
    """An operator whose data steer it through constant tables, in so many steps at the most.

    To readers of nests it is opaque; a target may have kernels for it. `reach` are nests that read and
    write what it does, as far as rows go: of each operand all that an element of the result may depend on.
    """

    num_steps: int = 0
    reach: Nests = ()


Description = Nests | Opaque


def affine(*terms: str | int | tuple[str, int]) -> Affine:
    """Sum of dims (`"h"`), scaled dims (`("h", 2)`) and constants.

    >>> affine(("oh", 2), "kh", -1)
    Affine(terms=(('kh', 1), ('oh', 2)), offset=-1)
    """
    offset = 0
    coefficients: dict[str, int] = {}
    for term in terms:
        if isinstance(term, int):
            offset += term
        else:
            name, c = (term, 1) if isinstance(term, str) else term
            coefficients[name] = coefficients.get(name, 0) + c
    return Affine(tuple(sorted((n, c) for n, c in coefficients.items() if c)), offset)


def access_dims(nest: Nest, access: Access) -> tuple[str, ...]:
    """Dims an address depends on, those behind an index that is data included."""
    direct = access.dims()
    indirect = [index for index in access.index if isinstance(index, Indirect)]
    if not indirect:
        return direct
    names = dict.fromkeys(direct)
    for index in indirect:
        names.update(dict.fromkeys(access_dims(nest, nest.reads[index.read])))
    return tuple(names)


def row_major_address(access: Access) -> Affine | None:
    """Row-major address of an access, in elements; None where it is not affine or may lie outside."""
    if access.fill is not None:
        return None
    terms: list[int | tuple[str, int]] = []
    stride = 1
    for index, extent in zip(reversed(access.index), reversed(access.shape), strict=True):
        if not isinstance(index, Affine):
            return None
        terms += [(dim, stride * coefficient) for dim, coefficient in index.terms]
        terms.append(stride * index.offset)
        stride *= extent
    return affine(*terms)


def format_index(index: Index) -> str:
    """Text of one index expression."""
    match index:
        case Affine(terms, offset):
            parts = [name if c == 1 else f"{c}*{name}" for name, c in terms]
            if offset or not parts:
                parts.append(str(offset))
            return "+".join(parts).replace("+-", "-")
        case Lookup(table, dim):
            return f"table{len(table)}[{dim}]"
        case Indirect(read):
            return f"[r{read}]"


def format_access(access: Access) -> str:
    """Text of an access, e.g. `in0[n, c, 2*oh+kh-1]`."""
    prefix = {
        "input": "in",
        "output": "out",
        "local": "tmp",
        "table": "table",
        "reports": "reports",
        "rows": "rows",
    }[access.operand.kind]
    view = "" if access.view is None else f" as {list(access.view)}"
    fill = "" if access.fill is None else f" else {access.fill}"
    indices = ", ".join(format_index(i) for i in access.index)
    return f"{prefix}{access.operand.position}{view}[{indices}]{fill}"


def outside_axis(where: str, index: int, axis: int, extent: int) -> InputError:
    """The error for an index that is data and lies outside its axis; `where` names the node."""
    has = f"{extent} element" if extent == 1 else f"{extent} elements"
    return InputError(f"{where}: index {index} lies outside axis {axis}, which has {has}.")


def operands_of(nests: Sequence[Nest]) -> Iterator[Operand]:
    """Every operand the nests touch, each once, in order of first appearance."""
    seen: set[tuple[str, int]] = set()
    for nest in nests:
        for access in (*nest.reads, nest.write):
            if access.operand.key not in seen:
                seen.add(access.operand.key)
                yield access.operand
