"""What the code for one set of shapes runs beside it: as many of its rows as others have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from tilewright.compiled_facts import CompiledFacts, TensorInfo
from tilewright.fields import FieldError, field_of

Shapes = Mapping[str, tuple[int, ...]]
T = TypeVar("T", bound=int | str)

ROWS = "rows"
"""In the manifest of an artifact for several sets of shapes, where there is something."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Sets of shapes that differ from one with code, `of_set`, in `inputs`' axes: these have `extents`.

    The code computes so many rows of it, which lie along `outputs`' axes, None where an output has no rows.
    """

    of_set: int
    extents: tuple[int, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int | None]

    def shapes_at(self, extent: T, of_set: Shapes) -> dict[str, tuple[int | T, ...]]:
        """Of the inputs, where the set with code has these."""

        def changed(name: str, shape: tuple[int, ...]) -> tuple[int | T, ...]:
            axis = self.inputs.get(name)
            return shape if axis is None else (*shape[:axis], extent, *shape[axis + 1 :])

        return {name: changed(name, shape) for name, shape in of_set.items()}

    def fits(self, outputs: Sequence[TensorInfo], most: int) -> bool:
        """Whether outputs of the code, which computes `most` rows, have rows where this says."""
        return all(
            axis is None or (axis in range(len(info.shape)) and info.shape[axis] == most)
            for info in outputs
            for axis in [self.outputs[info.name]]
        )


def encode_rows(rows: Sequence[StoredRows]) -> dict[str, Any]:
    """What a manifest says of them."""
    return {ROWS: [asdict(held) for held in rows]} if rows else {}


def decode_rows(manifest: Any, facts: CompiledFacts, sets: Sequence[Shapes]) -> tuple[StoredRows, ...]:
    """What a manifest says of a model for these sets of shapes.

    Raises:
        FieldError: it does not fit them.
    """
    if ROWS not in manifest:
        return ()
    rows: tuple[StoredRows, ...] = field_of(manifest, ROWS, tuple[StoredRows, ...])
    for number, held in enumerate(rows):
        most = most_rows(held, sets)
        is_known = held.outputs.keys() == {info.name for info in facts.outputs}
        if most is None or not is_known or not all(0 < extent < most for extent in held.extents):
            raise FieldError("no rows of a set", f".{ROWS}[{number}]")
    return rows


def most_rows(rows: StoredRows, sets: Sequence[Shapes]) -> int | None:
    """Rows of the set with code; None where it has none along these axes."""
    shapes = sets[rows.of_set] if rows.of_set in range(len(sets)) else {}
    held = {
        shapes[name][axis] if name in shapes and axis in range(len(shapes[name])) else None
        for name, axis in rows.inputs.items()
    }
    return held.pop() if len(held) == 1 else None
