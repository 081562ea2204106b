"""Kernels by what they compute, so that the code of equal work is generated once per model.

The layers of a transformer and the steps of a recurrent layer differ in nothing but their tensors. Their
nests are equal, because operands are numbered within a group, and kernels name operands by these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from tilewright.ir.expr import Expr, structure
from tilewright.ir.fuse import NestGroup
from tilewright.ir.nest import Access, Nest
from tilewright.partition.form import KernelForm
from tilewright.targets.cpu.kernel import Declined, Kernel, Layouts
from tilewright.targets.cpu.template import Context
from tilewright.tuning import NO_CHOICES, Choices

Kernels = tuple[Kernel, ...]
Made = TypeVar("Made", Kernels, Kernels | Declined, Kernel | Declined)

MAX_CHARACTERS = 256 << 20
"""Of the text of the kernels that are remembered: a search of hours makes no end of them."""


class Repeats:
    """Remembers what was generated for one model: one ISA, one accuracy, the choices for all places.

    Several lowerings may share it, as where only forms differ. With more than `max_characters` of code all
    is forgotten, and remembered anew.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._products: dict[Hashable, Kernels | Declined] = {}
        self._nests: dict[Hashable, Kernels] = {}
        self._runs: dict[Hashable, Kernels | Declined] = {}
        self._blocks: dict[Hashable, Kernel | Declined] = {}
        self._left_characters = self._max_characters = max_characters

    def product(
        self,
        nest: Nest,
        context: Context,
        make: Callable[[], Kernels | Declined],
        choices: Choices = NO_CHOICES,
    ) -> Kernels | Declined:
        """What `make` gives for a nest in a context; `choices` are of this place alone."""
        facts = nest_facts(nest, context.layouts)
        if facts is None:
            return make()
        operands = {a.operand.key for a in (*nest.reads, nest.write)}
        special = (context.constants, context.cached, context.shared, context.small_sums)
        known = *(keys & operands for keys in special), context.few_bits
        key = (facts, known, context.next_local, frozenset(choices.items()))
        return self._remembered(self._products, key, make)

    def nests(
        self,
        nests: Sequence[Nest],
        layouts: Layouts,
        make: Callable[[], Kernels],
        choices: Choices = NO_CHOICES,
    ) -> Kernels:
        """What `make` gives for nests that run in this order; `choices` are those of this place."""
        facts = tuple(nest_facts(nest, layouts) for nest in nests)
        if None in facts:
            return make()
        return self._remembered(self._nests, (facts, frozenset(choices.items())), make)

    def run(
        self, nests: Sequence[Nest], context: Context, make: Callable[[], Kernels | Declined]
    ) -> Kernels | Declined:
        """What `make` gives for nests that are computed together."""
        facts = tuple(nest_facts(nest, context.layouts) for nest in nests)
        if None in facts:
            return make()
        return self._remembered(self._runs, (facts, context.next_local), make)

    def blocks(
        self, group: NestGroup, form: KernelForm, layouts: Layouts, make: Callable[[], Kernel | Declined]
    ) -> Kernel | Declined:
        """What `make` gives for a group that is computed block by block."""
        facts = tuple(nest_facts(nest, layouts) for nest in group.nests)
        if None in facts:
            return make()
        constants = tuple(value.is_constant for value in group.inputs)
        key = (facts, constants, len(group.outputs), form.blocking, form.choices)
        return self._remembered(self._blocks, key, make)

    def _remembered(self, known: dict[Hashable, Made], key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in known:
            made = make()
            kernels = () if isinstance(made, Declined) else (made,) if isinstance(made, Kernel) else made
            num_characters = sum(len(k.text) for kernel in kernels for k in kernel.all_kernels())
            self._left_characters -= num_characters
            if self._left_characters < 0:
                self._left_characters = self._max_characters - num_characters
                for everything in (self._products, self._nests, self._runs, self._blocks):
                    everything.clear()
            known[key] = made
        return known[key]


def nest_facts(nest: Nest, layouts: Layouts) -> Hashable | None:
    """Everything that generators see of a nest; None where it brings tables along: these are data."""
    accesses = (*nest.reads, nest.write)
    if any(a.operand.data is not None for a in accesses):
        return None
    return (
        nest.dims,
        tuple(_access(a, layouts) for a in accesses),
        nest.combine,
        tuple(_expression(e) for e in (nest.body, nest.init, nest.finish)),
    )


def _access(access: Access, layouts: Layouts) -> Hashable:
    operand = access.operand
    # The text of a fill tells 0.0 from -0.0 and True from 1, which are equal.
    fill = None if access.fill is None else repr(access.fill)
    layout = layouts.get(operand.key)
    return operand.key, operand.dtype, operand.shape, access.index, fill, access.view, layout


def _expression(expr: Expr | None) -> Hashable:
    return None if expr is None else structure(expr)
