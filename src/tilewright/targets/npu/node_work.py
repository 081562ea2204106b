"""The class of work of a node, the types that it takes and the shape of its products, as its nests say.

Sums of products over channels, sums of each channel alone, other sums, functions, plain arithmetic, copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod

from tilewright.hardware.element_types import ElementTypes
from tilewright.hardware.machine import Work
from tilewright.hardware.parts import MULTIPLYING
from tilewright.ir.contraction import ContractionForm, contraction_of, contractions
from tilewright.ir.derive import nest_flops, nests_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Call, Read, reads_of
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Indirect, Nest, row_major_address
from tilewright.records import dataclass

AS_IN_FILE = ElementTypes()


@dataclass(frozen=True, slots=True)
class Shape:
    """A contraction as a matrix unit sees it: output axes of rows and of columns.

    Several products may lie side by side along an axis, as those of a grouped convolution do: `lengths` says
    of such an axis how many of its elements are of one product.
    """

    rows: frozenset[int]
    columns: frozenset[int]
    lengths: Mapping[int, int] = field(default_factory=dict)

    def product(self, own: Sequence[int]) -> tuple[int, int]:
        """Rows and columns of a product of which so many elements along each axis are made."""
        lengths = [min(size, self.lengths.get(axis, size)) for axis, size in enumerate(own)]
        rows, columns = (prod(lengths[axis] for axis in axes) for axes in (self.rows, self.columns))
        return rows, columns


@dataclass(frozen=True, slots=True)
class Rest:
    """What a node that multiplies matrices computes besides: an operation for each element of each pass.

    `dtypes` are those of the elements that it takes.
    """

    work: Work
    ops: int
    dtypes: tuple[DType, ...]


def is_view(node: Node) -> bool:
    """Whether each result is a run of elements of an operand, in the same order: a look at what is there."""
    nests = nests_of(node)
    return len(nests) == len(list(node.results())) and all(map(_passes_on, nests))


def _passes_on(nest: Nest) -> bool:
    if not isinstance(nest.body, Read) or nest.combine is not None or nest.finish is not None:
        return False
    written, read = row_major_address(nest.write), row_major_address(nest.reads[nest.body.index])
    if written is None or read is None:
        return False
    walked = {dim.name for dim in nest.dims if dim.extent > 1}
    left, right = ({term for term in a.terms if term[0] in walked} for a in (written, read))
    return left == right


def is_read(node: Node, position: int) -> bool:
    """Whether a node reads an operand as it runs; the shape of a Reshape is known before."""
    nests = nests_of(node)
    return not nests or any(a.operand.key == ("input", position) for nest in nests for a in nest.reads)


def is_table(node: Node, position: int) -> bool:
    """Whether data say which rows of an operand are read."""
    return any(
        access.operand.key == ("input", position) and any(isinstance(i, Indirect) for i in access.index)
        for nest in nests_of(node)
        for access in nest.reads
    )


def has_products(node: Node) -> bool:
    """Whether a node sums products."""
    return node.remembered(work_of) in MULTIPLYING


def works_of(node: Node) -> Iterator[Work]:
    """The operation classes of a node that units take."""
    work = work_of(node)
    rest = rest_of(node) if work in MULTIPLYING else None
    yield from (w for w in (work, None if rest is None else rest.work) if w not in (None, Work.MOVEMENT))


def work_of(node: Node, types: ElementTypes = AS_IN_FILE) -> Work:
    """The operation class that takes most of a node's time, where elements are kept as `types` say."""
    nests = nests_of(node)
    products = contractions(nests)
    if not products:
        return _work_without_products(nests, types)
    main = max(products, key=lambda form: form.nest.num_iterations)
    return Work.DEPTHWISE if main.is_depthwise else Work.CONTRACTION


def rest_of(node: Node) -> Rest | None:
    """What the nests that multiply no matrices compute: the softmax of attention, the gates of an LSTM."""
    nests = [n for n in nests_of(node) if contraction_of(n) is None and nest_flops(n)]
    if not nests:
        return None
    work = _work_without_products(nests, AS_IN_FILE)
    return Rest(work, sum(n.num_iterations for n in nests), _plain_dtypes(nests))


