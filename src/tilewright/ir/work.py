"""How much work a node may be, and that no node is more: a few bytes of a model can ask for years.

The limits hold for every operator, and are far above what any of them needs: a window, say, that has more
taps than its input has elements mostly reads beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Nest
from tilewright.records import dataclass

# Steps of one loop nest: five minutes on a core that multiplies at its peak, and four times what a layer of
# the largest language models takes over 8192 tokens.
MAX_NODE_STEPS = 2**43
# Steps for each result from all operands: a product takes one for each pair of operands at the most.
MAX_STEPS_PER_PAIR = 256
# So many are fine for tensors of any size: they take milliseconds.
FREE_STEPS = 2**22

# Steps to compute a node while compiling, and more where operands and results are larger.
MAX_FOLDING_STEPS = 2**26
FOLDING_STEPS_PER_ELEMENT = 16
# One that is interpreted takes as long as so many others.
FOLDING_STEPS_PER_HOST_STEP = 256

# Entries of a table of positions or weights along one axis: more than an axis has that is looked up.
MAX_TABLE_ENTRIES = 2**22

# Elements that a node without nests holds at once on the host besides its operands: 2 GiB as float64.
MAX_HOST_ELEMENTS = 2**28

# Steps of such a node that are interpreted: minutes.
MAX_HOST_STEPS = 2**28

# Held for each point of a Fourier transform: complex numbers, of a padded length, and of the result.
ELEMENTS_PER_POINT = 16

# Time for the expressions of one RegexFullMatch: matching can take exponentially long.
MAX_REGEX_S = 10.0

# Steps of a loop whose body runs on the host, those of loops inside it included: they take 20 us and more.
MAX_LOOP_STEPS = 2**18

# Steps of a loop whose body is compiled, those of loops inside it included: from .1 us to a few each.
MAX_COMPILED_LOOP_STEPS = 2**24

# Elements that one box of RoiAlign may be computed from.
MAX_BOX_SAMPLES = 2**24


def find_excess(node: Node, nests: Sequence[Nest]) -> str | None:
    """What is too much about a node's nests, None if they are within limits."""
    allowed = _allowed_steps(node)
    for nest in nests:
        written = nest.write.operand
        kept = prod(written.shape) if written.kind == "local" else 0
        padded = max(
            (_padded_elements(nest, access) for access in nest.reads if access.fill is not None), default=0
        )
        for count, what in (
            (nest.num_iterations, "takes {} steps"),
            (kept, "keeps {} elements in between"),
            (padded, "pads an input to {} elements"),
        ):
            if count > allowed:
                return (
                    f"it {what.format(count)}, more than the {allowed} that "
                    f"{_whose(allowed, 'its operands and results')}; check its attributes"
                )
    return None


def _padded_elements(nest: Nest, access: Access) -> int:
    """Elements of the box that a read ranges over, padding included."""
    extents = {d.name: d.extent for d in nest.dims}
    if 0 in extents.values():
        return 0
    total = 1
    for index, size in zip(access.index, access.shape, strict=True):
        low, high = index.bounds(extents) if isinstance(index, Affine) else (0, size - 1)
        total *= max(high, size - 1) - min(low, 0) + 1
    return total


def check_steps(node: Node, num_steps: int) -> None:
    """Refuse work that no nest describes.

    Raises:
        ValueError: it is more than the operands and results can need.
    """
    allowed = _allowed_steps(node)
    if num_steps > allowed:
        raise ValueError(
            f"{num_steps} steps are more than the {allowed} that {_whose(allowed, 'these operands')}"
        )


def check_table(num_entries: int) -> None:
    """Refuse a table that is too long.

    Raises:
        ValueError: it is.
    """
    if num_entries > MAX_TABLE_ENTRIES:
        raise ValueError(f"a table of {num_entries} positions is longer than the {MAX_TABLE_ENTRIES} allowed")


def find_folding_excess(node: Node, work: Sequence[Nest] | HostWork) -> str | None:
    """Why a constant node is too much to compute while compiling, or None."""
    elements = sum(v.num_elements for v in (*dict.fromkeys(node.operands()), *node.results()))
    allowed = max(MAX_FOLDING_STEPS, FOLDING_STEPS_PER_ELEMENT * elements)
    if isinstance(work, HostWork):
        steps = max(elements, work.elements, FOLDING_STEPS_PER_HOST_STEP * work.steps)
    else:
        steps = sum(nest.num_iterations for nest in work)
    return f"it takes {steps} steps, more than {allowed}" if steps > allowed else None


@dataclass(frozen=True, slots=True)
class HostWork:
    """What a node without nests asks of the host at the most."""

    elements: int = 0  # that it holds at once besides its operands
    steps: int = 0  # that are interpreted


def find_host_excess(work: HostWork) -> str | None:
    """What is too much about work on the host, None if it is within limits."""
    for count, what, limit, name in (
        (work.elements, "holds {} elements", MAX_HOST_ELEMENTS, "MAX_HOST_ELEMENTS"),
        (work.steps, "takes {} steps", MAX_HOST_STEPS, "MAX_HOST_STEPS"),
    ):
        if count > limit:
            return (
                f"on the host it {what.format(count)}, more than {name} = {limit}; check its attributes and "
                "the operands that say how large it is"
            )
    return None


def require_holdable(node: Node, shape: Sequence[int]) -> None:
    """That the host may hold a result which operands make so large; one that a graph states was looked at.

    Raises:
        ValueError: it has too many elements.
    """
    num_elements = prod(shape)
    if num_elements > max(MAX_HOST_ELEMENTS, node.output.num_elements):
        raise ValueError(
            f"its operands make a result of {num_elements:,} elements, more than the {MAX_HOST_ELEMENTS:,} "
            "(MAX_HOST_ELEMENTS) that the host may hold"
        )


def number_of(data: Sequence[np.ndarray[Any, Any] | None], position: int, default: int) -> int:
    """The whole number that an operand holds; the default where it is not known or not given."""
    array = data[position] if position < len(data) else None
    return default if array is None or not array.size else int(array.reshape(-1)[0])


def _whose(allowed: int, operands: str) -> str:
    return "a node may take (MAX_NODE_STEPS)" if allowed == MAX_NODE_STEPS else f"{operands} can need"


def _allowed_steps(node: Node) -> int:
    pairs = max((max(value.num_elements, 1) for value in node.results()), default=1)
    for value in node.operands():
        pairs *= max(value.num_elements, 1)
        if pairs > MAX_NODE_STEPS:
            break
    return min(MAX_NODE_STEPS, max(FREE_STEPS, MAX_STEPS_PER_PAIR * pairs))
