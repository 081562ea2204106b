"""Nests that run step by step, seen as the cells of a recurrent layer.

A cell is one product of the state before and constant weights, and elementwise nests behind it that read
of the product, and of what they made themselves, the element of their unit alone: a thread that has the
weights of some units needs of the others nothing but their state before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Const, Expr, Iter, Read
from tilewright.ir.nest import Access, Affine, Nest, Operand, Stepwise, affine
from tilewright.targets.cpu.exprgen import unsupported_function
from tilewright.targets.cpu.kernel import Declined, OperandKey


@dataclass(frozen=True, slots=True)
class Before:
    """A part of the state before a step: where it lies, and where it does for the first one (None: zeros)."""

    access: Access
    first: Access | None


@dataclass(frozen=True, slots=True)
class StepCell:
    """What one direction computes in a step.

    `dims` are the rows, columns and terms of the product. `total` is the temporary that the product of
    `state` and `weight` makes, `blocks` times as wide as the state, `given` what it starts from. `rest` are
    the elementwise nests.
    """

    dims: tuple[str, str, str]
    total: Operand
    state: Before
    weight: Access
    given: Access | None
    blocks: int
    rest: tuple[Nest, ...]


@dataclass(frozen=True, slots=True)
class StepsProblem:
    """The steps of a layer. `homes` says where the temporaries lie that a step leaves for the next one."""

    dim: str
    steps: int
    batch: int
    size: int
    cells: tuple[StepCell, ...]
    homes: Mapping[OperandKey, Access]

    @property
    def step_macs(self) -> int:
        """Multiply-adds of one step."""
        return sum(self.batch * self.size * cell.blocks * self.size for cell in self.cells)

    @property
    def weight_bytes(self) -> int:
        """Of all recurrent weights."""
        return sum(cell.weight.operand.dtype.size_bytes * cell.blocks * self.size**2 for cell in self.cells)


def match_steps(
    description: Stepwise, nests: Sequence[Nest], constants: Collection[OperandKey], next_local: int
) -> StepsProblem | Declined:
    """The cells of nests, which are those of the description under a group's names."""
    dim = description.dim
    parts: list[list[Nest]] = []
    ends: list[Nest] = []
    for nest in nests:
        if dim not in nest.extents:
            ends.append(nest)
        elif nest.combine is not None:
            parts.append([nest])
        elif parts:
            parts[-1].append(nest)
        else:
            return Declined("steps that do not begin with a product")
    if not parts:
        return Declined("steps without a product")
    homes: dict[OperandKey, Access] = {}
    for nest in ends:
        if nest.combine is not None or not isinstance(nest.body, Read) or len(nest.reads) != 1:
            return Declined("more than copies behind the last step")
        homes[nest.reads[0].operand.key] = nest.write
    cells: list[StepCell] = []
    for product, *rest in parts:
        cell = _cell(dim, product, rest, constants)
        if isinstance(cell, Declined):
            return cell
        cells.append(cell)
    problem = _different(cells)
    if problem is not None:
        return Declined(problem)
    _, rows, _, summed = parts[0][0].dims
    for carried in _carried(cells):
        if carried.key not in homes:
            shape = carried.shape[1:]
            home = Operand("local", next_local + len(homes), carried.dtype, shape)
            homes[carried.key] = Access(home, tuple(affine(name) for name in ("m", "j")))
    return StepsProblem(dim, description.num_steps, rows.extent, summed.extent, tuple(cells), homes)


def _different(cells: Sequence[StepCell]) -> str | None:
    """Why cells do not share a loop."""
    first = cells[0]
    for number, cell in enumerate(cells):
        if cell.weight.operand.key != first.weight.operand.key or cell.blocks != first.blocks:
            return "directions with weights of their own"
        if cell.weight.index[0] != affine(number) or len(cells) != cell.weight.operand.shape[0]:
            return "directions in another order"
    return None


