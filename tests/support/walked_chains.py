"""Reference of the check of joint tilings: every step is walked with sets of elements.

Shares no code with the search nor with that check. What a step needs is worked out from the iterations of the
nests, so only
small chains can be walked. Where a value is read by several operators, its box is that of all of them,
loop by loop, and a plan may say more than a walk counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from tilewright.errors import UsageError
from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Lookup, Nest
from tilewright.mapping.chains.chain import Chain, ChainPart
from tilewright.mapping.chains.plan import STREAMED, ChainCount, ChainPlan
from tilewright.planning import Violation

Element = tuple[int, ...]
Elements = frozenset[Element]
Step = tuple[int, ...]
MAX_ITERATIONS = 1 << 20


def check_elements(
    chain: Chain, plan: ChainPlan, count: ChainCount, capacity_words: int
) -> tuple[Violation, ...]:
    """What is wrong with a plan and what is said of it; nothing, if it is right.

    Raises:
        UsageError: the chain has too many iterations to walk.
    """
    walk = _Walk(chain, plan)
    violations = [
        Violation("held", f"{part.value.name} has {live} words on chip, {held} were kept for it")
        for part, live, held in zip(chain.parts, walk.live, count.held_by_part, strict=True)
        if live > held
    ]
    is_exact = all(len(part.readers) < 2 for part in chain.parts)
    for name, counted, said in (
        ("read", walk.read_words, count.read_words),
        ("written", walk.written_words, count.written_words),
        ("macs", walk.num_macs, count.num_macs),
    ):
        if counted > said or (counted < said and is_exact):
            violations.append(Violation(name, f"{counted} were counted, the plan says {said}"))
    if count.held_words > capacity_words:
        violations.append(Violation("capacity", f"{count.held_words} words of {capacity_words}"))
    return tuple(violations)


class _Walk:
    """Everything that happens in the steps of a plan. `live` is what lies of each part on chip at most."""

    def __init__(self, chain: Chain, plan: ChainPlan) -> None:
        iterations = sum(nest.num_iterations for node in chain.nodes for nest in nests_of(node))
        if iterations > MAX_ITERATIONS:
            raise UsageError(f"chain: {iterations} iterations are too many to walk; check a smaller chain.")
        self.chain, self.plan = chain, plan
        self.extents = [chain.loops[i].extent for i in plan.tiling.order]
        numbers = [-(-e // t) for e, t in zip(self.extents, plan.tiling.tiles, strict=True)]
        self.steps: list[Step] = list(product(*map(range, numbers)))
        self.fresh: list[list[Elements]] = []
        self.live: list[int] = []
        self.read_words, self.num_macs = 0, 0
        self._needs_of_anchor = self._walk_anchor()
        self._sources = {node: _sources(node) for node in chain.nodes if node is not chain.anchor}
        for part, depth in zip(chain.parts[1:], plan.depths[1:], strict=True):
            self._add(part, depth)

    def _walk_anchor(self) -> list[dict[int, set[Element]]]:
        """What the anchor reads in each step, and what it writes."""
        nest, chain = self.chain.nest, self.chain
        places = {chain.loops[i].name: place for place, i in enumerate(self.plan.tiling.order)}
        number = {step: at for at, step in enumerate(self.steps)}
        needs: list[dict[int, set[Element]]] = [{} for _ in self.steps]
        written: list[set[Element]] = [set() for _ in self.steps]
        for point in _points(nest):
            step = tuple(point[name] // self.plan.tiling.tiles[place] for name, place in places.items())
            at = number[step]
            written[at] |= _touched(nest.write, point)
            for access in nest.reads:
                if access.operand.kind == "input":
                    needs[at].setdefault(access.operand.position, set()).update(_touched(access, point))
            self.num_macs += 1
        parts = [frozenset(elements) for elements in written]
        later: set[Element] = set()
        last: list[Elements] = []
        for elements in reversed(parts):
            last.append(elements - later)
            later |= elements
        self.fresh.append(last[::-1])
        self.written_words = len({element for elements in parts for element in elements})
        self.live.append(max(map(len, self._live(parts, 0))))
        return needs

    def _add(self, part: ChainPart, depth: int) -> None:
        needed = [_box(self._needed(part, at)) for at in range(len(self.steps))]
        first = 0 if depth == STREAMED or not part.is_held else depth
        retains = depth != STREAMED and part.is_held
        fresh: list[Elements] = []
        made: set[Element] = set()
        for at, step in enumerate(self.steps):
            if not retains or depth == len(step) or (at and step[:first] != self.steps[at - 1][:first]):
                made = set()
            fresh.append(needed[at] - made)
            made |= needed[at]
        self.fresh.append(fresh)
        num_fresh = sum(map(len, fresh))
        self.num_macs += part.macs_per_word * num_fresh
        if part.kind in ("input", "constant"):
            self.read_words += num_fresh
        elif part.leaves:
            self.written_words += num_fresh
        self.live.append(max(map(len, self._live(needed, depth))) if retains else int(depth == STREAMED))

    def _needed(self, part: ChainPart, at: int) -> set[Element]:
        needed: set[Element] = set()
        for reader in part.readers:
            if reader.node is self.chain.anchor:
                needed |= self._needs_of_anchor[at].get(reader.position, set())
            else:
                sources = self._sources[reader.node]
                for element in self.fresh[reader.part][at]:
                    needed |= sources[element].get(reader.position, set())
        return needed

    def _live(self, needed: Sequence[Elements], depth: int) -> Iterator[set[Element]]:
        """In each step what it needs, and what was made before that a later step takes from there."""
        for at, step in enumerate(self.steps):
            outer = step[:depth]
            alike = [i for i, other in enumerate(self.steps) if other[:depth] == outer]
            made = {element for i in alike if i <= at for element in needed[i]}
            later = {element for i in alike if i > at for element in needed[i]}
            yield set(needed[at]) | (made & later if depth < len(step) else set())


def _sides(elements: Elements, rank: int) -> tuple[tuple[int, int], ...]:
    return tuple((min(e[a] for e in elements), max(e[a] for e in elements) + 1) for a in range(rank))


def _box(elements: set[Element]) -> Elements:
    """All between the first and the last element along each axis: tiles are boxes."""
    if not elements:
        return frozenset()
    sides = _sides(frozenset(elements), len(next(iter(elements))))
    return frozenset(product(*(range(start, stop) for start, stop in sides)))


def _points(nest: Nest) -> Iterator[dict[str, int]]:
    names = [dim.name for dim in nest.dims]
    for values in product(*(range(dim.extent) for dim in nest.dims)):
        yield dict(zip(names, values, strict=True))


def _touched(access: Access, point: dict[str, int]) -> set[Element]:
    """The element of an operand that an iteration touches; none outside, all of an axis that data index."""
    sides: list[Sequence[int]] = []
    for index, extent in zip(access.index, access.shape, strict=True):
        match index:
            case Affine(terms, offset):
                at = offset + sum(step * point[name] for name, step in terms)
                sides.append((at,) if 0 <= at < extent else ())
            case Lookup(table, dim):
                sides.append((table[point[dim]],) if 0 <= table[point[dim]] < extent else ())
            case _:
                sides.append(range(extent))
    touched = set(product(*sides))
    if access.view is None:
        return touched
    shape = access.operand.shape
    flat = (int(np.ravel_multi_index(element, access.view)) for element in touched)
    return {tuple(int(i) for i in np.unravel_index(at, shape)) for at in flat}


def _sources(node: Node) -> dict[Element, dict[int, set[Element]]]:
    """For each element of a node's result the elements of each input that it is computed from."""
    known: dict[tuple[str, int], dict[Element, dict[int, set[Element]]]] = {}
    for nest in nests_of(node):
        made = known.setdefault(nest.write.operand.key, {})
        for point in _points(nest):
            for element in _touched(nest.write, point):
                sources = made.setdefault(element, {})
                for access in nest.reads:
                    for read in _touched(access, point):
                        if access.operand.kind == "input":
                            sources.setdefault(access.operand.position, set()).add(read)
                        elif access.operand.key in known:
                            for position, elements in known[access.operand.key].get(read, {}).items():
                                sources.setdefault(position, set()).update(elements)
    return known[("output", 0)]
