"""Names of a model while it is imported: the values they stand for, and which are taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tilewright.errors import ModelRejected
from tilewright.frontend.onnx.inputs import Declaration
from tilewright.ir.graph import Value
from tilewright.records import dataclass


@dataclass(slots=True)
class Scope:
    """Names visible in one node list; `targets` are names that results must take in the graph.

    A definition of an operator may have nodes of our own domain, which no model may.
    """

    opsets: Mapping[str, int]
    prefix: str = ""
    depth: int = 0
    parent: Scope | None = None
    values: dict[str, Value | None] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    declared: dict[str, Declaration] = field(default_factory=dict)
    is_definition: bool = False

    def find(self, name: str) -> Value | None:
        """The value of a name here or further out; None for an input that was left out."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise ModelRejected(f"{name!r} is read but nothing produces it; export the model again.")


def unused(stem: str, taken: dict[str, int]) -> str:
    """The stem, or the stem with the next free number; remembered in `taken`."""
    name, number = stem, taken.get(stem, 0)
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    taken[stem] = max(number, 1)
    taken.setdefault(name, 1)
    return name
