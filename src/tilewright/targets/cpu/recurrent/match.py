"""Nests that run step by step, seen as the cells of a recurrent layer.

A cell goes through phases, most through one. A phase is one product of a state and constant weights, and
elementwise nests behind it that read of products, and of what they made themselves, the element of their unit
alone: a thread that has the weights of some units needs of the others nothing but the state. The step before
left it, or an earlier phase made it, as in a GRU whose candidate waits for the reset. Where weights are bytes
the state becomes bytes first, by its range over all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Call, Const, Expr, Iter, Read
from tilewright.ir.nest import Access, Affine, Index, Nest, Operand, Stepwise, affine
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Declined, OperandKey
from tilewright.targets.llvm.exprgen import unsupported_function

# Each thread that has a share of the units holds all bytes of the state on its stack.
_MAX_STATE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Before:
    """A part of the state before a step: where it lies, and where it does for the first one (None: zeros)."""

    access: Access
    first: Access | None


@dataclass(frozen=True, slots=True)
class StateBytes:
    """How a state becomes bytes, and what the product of these and weights reads.

    `ranges` reduce all of the state to a number each, from which `numbers` follow; `bytes` makes the bytes,
    whose zero point is `zero`. The `product` sums integers, and its finish says what the sum stands for.
    """

    ranges: tuple[Nest, ...]
    numbers: tuple[Nest, ...]
    bytes: Nest
    zero: Access
    weight_zero: Access | None
    product: Nest

    @property
    def accesses(self) -> list[Access]:
        """What lies in memory, but the state and the weights."""
        nests = (*self.ranges, self.bytes)
        local = {nest.write.operand.key for nest in (*nests, *self.numbers)}
        found = [access for nest in nests for access in nest.reads]
        found += [self.product.reads[part.index] for part in _reads(self.product.finish)]
        found += [] if self.weight_zero is None else [self.weight_zero]
        return [access for access in found if access.operand.key not in local]


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
    state_bytes: StateBytes | None = None

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
        elif nest.combine is not None and not (parts and _lacks_product(parts[-1])):
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
    _, rows, _, summed = next(nest for nest in parts[0] if nest.combine == "sum").dims
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
    for part in parts:
        if _lacks_product(part):
            return Declined("steps without a product")
        first = next(number for number, nest in enumerate(part) if nest.combine == "sum")
        made = {operand.key for phase in cells[-1] for operand in phase.made} if cells else set()
        phase = _phase(dim, part[:first], part[first], part[first + 1 :], constants, made)
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


def _lacks_product(part: Sequence[Nest]) -> bool:
    return all(nest.combine != "sum" for nest in part)


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
    before: Sequence[Nest],
    product: Nest,
    rest: Sequence[Nest],
    constants: Collection[OperandKey],
    made_before: set[OperandKey],
) -> Phase | Declined:
    names = [d.name for d in product.dims]
    if product.combine != "sum" or names[:1] != [dim] or len(names) != 4 or not product.reduce_dims:
        return Declined("a product that is no sum over rows of a state")
    _, rows, columns, summed = product.dims
    found = (
        _byte_product(dim, before, product, constants)
        if before
        else _real_product(dim, product, constants, made_before)
    )
    if isinstance(found, Declined):
        return found
    factor = found.weight
    first = factor.index[1]
    if factor.dims() != (columns.name, summed.name) or columns.extent % summed.extent:
        return Declined("weights in another order")
    if not isinstance(first, Affine) or first.coefficient(columns.name) != 1 or first.offset % summed.extent:
        return Declined("weights that do not begin with a block")
    state = found.state
    operand = state.access.operand if isinstance(state, Before) else state.operand
    if operand.dtype is not DType.FLOAT32 or (isinstance(state, Before) and operand.kind != "output"):
        return Declined("a state that is no result")
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
        found.given,
        columns.extent // size,
        tuple(rest),
        found.state_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Product:
    state: Before | Access
    weight: Access
    given: Access | None
    state_bytes: StateBytes | None = None


def _real_product(
    dim: str, product: Nest, constants: Collection[OperandKey], made_before: set[OperandKey]
) -> _Product | Declined:
    """A sum of products of a state and constant weights."""
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
    given: Access | None = None
    if product.init is not None:
        if not isinstance(product.init, Read):
            return Declined("a sum that starts from more than one operand")
        given = product.reads[product.init.index]
    return _Product(state, factor, given)


def _byte_product(
    dim: str, before: Sequence[Nest], product: Nest, constants: Collection[OperandKey]
) -> _Product | Declined:
    """A sum of products of constant bytes and a state that becomes bytes by the nests before."""
    *middle, last = before
    ranges = tuple(nest for nest in middle if nest.combine is not None)
    numbers = tuple(nest for nest in middle if nest.combine is None)
    names = [d.name for d in last.dims]
    if last.combine is not None or len(names) != 3 or [*ranges, *numbers] != middle:
        return Declined("a state that becomes bytes in another way")
    states = [_state_of(nest, dim) if _is_range(nest, names) else None for nest in ranges]
    made = {nest.write.operand.key for nest in (*ranges, *numbers)}
    is_known = all(read.operand.key in made for nest in numbers for read in nest.reads)
    if not states or states[0] is None or None in states or not is_known:
        return Declined("bytes by something else than the range of a state")
    if any(nest.write.index != (affine(dim),) for nest in (*ranges, *numbers)):
        return Declined("a range that is not one number in a step")
    reads = [access for nest in (*ranges, last) for access in nest.reads]
    reads += [product.reads[part.index] for part in _reads(product.finish)]
    if not all(access.operand.key in made or _is_by_unit(access) for access in reads):
        return Declined("units that do not lie side by side")
    match product.body:
        case Call("mul", (left, right)):
            (one, zero), (factor, weight_zero) = (_difference(product, part) for part in (left, right))
        case _:
            return Declined("a sum of something else than products")
    if one is None or one.operand.key != last.write.operand.key or zero is None or factor is None:
        return Declined("a sum of something else than products of bytes")
    if zero.operand.key not in made or one.operand.dtype is not DType.UINT8:
        return Declined("bytes of a state in another form")
    weights = [factor, *([] if weight_zero is None else [weight_zero])]
    if any(w.operand.key not in constants or w.operand.dtype is not DType.INT8 for w in weights):
        return Declined("weights that are no constant bytes")
    if product.init is not None or product.finish is None:
        return Declined("a sum of bytes that stands for nothing else")
    num_bytes = last.dims[1].extent * last.dims[2].extent
    if num_bytes > _MAX_STATE_BYTES:
        return Declined(f"{num_bytes} bytes of a state are more than {_MAX_STATE_BYTES}")
    of_bytes = StateBytes(ranges, numbers, last, zero, weight_zero, product)
    return _Product(states[0], factor, None, of_bytes)


def _is_range(nest: Nest, names: Sequence[str]) -> bool:
    """Whether a nest finds the smallest or largest value over all that its dims name, zero included."""
    is_whole = [d.name for d in nest.dims] == names and isinstance(nest.finish, Acc)
    return is_whole and nest.combine in ("min", "max") and nest.init == Const(0.0, DType.FLOAT32)


def _state_of(nest: Nest, dim: str) -> Before | None:
    """The state before that a nest's value is, zeros where a sequence does not count."""
    match nest.body:
        case Call("select", (Read(flag), value, Const(0))) if nest.reads[flag].operand.dtype is DType.BOOL:
            return before_of(nest, value, dim)
    return before_of(nest, nest.body, dim)


def _is_by_unit(access: Access) -> bool:
    """Whether a vector of an operand is read for a vector of units, or one number for all."""
    *outer, last = access.index or (affine(),)
    if access.view is not None or not isinstance(last, Affine):
        return False
    names = {name for index in outer for name in (index.dims() if isinstance(index, Affine) else ())}
    is_plain = all(isinstance(index, Affine) for index in outer) and not names & set(last.dims())
    is_typed = access.operand.dtype in (DType.FLOAT32, DType.BOOL)
    return is_plain and is_typed and all(coefficient == 1 for _, coefficient in last.terms)


def _difference(nest: Nest, value: Expr) -> tuple[Access | None, Access | None]:
    """Of a difference of two reads both, of a read alone that; whatever type they are converted to."""
    match value:
        case Call("sub", (left, right)):
            return _converted(nest, left), _converted(nest, right)
    return _converted(nest, value), None


def _converted(nest: Nest, value: Expr) -> Access | None:
    match value:
        case Call("cast", (Read(number),)) | Read(number):
            return nest.reads[number]
    return None


def _reads(expr: Expr | None) -> list[Read]:
    return [] if expr is None else [part for part in expr.walk() if isinstance(part, Read)]


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
