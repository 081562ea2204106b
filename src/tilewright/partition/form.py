"""In which form a subgraph is compiled: its cut into kernels, and how each of them computes its operators.

Several operators computed block by block in one kernel leave what lies between them in the cache. How a
subgraph is cut is a decision of the partition, made by the target that will compile it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, TypeGuard

from tilewright.ir.region import Region
from tilewright.planning.choice import Choice
from tilewright.records import dataclass

MAX_BLOCKS = 1 << 16
"""Of one kernel, which has a table with a row for each."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """How a result is cut: the extents of a block by logical axis, and how many of them form a strip.

    The last blocks along an axis may be smaller. Blocks of a strip follow one another along the last axis
    that is cut; each finds what it shares with the one before (a rolling window of lines) and makes the rest.
    """

    block: tuple[int, ...]
    strip: int = 1

    def strips(self, shape: Sequence[int]) -> Iterator[list[Region]]:
        """Every strip of blocks of a result of this shape, in order."""
        cuts = [
            [(start, min(start + size, extent)) for start in range(0, extent, size)]
            for extent, size in zip(shape, self.block, strict=True)
        ]
        axis = self.axis(shape)
        for outer in product(*(c if a != axis else [(0, 0)] for a, c in enumerate(cuts))):
            line = [(*outer[:axis], interval, *outer[axis + 1 :]) for interval in cuts[axis]]
            for start in range(0, len(line), self.strip):
                yield line[start : start + self.strip]

    def axis(self, shape: Sequence[int]) -> int:
        """The axis along which blocks of a strip lie."""
        cut = [a for a, (extent, size) in enumerate(zip(shape, self.block, strict=True)) if size < extent]
        return cut[-1] if cut else 0

    def num_blocks(self, shape: Sequence[int]) -> int:
        """How many blocks there are."""
        return prod(-(-extent // size) for extent, size in zip(shape, self.block, strict=True))

    def num_strips(self, shape: Sequence[int]) -> int:
        """How many strips there are."""
        along = self.num_along(shape)
        return self.num_blocks(shape) // along * -(-along // self.strip)

    def num_along(self, shape: Sequence[int]) -> int:
        """How many blocks lie one after the other along the axis of the strips."""
        axis = self.axis(shape)
        return -(-shape[axis] // self.block[axis])


@dataclass(frozen=True, slots=True)
class KernelForm:
    """Nodes of a subgraph that are compiled together: their loop nests are composed first.

    `nodes` are their positions among the subgraph's, ascending. With a `blocking` one kernel computes all of
    them block by block of the last of their results, and `saved_share` is the estimated share of the time of
    separate kernels that this saves. `choices` say how to make products among them, by signature.
    """

    nodes: tuple[int, ...]
    blocking: Blocking | None = None
    saved_share: float = 0.0
    choices: tuple[tuple[str, Choice], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it leaves everything to the target."""
        return self.blocking is None and not self.choices

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        fields: dict[str, Any] = {"nodes": list(self.nodes)}
        if self.blocking is not None:
            fields |= {"block": list(self.blocking.block), "strip": self.blocking.strip}
            fields["saved_share"] = self.saved_share
        if self.choices:
            fields["choices"] = {signature: choice.to_json() for signature, choice in self.choices}
        return fields

    @classmethod
    def from_json(cls, document: object) -> KernelForm | None:
        """What `to_json` gave; None for anything else."""
        if not isinstance(document, Mapping):
            return None
        nodes, block, strip = document.get("nodes"), document.get("block"), document.get("strip", 1)
        saved_share, named = document.get("saved_share", 0.0), document.get("choices", {})
        if not _are_numbers(nodes) or not _are_numbers([strip]) or not isinstance(named, Mapping):
            return None
        if not isinstance(saved_share, int | float) or not 0 <= saved_share <= sys.float_info.max:
            return None
        if not (block is None or _are_numbers(block)):
            return None
        choices = {str(signature): Choice.from_json(entry) for signature, entry in named.items()}
        if None in choices.values():
            return None
        blocking = None if block is None else Blocking(tuple(block), strip)
        known = tuple((signature, choice) for signature, choice in choices.items() if choice is not None)
        return cls(tuple(nodes), blocking, float(saved_share), known)

    def __str__(self) -> str:
        if self.blocking is None:
            return "compiled as its loop nests compose"
        return f"estimated to save {self.saved_share:.0%} of the time of separate kernels"


@dataclass(frozen=True, slots=True)
class Form:
    """The cut of a subgraph into kernels, in an order in which they can run; each of its nodes is in one."""

    kernels: tuple[KernelForm, ...]

    @classmethod
    def whole(cls, num_nodes: int, blocking: Blocking | None = None, saved_share: float = 0.0) -> Form:
        """All nodes of a subgraph compiled together.

        >>> Form.whole(3).is_plain, Form.whole(3).is_blockwise
        (True, False)
        """
        return cls((KernelForm(tuple(range(num_nodes)), blocking, saved_share),))

    @property
    def is_plain(self) -> bool:
        """Whether it says no more than that a subgraph's nodes are compiled together, as without a form."""
        return len(self.kernels) == 1 and self.kernels[0].is_plain

    @property
    def is_blockwise(self) -> bool:
        """Whether some kernel computes several operators block by block."""
        return any(kernel.blocking is not None for kernel in self.kernels)

    def unmeasured(self) -> Form:
        """The same cut, whose products are made as the target estimates."""
        return Form(tuple(replace(kernel, choices=()) for kernel in self.kernels))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"kernels": [kernel.to_json() for kernel in self.kernels]}

    @classmethod
    def from_json(cls, document: object) -> Form | None:
        """What `to_json` gave; None for anything else. Whether it fits a subgraph is `check_forms`' business.

        >>> Form.from_json(Form.whole(3).to_json()) == Form.whole(3)
        True
        """
        if not isinstance(document, Mapping) or not isinstance(document.get("kernels"), list):
            return None
        kernels = [KernelForm.from_json(entry) for entry in document["kernels"]]
        known = tuple(kernel for kernel in kernels if kernel is not None)
        return cls(known) if known and len(known) == len(kernels) else None

    def kernel_numbers(self) -> dict[int, int]:
        """Of each node, by its position: the number of its kernel."""
        return {node: number for number, kernel in enumerate(self.kernels) for node in kernel.nodes}


def _are_numbers(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
