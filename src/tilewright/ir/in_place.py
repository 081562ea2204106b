"""The rule of writing in place: of which operands a result may take the memory while it is being made.

The last pass over the result may read of such an operand just the element that it writes, at the address
where it writes it; then no order of elements, and no number of workers, meets an element that is gone. Passes
before the last one may read all of the operand: a softmax has its maximum and its sum before it writes.

The rule speaks of elements. Whether the operand dies there, and whether an element of the result is as large
as one of the operand, is for planners that know lifetimes and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Access, Affine, Nest, Opaque, affine, row_major_address
from tilewright.ir.ops import describe

Place = Callable[[Access], Hashable]
"""Where an access goes in each iteration of its nest; None: not known."""


def reads_where_it_writes(nest: Nest, reads: Sequence[Access], place: Place) -> bool:
    """Whether these reads of a nest go, in every iteration, to the place that it writes."""
    written = place(nest.write)
    return written is not None and all(place(read) == written for read in reads)


def in_place_operands(nodes: Sequence[Node], operands: Collection[Value], result: Value) -> frozenset[Value]:
    """The operands of nodes, in topological order, in whose place their one result can be made.

    Every way from the operand to the result must keep to the element; what lies between may be stored or made
    again for each element. O(reads of the nodes).
    """
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.operands()):
            readers.setdefault(value, []).append(node)
    keeps: dict[Value, bool] = {}

    def keeps_to_element(value: Value) -> bool:
        if value is result:
            return True
        return all(keeps[n.output] and _reads_own_element(n, value) for n in readers.get(value, ()))

    # Readers come later: from the last node back, what they make is known before what they read.
    for node in reversed(nodes):
        for value in node.results():
            keeps[value] = keeps_to_element(value)
    return frozenset(v for v in operands if keeps_to_element(v))


def _reads_own_element(node: Node, value: Value) -> bool:
    """Whether the node's last nest alone writes its one result, and reads of the value what it writes."""
    positions = node.remembered(_own_positions)
    return positions is not None and all(i in positions for i, v in enumerate(node.inputs) if v is value)


def _own_positions(node: Node) -> frozenset[int] | None:
    """The operands of which the node's last nest, which alone writes its one result, reads no more than the
    element that it writes; None where others write the result, or where that is not known."""
    nests = describe(node)
    if isinstance(nests, Opaque) or not nests or len(list(node.results())) != 1:
        return None
    *earlier, last = nests
    if last.combine is not None or any(n.write.operand.kind == "output" for n in earlier):
        return None
    if last.num_iterations != last.write.operand.num_elements:
        return None  # an element that is written twice was read where it was no more
    if _element(last, last.write) is None:
        return None
    reads: dict[int, list[Access]] = {position: [] for position in range(len(node.inputs))}
    for read in last.reads:
        if read.operand.kind == "input":
            reads[read.operand.position].append(read)
    return frozenset(
        position
        for position, listed in reads.items()
        if reads_where_it_writes(last, listed, lambda access: _element(last, access))
    )


def _element(nest: Nest, access: Access) -> Affine | None:
    """The row-major element, without loops that run once: an operand of one row is read without naming it."""
    address = row_major_address(access)
    if address is None:
        return None
    moving = {dim.name for dim in nest.dims if dim.extent > 1}
    return affine(*(term for term in address.terms if term[0] in moving), address.offset)
