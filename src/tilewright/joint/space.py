"""Connected sets of units, and the blocks that run them: the transitions among which a search chooses."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.bit_sets import bits, union
from tilewright.joint.base import Mask, Pricer


def connected_sets(pricer: Pricer, units: Sequence[Mask], most: int) -> list[Mask] | None:
    """All connected unions of units; None if there are more than `most`.

    Each set is grown from its lowest unit by one neighbour at a time, so it is met once for every way to grow
    it and kept once.
    """
    touching = [union(pricer.neighbours(i) for i in bits(unit)) for unit in units]
    found: set[Mask] = set()
    for first in range(len(units)):
        # As sets of units; those below the first one are in sets that were grown before.
        level = {1 << first}
        while level:
            grown: set[int] = set()
            for chosen in level:
                reach = union(touching[i] for i in bits(chosen))
                for j in range(first + 1, len(units)):
                    if not chosen >> j & 1 and units[j] & reach:
                        grown.add(chosen | 1 << j)
                if len(found) + len(grown) > most:
                    return None
            found.update(union(units[i] for i in bits(chosen)) for chosen in level)
            if len(found) > most:
                return None
            level = grown
    return sorted(found)