def dtypes_of(node: Node) -> tuple[DType, ...]:
    """The element types of what the work that takes most of a node's time takes: a product's factors, else
    what is read and made.

    What sums are kept in is the unit's business.
    """
    nests = nests_of(node)
    products = contractions(nests)
    if products:
        return _factor_dtypes(max(products, key=lambda form: form.nest.num_iterations))
    return _plain_dtypes(nests) or (node.output.dtype,)


def _factor_dtypes(form: ContractionForm) -> tuple[DType, ...]:
    read = dict.fromkeys(access.operand.dtype for access in form.accesses)
    if not form.dtype.is_float:
        return tuple(read)
    # Factors that are made of integers on their way into a product of floating-point numbers become such.
    return tuple(dtype for dtype in read if dtype.is_float) or (form.dtype,)


def _plain_dtypes(nests: Iterable[Nest]) -> tuple[DType, ...]:
    """Of all that is read element by element, and what is made of it; single values are there beforehand."""
    found: dict[DType, None] = {}
    for nest in nests:
        if contraction_of(nest) is None and (nest_flops(nest) or _converts(nest, AS_IN_FILE)):
            found |= dict.fromkeys(a.operand.dtype for a in _taken(nest) if a.operand.num_elements > 1)
            if nest.combine is None:
                found[nest.write.operand.dtype] = None
    return tuple(found)


def _converts(nest: Nest, types: ElementTypes) -> bool:
    """Whether a nest that computes nothing makes another type of what it reads."""
    written = types.stored(nest.write.operand.dtype)
    return any(types.stored(access.operand.dtype) is not written for access in _taken(nest))


def _taken(nest: Nest) -> list[Access]:
    """What a nest reads to compute with it, rather than to find something."""
    return [nest.reads[number] for number in sorted(reads_of(nest.body, nest.finish))]


def _work_without_products(nests: Sequence[Nest], types: ElementTypes) -> Work:
    if nests and not any(nest_flops(nest) for nest in nests):
        return Work.ELEMENTWISE if any(_converts(nest, types) for nest in nests) else Work.MOVEMENT
    if any(nest.combine is not None for nest in nests):
        return Work.REDUCTION
    if any(_calls_function(nest) for nest in nests):
        return Work.SPECIAL
    return Work.ELEMENTWISE


def _calls_function(nest: Nest) -> bool:
    parts = [part for part in (nest.body, nest.finish) if part is not None]
    calls = (e for part in parts for e in part.walk() if isinstance(e, Call))
    return any(FUNCTIONS[call.function].cost_flop > 1 for call in calls)


def shape_of(node: Node) -> Shape | None:
    """Rows and columns of the largest contraction that makes a node's result, as axes of that result.

    None where no contraction makes it: the products of attention may be laid out anew after the last one.
    """
    result = ("output", node.outputs.index(node.output))
    products = [
        form
        for form in contractions(nests_of(node))
        if form.nest.write.operand.key == result and form.nest.write.view is None
    ]
    if not products:
        return None
    main = max(products, key=lambda form: form.nest.num_iterations)
    rows, columns = main.result_axes(main.rows), main.result_axes(main.columns)
    extent_of = {dim.name: dim.extent for dim in main.nest.dims}
    lengths = {}
    for axis in rows | columns:
        index = main.nest.write.index[axis]
        assert isinstance(index, Affine), "it moves with dims"
        if not set(main.batch).isdisjoint(index.dims()):
            lengths[axis] = prod(extent_of[dim] for dim in index.dims() if dim not in main.batch)
    return Shape(rows, columns, lengths)


def multiplied(operators: Sequence[Node]) -> frozenset[str]:
    """Names of the values that sums of products read."""
    return frozenset(
        operand.name
        for node in operators
        if has_products(node)
        for operand in node.inputs
        if operand is not None
    )
