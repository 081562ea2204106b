"""Choices for many kernels: by the work they do, by where they do it, and as candidates of a tuner."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.planning.choice import Choice
from tilewright.records import dataclass

Choices = Mapping[str, Choice]
"""How to make products, by signature of their work, for all places of it; the estimate decides for those left
out. A key of `place_key` is for the product of one subgraph, and goes before one for all places."""

NO_CHOICES: Choices = {}
_MAX_DIGITS = 9
"""Of the number of a subgraph: a key may come from a file."""


def place_key(subgraph_id: int, signature: str) -> str:
    """The key of a product where one subgraph computes it.

    >>> place_key(3, "8f00")
    '3/8f00'
    """
    return f"{subgraph_id}/{signature}"


def choices_by_subgraph(choices: Choices) -> dict[int, dict[str, Choice]]:
    """By signature, the choices that hold for one subgraph only.

    >>> sorted(choices_by_subgraph({"8f00": Choice("a"), "3/8f00": Choice("b")}))
    [3]
    """
    by_subgraph: dict[int, dict[str, Choice]] = {}
    for key, choice in choices.items():
        place, is_place, signature = key.partition("/")
        if is_place and place.isdecimal() and len(place) <= _MAX_DIGITS:
            by_subgraph.setdefault(int(place), {})[signature] = choice
    return by_subgraph


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to do a site's work: choices for some of its products, by signature; the others stay plain."""

    choices: tuple[tuple[str, Choice], ...]

    @classmethod
    def of(cls, choices: Choices) -> Candidate:
        """The candidate with these choices.

        >>> len(Candidate.of({"8f00": Choice("a")}).choices)
        1
        """
        return cls(tuple(sorted(choices.items())))

    @property
    def algorithm(self) -> tuple[tuple[str, tuple[str, int | None]], ...]:
        """What each of its products computes, whatever the sizes of the pieces."""
        return tuple((signature, choice.algorithm) for signature, choice in self.choices)

    def to_json(self) -> dict[str, dict[str, str | int]]:
        """Plain values."""
        return {signature: choice.to_json() for signature, choice in self.choices}

    @classmethod
    def from_json(cls, document: object) -> Candidate | None:
        """What `to_json` gave; None for anything else."""
        if not isinstance(document, Mapping) or not document:
            return None
        choices = {str(signature): Choice.from_json(entry) for signature, entry in document.items()}
        known = {signature: choice for signature, choice in choices.items() if choice is not None}
        return cls.of(known) if len(known) == len(choices) else None


Plan = Mapping[str, Candidate]
"""How to do the work of a model's sites, by their keys; sites left out stay plain."""

PLAIN: Plan = {}
