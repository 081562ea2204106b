"""What is known of steps, for all plans of one graph on one machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")
_UNKNOWN = object()


@dataclass(slots=True)
class KnownSteps:
    """Facts of steps that hold for every plan of one graph on one machine: a search lowers most steps again
    and again, in whole plans and in parts that are priced alone. Keys name all that a fact follows from, so
    that no plan depends on those before."""

    most: int = 200_000
    _facts: dict[Hashable, object] = field(default_factory=dict)

    def of(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The fact of a key, made when first asked for."""
        found = self._facts.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = make()
            if len(self._facts) >= self.most:
                self._facts.clear()
            self._facts[key] = found
        known: _T = found  # type: ignore[assignment]  # a key names the kind of its fact
        return known
