"""Texts and maps at the edges of a model whose inside computes with numbers.

A text inside is the number of its place among all that the model knows; those that a run brings besides get
the numbers behind, in the order in which they come. A map is a row of a matrix whose columns have keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, Final

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.records import dataclass

Keys = tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True)
class Edges:
    """What runs are given and give in place of numbers: `inputs` and `outputs` are texts, `maps` are outputs
    that are lists of maps with these keys. `texts` are those that the model knows."""

    texts: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    maps: Mapping[str, Keys] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs or self.maps)

    def encoded(self, feed: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """A feed with numbers for texts, and the texts that the model does not know.

        Raises:
            UsageError: an input of texts is fed something else.
        """
        if not self.inputs:
            return feed, ()
        known, others = self._numbers, dict[str, int]()
        encoded = dict(feed)

        def number(text: str) -> int:
            found = known.get(text)
            return others.setdefault(text, len(known) + len(others)) if found is None else found

        for name in self.inputs:
            if name in feed:
                given = np.asarray(feed[name])
                codes = [number(_text(name, item)) for item in given.ravel().tolist()]
                encoded[name] = np.array(codes, np.int64).reshape(given.shape)
        return encoded, tuple(others)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {text: number for number, text in enumerate(self.texts)}

    @cached_property
    def _table(self) -> Array:
        return np.array(self.texts, object)

    def decoded(self, name: str, array: Array, others: tuple[str, ...] = ()) -> Any:
        """An output as the model's own: texts as an array of them, maps as a list; `others` came in."""
        if name in self.outputs:
            table = np.concatenate([self._table, np.array(others, object)]) if others else self._table
            return table[np.asarray(array)]
        keys = self.maps.get(name)
        if keys is None:
            return array
        rows = np.asarray(array).reshape(-1, len(keys))
        return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]

    def __iter__(self) -> Iterator[str]:
        """Names of all inputs and outputs that are no tensors of numbers."""
        yield from (*self.inputs, *self.outputs, *self.maps)


NO_EDGES: Final = Edges()


def _text(name: str, item: Any) -> str:
    if isinstance(item, bytes):
        return item.decode("utf-8", "surrogateescape")
    if not isinstance(item, str):
        raise UsageError(f"input {name!r} holds texts: give an array of str, not of {type(item).__name__}.")
    return item
