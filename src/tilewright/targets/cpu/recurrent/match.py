"""Nests that run step by step, seen as the cells of a recurrent layer.

A cell goes through phases, most through one. A phase is one product of a state and constant weights, and
elementwise nests behind it that read of products, and of what they made themselves, the element of their unit
alone: a thread that has the weights of some units needs of the others nothing but the state. The step before
left it, or an earlier phase made it, as in a GRU whose candidate waits for the reset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Const, Expr, Iter, Read
from tilewright.ir.nest import Access, Affine, Index, Nest, Operand, Stepwise, affine
from tilewright.targets.cpu.exprgen import unsupported_function
from tilewright.targets.cpu.kernel import Declined, OperandKey


@dataclass(frozen=True, slots=True)
class Before:
    """A part of the state before a step: where it lies, and where it does for the first one (None: zeros)."""

    access: Access
    first: Access | None


@dataclass(frozen=True, slots=True)
class Phase:
    """What one direction computes in a step before all threads have to wait for each other.

    `dims` are the rows, columns and terms of the product. `total` is the temporary that the product of
    `state` and `weight` makes, `blocks` times as wide as the state, `given` what it starts from. Its weights
    begin with the block `first_block`. A state that is a mere access was made by an earlier phase. `rest` are
    the elementwise nests.
    """

    dims: tuple[str, str, str]
    total: Operand
    state: Before | Access
    weight: Access
    first_block: int
    given: Access | None
    blocks: int
    rest: tuple[Nest, ...]

    @property
    def starts_empty(self) -> bool:
        """Whether the product is nothing in the first step: there is no state before."""
        return isinstance(self.state, Before) and self.state.first is None

    @property
    def made(self) -> list[Operand]:
        """Temporaries and results, in order."""
        return [self.total, *(nest.write.operand for nest in self.rest)]


Cell = tuple[Phase, ...]
"""What one direction computes in a step."""


@dataclass(frozen=True, slots=True)
class Home:
    """Memory of a temporary, the same in all steps; `outer` is where in the operand it begins."""

    operand: Operand
    outer: tuple[Index, ...] = ()

    def at(self, access: Access) -> Access:
        """The place of an access to the temporary of all steps."""
        return Access(self.operand, (*self.outer, *access.index[1:]))


@dataclass(frozen=True, slots=True)
class StepsProblem:
    """The steps of a layer; its cells have as many phases each.

    `homes` says where the temporaries lie that later phases and steps read.
    """

    dim: str
    steps: int
    batch: int
    size: int
    cells: tuple[Cell, ...]
    homes: Mapping[OperandKey, Home]

    @property
    def num_phases(self) -> int:
        """Of a step."""
        return len(self.cells[0])

    @property
    def phases(self) -> list[Phase]:
        """Those of all cells."""
        return [phase for cell in self.cells for phase in cell]

    @property
    def step_macs(self) -> int:
        """Multiply-adds of one step."""
        return sum(self.batch * self.size * phase.blocks * self.size for phase in self.phases)

    @property
    def weight_bytes(self) -> int:
        """Of all recurrent weights."""
        return sum(p.weight.operand.dtype.size_bytes * p.blocks * self.size**2 for p in self.phases)

    def place(self, access: Access) -> Access:
        """Where in memory an operand is read or written."""
        home = self.homes.get(access.operand.key)
        return access if home is None else home.at(access)


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
    homes: dict[OperandKey, Home] = {}
    for nest in ends:
        if nest.combine is not None or not isinstance(nest.body, Read) or len(nest.reads) != 1:
            return Declined("more than copies behind the last step")
        (source,), target = nest.reads, nest.write
        inner = len(source.index) - 1
        if target.index[-inner:] != source.index[1:] or source.operand.kind != "local":
            return Declined("a copy behind the last step that moves elements")
        homes[source.operand.key] = Home(target.operand, target.index[:-inner])
    cells = _cells(dim, parts, constants)
    if isinstance(cells, Declined):
        return cells
    _, rows, _, summed = parts[0][0].dims
    for shared in _shared(cells):
        if shared.key not in homes:
            operand = Operand("local", next_local + len(homes), shared.dtype, shared.shape[1:])
            homes[shared.key] = Home(operand)
    return StepsProblem(dim, description.num_steps, rows.extent, summed.extent, cells, homes)


def _cells(
    dim: str, parts: Sequence[Sequence[Nest]], constants: Collection[OperandKey]
) -> tuple[Cell, ...] | Declined:
    """The phases of each direction, one for each product and what follows it."""
    cells: list[list[Phase]] = []
    for product, *rest in parts:
        made = {operand.key for phase in cells[-1] for operand in phase.made} if cells else set()
        phase = _phase(dim, product, rest, constants, made)
        if isinstance(phase, Declined):
            return phase
        if isinstance(phase.state, Before):
            cells.append([])
        cells[-1].append(phase)
    shapes = [[(p.weight.operand.key, p.first_block, p.blocks) for p in cell] for cell in cells]
    if any(shape != shapes[0] for shape in shapes) or len({key for key, *_ in shapes[0]}) > 1:
        return Declined("directions with weights of their own")
    for number, cell in enumerate(cells):
        weights = [phase.weight for phase in cell]
        if any(w.index[0] != affine(number) or w.operand.shape[0] != len(cells) for w in weights):
            return Declined("directions in another order")
    return tuple(map(tuple, cells))


def _shared(cells: Sequence[Cell]) -> list[Operand]:
    """Temporaries of a step that the next one, or a later phase, reads."""
    shared: dict[OperandKey, Operand] = {}
    for cell in cells:
        for phase in cell:
            made = {operand.key for operand in phase.made}
            reads = [access for nest in phase.rest for access in nest.reads]
            if isinstance(phase.state, Access):
                reads.append(phase.state)
            for access in reads:
                is_earlier = access.fill is not None or access.operand.key not in made
                if access.operand.kind == "local" and is_earlier:
                    shared[access.operand.key] = access.operand
    return list(shared.values())


def _phase(
    dim: str,
    product: Nest,
    rest: Sequence[Nest],
    constants: Collection[OperandKey],
    made_before: set[OperandKey],
) -> Phase | Declined:
    names = [d.name for d in product.dims]
    if product.combine != "sum" or names[:1] != [dim] or len(names) != 4 or not product.reduce_dims:
        return Declined("a product that is no sum over rows of a state")
    _, rows, columns, summed = product.dims
    body = product.body
    if not isinstance(body, Call) or body.function != "mul" or product.finish is not None:
        return Declined("a sum of something else than products")
    left, weight = body.args
    state = before_of(product, left, dim) or _made_in_step(product, left, made_before)
    if state is None or not isinstance(weight, Read):
        return Declined("a product of something else than a state and weights")
    factor = product.reads[weight.index]
    if factor.operand.key not in constants or factor.operand.dtype is not DType.FLOAT32:
        return Declined("weights that are computed at run time")
    first = factor.index[1]
    if factor.dims() != (columns.name, summed.name) or columns.extent % summed.extent:
        return Declined("weights in another order")
    if not isinstance(first, Affine) or first.coefficient(columns.name) != 1 or first.offset % summed.extent:
        return Declined("weights that do not begin with a block")
    operand = state.access.operand if isinstance(state, Before) else state.operand
    if operand.dtype is not DType.FLOAT32 or (isinstance(state, Before) and operand.kind != "output"):
        return Declined("a state that is no result")
    given: Access | None = None
    if product.init is not None:
        if not isinstance(product.init, Read):
            return Declined("a sum that starts from more than one operand")
        given = product.reads[product.init.index]
    size, total = summed.extent, product.write.operand
    made = {*made_before, total.key}
    for nest in rest:
        problem = _elementwise_problem(nest, (dim, rows.name), size, made, dim)
        if problem is not None:
            return Declined(problem)
        made.add(nest.write.operand.key)
    return Phase(
        (rows.name, columns.name, summed.name),
        total,
        state,
        factor,
        first.offset // size,
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


def _made_in_step(nest: Nest, value: Expr, made_before: set[OperandKey]) -> Access | None:
    """A value as what an earlier phase made."""
    if not isinstance(value, Read):
        return None
    access = nest.reads[value.index]
    return access if access.operand.key in made_before and access.fill is None else None


def before_of(nest: Nest, value: Expr, dim: str) -> Before | None:
    """A value as a state before: a read with a fill, or another one for the first step."""
    if isinstance(value, Read):
        access = nest.reads[value.index]
        return Before(access, None) if access.fill == 0 else None
    match value:
        case Call("select", (Call("eq", (Iter(name), Const(0))), Read(first), Read(later))) if name == dim:
            access = nest.reads[later]
            return None if access.fill is None else Before(access, nest.reads[first])
    return None
