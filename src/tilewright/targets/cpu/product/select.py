"""Which template computes a nest, and how: by estimate, or as a measurement chose.

Without a choice only estimates decide, so that a selection takes no time and every machine selects alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from tilewright.ir.nest import Nest
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.loopnest import LOOP_NEST
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.integer import INTEGER
from tilewright.targets.cpu.product.matrix import MATRIX
from tilewright.targets.cpu.product.winograd import WINOGRAD
from tilewright.targets.cpu.products import product_signature
from tilewright.targets.cpu.template import (
    MIN_GAIN,
    Context,
    Estimate,
    Kernels,
    Template,
    lower_problem,
    lower_with,
)
from tilewright.tuning import NO_CHOICES, Choice, Choices

ProblemT = TypeVar("ProblemT")


class ProductTemplate(Template[Nest, ProblemT], Protocol[ProblemT]):
    """A template of single nests: it also knows other plans of its kernels, which a search may measure."""

    def neighbours(self, problem: ProblemT, algorithm: Choice, context: Context) -> tuple[Choice, ...]:
        """What the estimates choose for an algorithm, and every plan one decision away.

        Each as the choice that asks for it, those worth measuring in any case first. None where all is fixed.
        """


PRODUCTS: Final[tuple[ProductTemplate[Any], ...]] = (MATRIX, WINOGRAD, CONTRACTION, INTEGER)
"""Templates of single nests. Of two with equal estimates the first is taken."""

MIN_LEAD = 1.05
"""For less than this the more exact algorithm is taken."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """An algorithm of a template that computes a nest."""

    template: ProductTemplate[Any]
    problem: Any
    algorithm: Choice
    estimate: Estimate

    @property
    def counts(self) -> bool:
        """Whether it is the plain kernel, or estimated well ahead of it and of a more exact algorithm."""
        estimate = self.estimate
        return estimate.gain == 1.0 or (estimate.gain >= MIN_GAIN and estimate.lead >= MIN_LEAD)


def lower_product(nest: Nest, context: Context, choices: Choices = NO_CHOICES) -> Kernels | Declined:
    """Kernels of a contraction nest, which carry its signature, choice and estimate, or why it is none.

    Without a choice, and for one that the nest or the accuracy does not allow, the least estimate decides.
    """
    signature = product_signature(nest, context) if choices else ""
    choice = choices.get(signature)
    kernels: Kernels | Declined = Declined("nothing is chosen")
    if choice is not None:
        kernels = _lower_as(choice, nest, context)
    if isinstance(kernels, Declined):
        choice = None
        kernels = _lower_by_estimate(nest, context)
    if isinstance(kernels, Declined):
        return kernels
    signature = signature or product_signature(nest, context)
    *before, kernel = (replace(kernel, signature=signature, choice=choice) for kernel in kernels)
    return (*before, replace(kernel, notes=(*kernel.notes, *_unit_notes(nest, context))))


def _unit_notes(nest: Nest, context: Context) -> tuple[str, ...]:
    """What the matrix unit is estimated to take beside vectors, where both compute the nest."""
    problem = MATRIX.match(nest, context)
    return () if isinstance(problem, Declined) else MATRIX.notes(problem, context)


def product_neighbours(nest: Nest, context: Context) -> tuple[Choice, ...]:
    """What estimates choose for a nest, and the plans one decision away; none for a nest that is no product.

    Each gives the kernels of `lower_product` with that choice. Algorithms alternate, so that the first few
    hold the best of each; the one with the best estimate has two at a time.
    """
    lists = [
        o.template.neighbours(o.problem, o.algorithm, context) for o in _ranked(list(_offers(nest, context)))
    ]
    return _alternating([found for found in lists if found])


def neighbours_of(nest: Nest, context: Context, choice: Choice) -> tuple[Choice, ...]:
    """A choice for a nest, and plans one decision away from it; none where it cannot be made.

    Of templates whose neighbours depend on the algorithm alone, the choice may not be the first.
    """
    template = next((t for t in PRODUCTS if t.name == choice.template), None)
    problem = Declined("unknown") if template is None else template.match(nest, context)
    if template is None or isinstance(problem, Declined):
        return ()
    allowed = {algorithm.algorithm for algorithm in template.algorithms(problem, context)}
    return template.neighbours(problem, choice, context) if choice.algorithm in allowed else ()


def nest_cycles(nest: Nest, context: Context) -> float:
    """Estimated cycles of one core for a nest, by the template that the estimates choose."""
    cycles = product_cycles(nest, context)
    if cycles is not None:
        return cycles
    return LOOP_NEST.estimate((nest,), Choice(LOOP_NEST.name), context).cycles


def product_cycles(nest: Nest, context: Context) -> float | None:
    """The same of a nest that a template of products computes; None of one that is left to loop nests."""
    chosen = product_way(nest, context)
    return None if chosen is None else chosen[1].cycles


def product_way(nest: Nest, context: Context) -> tuple[str, Estimate] | None:
    """The template of products that computes a nest, and its estimate; None where loop nests do."""
    offers = _ranked([o for o in _offers(nest, context) if o.counts])
    return (offers[0].template.name, offers[0].estimate) if offers else None


def _lower_as(choice: Choice, nest: Nest, context: Context) -> Kernels | Declined:
    template = next((t for t in PRODUCTS if t.name == choice.template), None)
    if template is None:
        return Declined(f"unknown template {choice.template!r}")
    return lower_with(template, nest, context, choice)


def _lower_by_estimate(nest: Nest, context: Context) -> Kernels | Declined:
    kernels: Kernels | Declined = Declined("no template computes the nest")
    for offer in _ranked([o for o in _offers(nest, context) if o.counts]):
        kernels = lower_problem(offer.template, offer.problem, offer.algorithm, context, offer.estimate)
        if not isinstance(kernels, Declined):
            return kernels
    return kernels


def _offers(nest: Nest, context: Context) -> Iterator[_Offer]:
    for template in PRODUCTS:
        problem = template.match(nest, context)
        if not isinstance(problem, Declined):
            for algorithm in template.algorithms(problem, context):
                estimate = template.estimate(problem, algorithm, context)
                yield _Offer(template, problem, algorithm, estimate)


def _ranked(offers: list[_Offer]) -> list[_Offer]:
    """The largest gain first; gains that may be none come after the plain kernel."""
    return sorted(offers, key=lambda o: (not o.counts, -o.estimate.gain))


def _alternating(lists: list[tuple[Choice, ...]]) -> tuple[Choice, ...]:
    """The first two of the first list, the first of each other, the next two of the first list, ..."""
    if not lists:
        return ()
    best, *others = lists
    turns = max(-(-len(best) // 2), *map(len, others)) if others else len(best)
    found: list[Choice] = []
    for turn in range(turns):
        found += best[2 * turn : 2 * turn + 2]
        found += [other[turn] for other in others if turn < len(other)]
    return tuple(found)
