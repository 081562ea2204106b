"""How one kernel is made: a template and its parameters, small enough to store and to compare."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.records import dataclass

# Parameters that say what is computed, not how it is cut.
_ALGORITHMS = ("tile", "products", "slices")


@dataclass(frozen=True, slots=True)
class Choice:
    """A template and the numbers that it leaves open, sorted by name.

    >>> str(Choice.of("contraction", rows=8, vectors=3))
    'contraction rows=8 vectors=3'
    """

    template: str
    parameters: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, template: str, **parameters: int) -> Choice:
        """A choice with parameters by name."""
        return cls(template, tuple(sorted(parameters.items())))

    def get(self, name: str) -> int | None:
        """A parameter; None if it is left to the template's estimate."""
        return next((value for key, value in self.parameters if key == name), None)

    @property
    def algorithm(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """What it computes, whatever the sizes of its pieces: the template, and the tile of Winograd's or
        what the matrix unit multiplies."""
        return self.template, tuple(pair for pair in self.parameters if pair[0] in _ALGORITHMS)

    def to_json(self) -> dict[str, str | int]:
        """Plain values."""
        return {"template": self.template, **dict(self.parameters)}

    @classmethod
    def from_json(cls, document: object) -> Choice | None:
        """What `to_json` gave; None for anything else.

        >>> Choice.from_json({"template": "winograd", "tile": 2}) == Choice.of("winograd", tile=2)
        True
        """
        if not isinstance(document, Mapping):
            return None
        values = dict(document)
        template = values.pop("template", None)
        if not isinstance(template, str) or not all(
            isinstance(k, str) and type(v) is int for k, v in values.items()
        ):
            return None
        return cls(template, tuple(sorted(values.items())))

    def __str__(self) -> str:
        return " ".join((self.template, *(f"{name}={value}" for name, value in self.parameters)))