def _carried(cells: Sequence[StepCell]) -> list[Operand]:
    """Temporaries of a step that the next one reads."""
    reads = (a for cell in cells for nest in cell.rest for a in nest.reads)
    return [a.operand for a in reads if a.fill is not None and a.operand.kind == "local"]


def _cell(
    dim: str, product: Nest, rest: Sequence[Nest], constants: Collection[OperandKey]
) -> StepCell | Declined:
    names = [d.name for d in product.dims]
    if product.combine != "sum" or names[:1] != [dim] or len(names) != 4 or not product.reduce_dims:
        return Declined("a product that is no sum over rows of a state")
    _, rows, columns, summed = product.dims
    body = product.body
    if not isinstance(body, Call) or body.function != "mul" or product.finish is not None:
        return Declined("a sum of something else than products")
    state, weight = before_of(product, body.args[0], dim), body.args[1]
    if state is None or not isinstance(weight, Read):
        return Declined("a product of something else than the state before and weights")
    factor = product.reads[weight.index]
    if factor.operand.key not in constants or factor.operand.dtype is not DType.FLOAT32:
        return Declined("weights that are computed at run time")
    if factor.dims() != (columns.name, summed.name) or columns.extent % summed.extent:
        return Declined("weights in another order")
    if state.access.operand.dtype is not DType.FLOAT32 or state.access.operand.kind != "output":
        return Declined("a state that is no result")
    given: Access | None = None
    if product.init is not None:
        if not isinstance(product.init, Read):
            return Declined("a sum that starts from more than one operand")
        given = product.reads[product.init.index]
    size, total = summed.extent, product.write.operand
    made = {total.key}
    for nest in rest:
        problem = _elementwise_problem(nest, (dim, rows.name), size, made, dim)
        if problem is not None:
            return Declined(problem)
        made.add(nest.write.operand.key)
    return StepCell(
        (rows.name, columns.name, summed.name),
        total,
        state,
        factor,
        given,
        columns.extent // size,
        tuple(rest),
    )


def _elementwise_problem(
    nest: Nest, outer: tuple[str, str], size: int, made: set[OperandKey], dim: str
) -> str | None:
    """Why a nest is not computed unit by unit behind a product."""
    names = [d.name for d in nest.dims]
    if nest.combine is not None or len(names) != 3 or (names[0], names[1]) != outer:
        return "a nest that is not over steps, sequences and units"
    unit = names[2]
    if nest.extents[unit] != size:
        return "a nest over something else than units"
    if unsupported_function(nest.body) is not None:
        return unsupported_function(nest.body)
    for access in (*nest.reads, nest.write):
        last = access.index[-1]
        if access.view is not None or not all(isinstance(i, Affine) for i in access.index):
            return "an access that is not affine"
        assert isinstance(last, Affine)
        if unit in access.dims() and (
            last.coefficient(unit) != 1 or any(unit in i.dims() for i in access.index[:-1])  # type: ignore[union-attr]
        ):
            return "units that do not lie side by side"
        if access.operand.dtype not in (DType.FLOAT32, DType.BOOL):
            return f"{access.operand.dtype} elements"
        is_before = access.fill is not None
        is_made = access.operand.key in made and last.offset % size == 0 and last.dims() == (unit,)
        if access.operand.kind == "local" and access is not nest.write and not is_before and not is_made:
            return "a temporary of other units"
    return None


def before_of(nest: Nest, value: Expr, dim: str) -> Before | None:
    """A value as a state before: a read with a fill, or another one for the first step."""
    if isinstance(value, Read):
        access = nest.reads[value.index]
        return Before(access, None) if access.fill == 0 and access.fill is not None else None
    match value:
        case Call("select", (Call("eq", (Iter(name), Const(0))), Read(first), Read(later))) if name == dim:
            access = nest.reads[later]
            return None if access.fill is None else Before(access, nest.reads[first])
    return None
