"""What has become the best of one subgraph is tried next by those of the same structure and other sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Generic

from tilewright.records import dataclass
from tilewright.tuning.evolution import Evolution
from tilewright.tuning.space import FormSpace, FormT

# What is faster by this much, and by as much again than what was shared last.
_SHARED_GAIN = 0.03


@dataclass(slots=True, eq=False)
class Sharing(Generic[FormT]):
    """Remembers of each structure the worth of the best form that was shared."""

    _worth: dict[str, float] = field(default_factory=dict)

    def share(
        self,
        measured: Mapping[str, Collection[FormT]],
        evolutions: Mapping[str, Evolution[FormT]],
        spaces: Sequence[FormSpace[FormT]],
    ) -> None:
        """Let searches of these spaces go on with what was just measured, by key, and is the best there."""
        best: dict[str, tuple[float, str]] = {}
        for key in sorted(measured):
            form, worth = evolutions[key].best
            structure = evolutions[key].space.structure
            least = self._worth.get(structure, 1.0) - _SHARED_GAIN
            if structure in best:
                least = best[structure][0]
            if form in measured[key] and worth < least:
                best[structure] = worth, key
        for structure, (worth, key) in best.items():
            self._worth[structure] = worth
            portable = evolutions[key].space.portable(evolutions[key].best[0])
            for space in spaces:
                other = evolutions.get(space.key)
                if space.key != key and other is not None and space.structure == structure:
                    adapted = space.adapted(portable)
                    if adapted is not None:
                        other.start_with(adapted, "the best of a similar subgraph")
