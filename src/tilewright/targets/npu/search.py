"""Local search over cut points and factors, from the portfolio's best plan on: the cost is simulated time.

A move takes a cut away, adds one, shifts one, or doubles or halves the slices of a subgraph; where several
subgraphs have the same structure, of all of them. The first move that helps is made, and what was refused is
not tried again until everything else was. Where none of them helps, groups take the splits that move least
when their layers are tiled jointly.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import InternalError, TilewrightError
from tilewright.families import PARTITIONERS
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.graphturbo.regroup import Group, Groups, Regrouper
from tilewright.partition.split import Split
from tilewright.planning import Budget
from tilewright.planning.portfolio import Attempt
from tilewright.program import Program
from tilewright.progress import Progress, SearchEnded, interrupt_search
from tilewright.targets.base import Improved, MakeProgram
from tilewright.targets.npu.joint_splits import JointSplits
from tilewright.targets.npu.recipes import ALPHAS


def search(
    problem: PartitionProblem,
    start: Program,
    make: MakeProgram,
    budget: Budget,
    progress: Progress | None = None,
) -> Improved:
    """The best plan found from one on: never worse than that one."""
    partitioner = PARTITIONERS.get(start.recipe.partition)
    if not isinstance(partitioner, GraphTurbo):
        return Improved(start)
    return _Search(problem, partitioner, start, make, budget, progress).run()


class _Search:
    def __init__(
        self,
        problem: PartitionProblem,
        partitioner: GraphTurbo,
        start: Program,
        make: MakeProgram,
        budget: Budget,
        progress: Progress | None,
    ) -> None:
        self.start, self.make, self.progress = start, make, progress
        self.budget, self.meter = budget, budget.start()
        self.best = start
        self.attempts: list[Attempt] = []
        # What instances may hold is the portfolio's most; the time says whether it is too much.
        widest = replace(partitioner, alpha=max(ALPHAS))
        self.regrouper = Regrouper(problem, widest)
        self.splits = JointSplits(self.regrouper)
        self.seen: set[Groups] = set()
        self.refused: set[Move] = set()
        self.is_spent = False

    def run(self) -> Improved:
        try:
            self._climb()
        except SearchEnded:
            self.is_spent = True
        except KeyboardInterrupt:
            if not interrupt_search():  # nothing around goes on with the best so far
                raise
        return Improved(self.best, tuple(self.attempts))

    def _climb(self) -> None:
        groups = self.regrouper.groups_of(self.start.partition)
        self.seen.add(groups)
        again = False
        while True:
            better = self._step(groups, moves(self.regrouper, groups), again)
            if better is None and not again and self.refused and not self.is_spent:
                again = True
                continue
            if better is None and not self.is_spent:
                better = self._step(groups, joint_moves(self.regrouper, groups, self.splits), True)
            if better is None:
                break
            groups, again = better, False

    def _step(self, groups: Groups, listed: Iterator[Move], again: bool) -> Groups | None:
        """The groups after the first move that helps; None if none does, or the budget is spent."""
        for move in listed:
            if move in self.refused and not again:
                continue
            candidate = move.applied(groups)
            if candidate in self.seen:
                continue
            self.seen.add(candidate)
            partition = self.regrouper.partition(candidate)
            if partition is None:
                continue
            if not self.meter.spend():
                self.is_spent = True
                return None
            if self._is_better(move, partition):
                return candidate
            self.refused.add(move)
        return None

    def _is_better(self, move: Move, partition: Partition) -> bool:
        """Plan and price; the plan is kept if it is the best so far."""
        if self.progress is not None:
            gain = self.start.schedule.quality.cost / self.best.schedule.quality.cost
            what = f"search: {move.what}, best so far {gain:.2f} x the start"
            self.progress(what, *self.meter.progress)
        name = f"search {self.meter.num_evaluations}: {move.what}"
        try:
            program = self.make(partition, self.start.recipe)
        except InternalError:
            raise
        except TilewrightError as error:
            self.attempts.append(Attempt(name, None, str(error)))
            return False
        cost = program.schedule.quality.cost
        self.attempts.append(Attempt(name, cost))
        is_better = cost < self.best.schedule.quality.cost
        if is_better:
            self.best = program
        return is_better


@dataclass(frozen=True, slots=True)
class Move:
    """Groups that others take the place of."""

    what: str
    removed: frozenset[Group]
    added: frozenset[Group]

    def applied(self, groups: Groups) -> Groups:
        """The groups after the move."""
        kept = [g for g in groups if g not in self.removed]
        return tuple(sorted((*kept, *self.added), key=lambda g: g.layers))


def moves(regrouper: Regrouper, groups: Groups) -> Iterator[Move]:
    """All moves from some groups: slices, cuts taken away, shifted, added."""
    classes: dict[Hashable, list[Group]] = {}
    for group in groups:
        classes.setdefault(regrouper.structure(group), []).append(group)
    for alike in classes.values():
        for split in regrouper.finer(alike[0]):
            added = frozenset(Group(g.layers, split) for g in alike)
            yield Move(f"{_name(alike)} as {split}", frozenset(alike), added)
    pairs = _pairs(regrouper, groups)
    for alike_pairs in pairs:
        removed = frozenset(g for pair in alike_pairs for g in pair)
        first, second = alike_pairs[0]
        for split in dict.fromkeys((second.split, first.split)):
            added = frozenset(Group(_joined(a, b), split) for a, b in alike_pairs)
            yield Move(f"{_name(alike_pairs[0])} joined, {split}", removed, added)
    for alike_pairs in pairs:
        removed = frozenset(g for pair in alike_pairs for g in pair)
        first, second = alike_pairs[0]
        whole = _joined(first, second)
        near = sorted(regrouper.prefixes(whole), key=lambda p: abs(len(p) - len(first.layers)))
        for prefix in near:
            if prefix != first.layers:
                places = [whole.index(i) for i in prefix]
                splits = first.split, second.split
                added = frozenset(g for pair in alike_pairs for g in _cut(_joined(*pair), places, splits))
                yield Move(f"{_name(alike_pairs[0])} cut after {len(prefix)} layers", removed, added)
    for alike in classes.values():
        for prefix in regrouper.prefixes(alike[0].layers):
            places = [alike[0].layers.index(i) for i in prefix]
            # A part of a subgraph often fits in fewer slices, or is better off with more.
            own = alike[0].split
            for split in (own, *regrouper.finer(alike[0])):
                for splits in dict.fromkeys(((own, split), (split, own))):
                    added = frozenset(part for g in alike for part in _cut(g.layers, places, splits))
                    what = f"{_name(alike)} cut after {len(prefix)} layers, {splits[0]} and {splits[1]}"
                    yield Move(what, frozenset(alike), added)


def joint_moves(regrouper: Regrouper, groups: Groups, splits: JointSplits) -> Iterator[Move]:
    """Moves to splits of least traffic: of groups, and of pairs that become one."""
    classes: dict[Hashable, list[Group]] = {}
    for group in groups:
        classes.setdefault(regrouper.structure(group), []).append(group)
    for alike in classes.values():
        for split in splits.of(alike[0].layers):
            added = frozenset(Group(g.layers, split) for g in alike)
            yield Move(f"{_name(alike)} tiled jointly, {split}", frozenset(alike), added)
    for alike_pairs in _pairs(regrouper, groups):
        removed = frozenset(g for pair in alike_pairs for g in pair)
        for split in splits.of(_joined(*alike_pairs[0])):
            added = frozenset(Group(_joined(a, b), split) for a, b in alike_pairs)
            yield Move(f"{_name(alike_pairs[0])} joined and tiled jointly, {split}", removed, added)


def _pairs(regrouper: Regrouper, groups: Groups) -> list[list[tuple[Group, Group]]]:
    """Groups and the only reader of what they make: those of the same structure together, none in two pairs
    of a list."""
    readers: dict[Group, list[Group]] = {g: [] for g in groups}
    for group in groups:
        for producer in regrouper.producers(groups, group):
            readers[producer].append(group)
    found: dict[Hashable, list[tuple[Group, Group]]] = {}
    taken: dict[Hashable, set[Group]] = {}
    for group, read_by in readers.items():
        if len(read_by) != 1:
            continue
        pair = (group, read_by[0])
        key = (
            *map(regrouper.structure, pair),
            pair[1].layers[0] - group.layers[0],
        )
        if not taken.setdefault(key, set()).intersection(pair):
            taken[key].update(pair)
            found.setdefault(key, []).append(pair)
    return list(found.values())


def _joined(first: Group, second: Group) -> tuple[int, ...]:
    return tuple(sorted((*first.layers, *second.layers)))


def _cut(layers: Sequence[int], places: Sequence[int], splits: tuple[Split, Split]) -> tuple[Group, Group]:
    """The layers at some places as one group, the others as another, with these splits."""
    begins = tuple(layers[p] for p in places)
    inside = set(begins)
    return Group(begins, splits[0]), Group(tuple(i for i in layers if i not in inside), splits[1])


def _name(groups: Sequence[Group]) -> str:
    return f"layers {groups[0].layers[0]} to {groups[-1].layers[-1]}"
