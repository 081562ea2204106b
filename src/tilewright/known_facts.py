"""Facts that follow from their keys, remembered up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from typing import TypeVar

from tilewright.records import dataclass

T = TypeVar("T")
_UNKNOWN = object()


@dataclass(slots=True)
class KnownFacts:
    """Facts that planners ask for again and again. A key names the kind of its fact and all that it follows
    from, so that no answer depends on those before; where all facts would be larger than `most` together,
    those so far are forgotten."""

    most: int = 200_000
    _facts: dict[Hashable, object] = field(default_factory=dict)
    _size: int = 0

    def of(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int] = lambda _: 1) -> T:
        """The fact of a key, made when first asked for."""
        found = self._facts.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = made = make()
            needed = size(made)
            if self._size + needed > self.most:
                self._facts.clear()
                self._size = 0
            self._facts[key] = found
            self._size += needed
        known: T = found  # type: ignore[assignment]  # a key names the kind of its fact
        return known
