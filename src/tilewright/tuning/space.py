"""The forms of one subgraph as a space that can be searched: what a search needs to know of them.

A *form* says how a subgraph becomes kernels: which of its nodes share a kernel, in which blocks each runs,
how each product inside is made. A target says what can be changed about a form and what it is estimated to
cost; searches measure. Everything random comes from the generator that is passed, so a seed repeats a search.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tilewright.records import dataclass


class Form(Protocol):
    """One way to compute a subgraph: an immutable value; equal forms make the same kernels.

    `str` of it is a line for people.
    """

    def __hash__(self) -> int: ...

    def to_json(self) -> Mapping[str, Any]:
        """Plain values, from which `FormSpace.read` makes it again."""
        ...


FormT = TypeVar("FormT", bound=Form)


@dataclass(frozen=True, slots=True)
class FormPart(Generic[FormT]):
    """A mini-subgraph of a subgraph: the positions of its nodes among the whole's, and its forms."""

    positions: tuple[int, ...]
    space: FormSpace[FormT]


class FormSpace(Protocol[FormT]):
    """The forms of one subgraph. All answers depend on the arguments alone."""

    @property
    def key(self) -> str:
        """Signature of all that decides what the forms are and what they cost, but not of names or weights.

        Subgraphs with equal keys have equal spaces, whatever network they are of, and share what is measured.
        """
        ...

    @property
    def structure(self) -> str:
        """What subgraphs that differ in sizes have in common: what is good for one may be for another."""
        ...

    def initial(self) -> FormT:
        """What the estimates choose: the form of the untuned plan."""
        ...

    def starts(self) -> Sequence[FormT]:
        """Forms to measure first: of each kind the best, the most promising kind first."""
        ...

    def mutate(self, form: FormT, rng: random.Random) -> FormT:
        """A form that differs from this one in one decision; the same one where nothing can be changed."""
        ...

    def cross(self, one: FormT, other: FormT, rng: random.Random) -> FormT | None:
        """A form with some decisions of each; None where they cannot be mixed."""
        ...

    def kind(self, form: FormT) -> Hashable:
        """What is equal for forms that differ in sizes alone: of tiles, of blocks, of pieces."""
        ...

    def keeps_kernels(self, form: FormT) -> bool:
        """Whether it cuts the subgraph as the initial form does: only how products are made differs."""
        ...

    def estimate_ns(self, form: FormT) -> float:
        """What the cost model says of a form; infinite for one that cannot be made."""
        ...

    def features(self, form: FormT) -> Mapping[str, float]:
        """Numbers that a model of what the estimate errs by may learn from; the same names for all forms."""
        ...

    def read(self, document: object) -> FormT | None:
        """The form that `to_json` gave these values; None for what is none of this space."""
        ...

    def portable(self, form: FormT) -> Mapping[str, Any]:
        """A form as plain values that mean as much in other spaces of the same structure."""
        ...

    def adapted(self, document: object) -> FormT | None:
        """The form most like the one that `portable` gave elsewhere; None where there is none like it."""
        ...

    def split(self) -> tuple[FormPart[FormT], ...]:
        """Mini-subgraphs of at most one complex operator, in topological order; a single one is the whole."""
        ...

    def join(self, forms: Sequence[FormT]) -> FormT:
        """The form of the whole that has a form for each part of `split`, and no kernel in two parts."""
        ...


def text_of(form: Form) -> str:
    """A form as text: its order among forms of equal worth, and the key under which it is stored."""
    return json.dumps(form.to_json(), sort_keys=True, separators=(",", ":"))
