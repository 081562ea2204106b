"""Changes of a plan: of windows of neighbouring kernels, all that are alike together, or of all of it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from tilewright.joint.launched.content import Kernel
from tilewright.joint.overlapped.kernels import Kernels
from tilewright.joint.overlapped.plan import RULES, Nest, NestPlan
from tilewright.partition.split import Split, split_of
from tilewright.records import dataclass

Change = Callable[[Sequence[Kernel]], "tuple[Kernel, ...] | None"]
"""What takes the place of the kernels of a window; None where that is impossible."""
Kind = Literal[
    "groups", "memory", "sharing", "execution", "rule", "rules", "nest cut", "nests joined", "exchanged",
    "reshared", "resplit", "joined", "cut", "shifted",
]  # fmt: skip
"""What a move that is drawn changes."""
_SHARES: dict[Kind, float] = {
    "groups": 0.02, "memory": 0.04, "sharing": 0.03, "execution": 0.02,
    "rule": 0.03, "rules": 0.03, "nest cut": 0.03, "nests joined": 0.03, "exchanged": 0.08,
    "reshared": 0.1, "resplit": 0.18, "joined": 0.2, "cut": 0.11, "shifted": 0.1,
}  # fmt: skip
"""How often each kind is drawn, in proportion."""
_MOST_JOINED = 6
_NUM_SLICES = 4
"""Slices of the first layers of a kernel when a search begins."""
_NUM_OTHERS = 4
"""Other plans that come among the first steps of a search."""
_MOST_AXES = 8
"""Axes of results along which cores may share them when a search begins."""


@dataclass(frozen=True, slots=True)
class Move:
    """A plan that another one may become, and what is done to it."""

    what: str
    plan: NestPlan


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways to place the values of a plan and to run it: planners of memory, and executions, of which moves
    choose, the plan's own first; `late` are planners that use places again late, in all of the cores' buffers
    and in less and less of them."""

    memories: Sequence[str]
    executions: Sequence[str]
    late: Sequence[str] = ()


Beginning = Callable[[NestPlan], "Move | None"]
"""A first step of a search: a change of the best plan so far; None where it is impossible."""


class Moves:
    """Random changes of plans of one graph, drawn from a generator: equal seeds give equal moves.

    `others` are other plans, whose kernels, order and groups of cores count, made when they are asked for,
    `pool` those that were; `ways` how values may be placed and the plan be run.
    """

    def __init__(
        self,
        kernels: Kernels,
        others: Iterable[NestPlan],
        ways: Ways,
        generator: random.Random,
    ) -> None:
        self.kernels, self.ways, self.random = kernels, ways, generator
        self.num_samples = kernels.numbered.graph.num_samples
        self.others, self.pool = iter(others), dict[NestPlan, dict[int, Kernel]]()
        nodes, numbers = kernels.numbered.nodes, kernels.numbered.numbers
        self._sources = [
            tuple(dict.fromkeys(numbers[v.producer] for v in n.operands() if v.producer is not None))
            for n in nodes
        ]

    def draw(self, plan: NestPlan, weights: Sequence[float]) -> Move | None:
        """A change of a plan, of which kernel i is chosen with a probability as its weight; None where the
        one that was drawn is impossible."""
        (kind,) = self.random.choices(tuple(_SHARES), tuple(_SHARES.values()))
        kernels = plan.kernels
        match kind:
            case "groups" | "memory" | "sharing" | "execution":
                return self._of_all(kind, plan)
            case "rule" | "rules" | "nest cut" | "nests joined":
                return self._of_nests(kind, plan, weights)
            case "exchanged":
                return self._exchanged(plan, weights) if self.pool else None
            case "reshared":
                return self._reshared(plan, kernels, self._pick(weights))
            case "resplit":
                return self._resplit(plan, kernels, self._pick(weights))
            case "joined":
                return self._joined(plan, kernels, self._pick(weights))
            case "cut":
                return self._cut(plan, kernels, self._pick(weights))
            case "shifted":
                return self._shifted(plan, kernels, self._pick(weights))

    def opening(self) -> list[Beginning]:
        """First steps, those first that gain most where few fit into a budget: the other ways to run that are
        known; what kernels make shared in the fastest way, and as readers want; the ways to run again, of
        which another one may now be the best; places used again late, and of one program one group of all
        cores; the largest kernel in slices of samples, where there are several; then a half of its layers in
        slices that keep rows, and where that is better a quarter more or less, in twice or half as many
        slices, an eighth more or less; last, of one program, most of the buffers for values, least of them,
        and where one of these is better a little less or more.

        Of one program with several samples slices of these gain most, few of them first. They come in the
        places that are first of all, whatever is best of wholes, as where values lie best depends on how
        large they are, and places behind them again, with less of the buffers at once. Groups and slices
        that keep rows, of which there are many, come last.
        """

        def run(execution: str) -> Beginning:
            what = f"run with {execution or 'nothing resident'}"
            return lambda best: Move(what, replace(best, execution=execution))

        def placed(memory: str) -> Beginning:
            return lambda best: Move(f"values placed by {memory}", replace(best, memory=memory))

        found = [run(execution) for execution in self.ways.executions]
        found.append(lambda best: Move("all shared", self.shared(best, range(_MOST_AXES))))
        found.append(lambda best: Move(f"all {_shared_along(())}", self.shared(best, ())))
        found += [run(execution) for execution in self.ways.executions]
        places = [placed(memory) for memory in (*self.ways.memories[:1], *self.ways.late[:1])]
        slices: list[Beginning]
        groups: list[Beginning] = [_in_one_group] * self._is_program
        heads: list[Beginning] = [functools.partial(self.headed, share=1 / 2)]
        heads += [functools.partial(self.headed, further=further) for further in (1 / 4, -1 / 4)]
        heads += [functools.partial(self.resliced, times=times) for times in (2.0, 0.5)]
        heads += [functools.partial(self.headed, further=further) for further in (1 / 8, -1 / 8)]
        if not self._is_program:
            slices = [functools.partial(self.by_samples, number=number) for number in (8, 4, 16)]
            return [*found, *places, *slices, *heads]
        limits = [placed(memory) for memory in (*self.ways.late[1:2], *self.ways.late[-1:])]
        limits += [functools.partial(self.limited, further=further) for further in (1, -1)]
        if self.num_samples == 1:
            return [*found, *places, *groups, *heads, *limits]
        sliced = functools.partial(self.by_samples, memory=next(iter(self.ways.memories), None))
        slices = [functools.partial(sliced, number=_NUM_SLICES)]
        slices += [functools.partial(sliced, number=number, is_further=True) for number in (8, 16)]
        return [*found, *places, *slices, *places, *limits, *groups, *heads]

    def beginning(self) -> list[Beginning]:
        """The steps of an opening when a search begins: of one program other plans that are there at once
        come behind the ways to run, as values that pass main memory hide what kernels differ in; of several
        samples before them, as slices of fewer samples gain more than how they run."""
        first, opening = len(self.ways.executions) * (self.num_samples == 1), self.opening()
        others: list[Beginning] = [self.another] * (_NUM_OTHERS * self._is_program)
        return [*opening[:first], *others, *opening[first:]]

    @property
    def _is_program(self) -> bool:
        """Whether one program runs all, which has more than one way to do so."""
        return len(self.ways.executions) > 1

    def limited(self, plan: NestPlan, further: int) -> Move | None:
        """Where places are used again late in a part of the buffers, so many steps less of them, or more."""
        at = self.ways.late.index(plan.memory) + further if plan.memory in self.ways.late[1:] else 0
        if not 0 < at < len(self.ways.late):
            return None
        return Move(f"values placed by {self.ways.late[at]}", replace(plan, memory=self.ways.late[at]))

    def by_samples(
        self, plan: NestPlan, number: int, is_further: bool = False, memory: str | None = None
    ) -> Move | None:
        """The kernel of most layers in so many slices of samples, which are the first axis of its results,
        placed by `memory`, if that is given. None where the graph has fewer samples, or, `is_further`, where
        it is in no slices of samples yet: where a few of them gain nothing, many take long to simulate for
        nothing."""
        kernel = max(plan.kernels, key=lambda kernel: len(kernel.layers))
        if number > self.num_samples or (is_further and kernel.split.dim != 0):
            return None
        split = replace(split_of([(0, number)]), cores=kernel.split.cores)
        new = self._fitting([Kernel(kernel.layers, split)])
        plan = plan if memory is None else replace(plan, memory=memory)
        return None if new is None else self._replaced(plan, f"largest: {split}", [((kernel,), new)])

    def headed(self, plan: NestPlan, share: float = 0.0, further: float = 0.0) -> Move | None:
        """The largest kernel as two, of which the first holds a `share` of its layers in slices that keep
        rows; of a kernel in such slices and the one behind it the first holds such a share of the layers of
        both, or as much as now and `further`. What layers near the input make is large and their weights are
        small, so that slices of them overlap with what comes, and behind them the reverse is true."""
        old, layers, has_head = self._largest(plan)
        if not share:
            if not has_head:
                return None
            share = len(old[0].layers) / len(layers) + further
        wanted = round(share * len(layers))
        for nearby in (0, -1, 1, -2, 2):
            at = wanted + nearby
            if not 0 < at < len(layers):
                continue
            first = old[0].split
            if first.chain_length == 1:
                rows = self.kernels.in_rows(layers[:at], _NUM_SLICES)
                if rows is None:
                    continue
                first = replace(rows, cores=first.cores)
            new = self._fitting([Kernel(layers[:at], first), Kernel(layers[at:], old[-1].split)])
            if new is not None:
                return self._replaced(plan, f"first {at} of {len(layers)} layers: {first}", [(old, new)])
        return None

    def resliced(self, plan: NestPlan, times: float) -> Move | None:
        """The kernel of most layers in slices that keep rows in so many times as many."""
        chains = [kernel for kernel in plan.kernels if kernel.split.chain_length > 1]
        if not chains:
            return None
        kernel = max(chains, key=lambda kernel: len(kernel.layers))
        *outer, (dim, factor) = kernel.split.cuts
        split = split_of([*outer, (dim, int(factor * times))], keeps_rows=True)
        new = self._fitting([Kernel(kernel.layers, replace(split, cores=kernel.split.cores))])
        return None if new is None else self._replaced(plan, f"largest: {split}", [((kernel,), new)])

    @staticmethod
    def _largest(plan: NestPlan) -> tuple[tuple[Kernel, ...], tuple[tuple[int, ...], ...], bool]:
        """Of all kernels, and of those in slices that keep rows with the one behind them, what has most
        layers; these layers, and whether it is two kernels."""
        found: list[tuple[Kernel, ...]] = [(kernel,) for kernel in plan.kernels]
        for nest in plan.nests:
            found += [pair for pair in pairwise(nest.kernels) if pair[0].split.chain_length > 1]
        largest = max(found, key=lambda kernels: sum(len(kernel.layers) for kernel in kernels))
        layers = tuple(layer for kernel in largest for layer in kernel.layers)
        return largest, layers, len(largest) > 1

    def another(self, best: NestPlan) -> Move | None:
        """The kernels of the next other plan in its order, and on its groups of cores if it has some, placed,
        run and shared as the best so far; None: there are no more."""
        other = next((plan for plan in self.others if plan not in self.pool), None)
        if other is None:
            return None
        self.pool[other] = {i: kernel for kernel in other.kernels for i in kernel.nodes}
        plan = replace(best, nests=other.nests)
        if other.num_groups:
            plan = replace(plan, num_groups=other.num_groups, homes=other.homes)
        is_shared = any(kernel.split.cores for kernel in best.kernels)
        plan = self.shared(plan, range(_MOST_AXES)) if is_shared else plan
        return Move(f"kernels of plan {len(self.pool) - 1}", plan)

    def _pick(self, weights: Sequence[float]) -> int:
        return self.random.choices(range(len(weights)), weights)[0]

    def _of_all(self, kind: Kind, plan: NestPlan) -> Move | None:
        """Another planner of memory, or another way to run it."""
        if kind == "groups":
            number = self.random.choice((0, 1, 2, 4))
            what = f"{number or 'no'} groups of cores"
            return Move(what, replace(plan, num_groups=number, homes=()))
        if kind == "memory":
            memory = self.random.choice(self.ways.memories)
            return Move(f"values placed by {memory}", replace(plan, memory=memory))
        if kind == "sharing":
            kernel = self.random.choice(plan.kernels)
            axes = self.random.choice(((), *self.kernels.shares(kernel)))
            return Move(f"all {_shared_along(axes)}", self.shared(plan, axes))
        execution = self.random.choice(self.ways.executions)
        return Move(f"run with {execution or 'nothing resident'}", replace(plan, execution=execution))

    def shared(self, plan: NestPlan, axes: Sequence[int]) -> NestPlan:
        """The plan with what each kernel makes shared by the cores along some axes."""
        nests = (
            replace(nest, kernels=tuple(self.kernels.shared(k, axes) for k in nest.kernels))
            for nest in plan.nests
        )
        return replace(plan, nests=tuple(nests))

    def _of_nests(self, kind: Kind, plan: NestPlan, weights: Sequence[float]) -> Move | None:
        """Another rule of a nest, or of all; a nest cut in two; two that become one."""
        number = self._nest_of(plan, self._pick(weights))
        nest = plan.nests[number]
        nests = list(plan.nests)
        if kind == "rule":
            rule = self.random.choice(RULES)
            nests[number] = Nest(nest.kernels, rule)
            return Move(f"nest {number} {rule}", replace(plan, nests=tuple(nests)))
        if kind == "rules":
            rule = self.random.choice(RULES)
            return Move(f"all {rule}", replace(plan, nests=tuple(Nest(n.kernels, rule) for n in nests)))
        if kind == "nest cut" and len(nest.kernels) > 1:
            at = self.random.randrange(1, len(nest.kernels))
            nests[number : number + 1] = [
                Nest(nest.kernels[:at], nest.rule), Nest(nest.kernels[at:], nest.rule)
            ]  # fmt: skip
            return Move(f"nest {number} cut", replace(plan, nests=tuple(nests)))
        if kind == "nests joined" and number + 1 < len(nests):
            both = Nest((*nest.kernels, *nests[number + 1].kernels), nest.rule)
            nests[number : number + 2] = [both]
            return Move(f"nests {number} and {number + 1} joined", replace(plan, nests=tuple(nests)))
        return None

    @staticmethod
    def _nest_of(plan: NestPlan, place: int) -> int:
        for number, nest in enumerate(plan.nests):
            if place < len(nest.kernels):
                return number
            place -= len(nest.kernels)
        raise IndexError(place)

    def _exchanged(self, plan: NestPlan, weights: Sequence[float]) -> Move | None:
        """The kernels of another plan in place of those that hold the same nodes; mostly on its groups of
        cores, if it has some."""
        kernels = plan.kernels
        home = {i: k for k in kernels for i in k.nodes}
        place = self.random.randrange(len(self.pool))
        whole, other = [*self.pool.items()][place]
        mine, theirs = dict.fromkeys([kernels[self._pick(weights)]]), dict[Kernel, None]()
        stack = list(mine)
        while stack:
            for i in stack.pop().nodes:
                for found, homes in ((theirs, other), (mine, home)):
                    if homes[i] not in found:
                        found[homes[i]] = None
                        stack.append(homes[i])
        if set(mine) == set(theirs):
            return None
        new = tuple(theirs)
        if any(kernel.split.cores for kernel in mine):
            new = tuple(self.kernels.shared(kernel, range(_MOST_AXES)) for kernel in new)
        if whole.num_groups and self.random.random() < 0.75:
            plan = replace(plan, num_groups=whole.num_groups, homes=whole.homes)
        return self._replaced(plan, f"kernels of plan {place}", [(tuple(mine), new)])

    def _resplit(self, plan: NestPlan, kernels: Sequence[Kernel], first: int) -> Move | None:
        """Other slices of a kernel, or the same slices for several in a row."""
        kernel = kernels[first]
        split = self._split(kernel.layers, kernel.split)

        def change(window: Sequence[Kernel]) -> tuple[Kernel, ...] | None:
            return self._fitting([Kernel(k.layers, replace(split, cores=k.split.cores)) for k in window])

        return self._applied(plan, kernels, self._window(kernels, first), str(split), change)

    def _reshared(self, plan: NestPlan, kernels: Sequence[Kernel], first: int) -> Move | None:
        """What a kernel makes, or several in a row, shared by the cores along other axes."""
        axes = self.random.choice(((), *self.kernels.shares(kernels[first])))

        def change(window: Sequence[Kernel]) -> tuple[Kernel, ...]:
            return tuple(self.kernels.shared(k, axes) for k in window)

        return self._applied(plan, kernels, self._window(kernels, first), _shared_along(axes), change)

    def _window(self, kernels: Sequence[Kernel], first: int) -> range:
        """A kernel, or several from it on."""
        count = 1 if self.random.random() < 0.6 else self.random.randint(2, _MOST_JOINED)
        return range(first, min(first + count, len(kernels)))

    def _split(self, layers: tuple[tuple[int, ...], ...], near: Split) -> Split:
        """One of the splits of some layers, mostly one with as many slices as another one, about."""
        splits = self.kernels.splits(layers)
        if self.random.random() < 0.25:
            return self.random.choice(splits)
        number = near.num_instances
        close = [s for s in splits if number <= 2 * s.num_instances and s.num_instances <= 2 * number]
        return self.random.choice(close or splits)

    def _joined(self, plan: NestPlan, kernels: Sequence[Kernel], first: int) -> Move | None:
        """A kernel and some of those near it as one."""
        near = self._near(kernels, first)
        if not near:
            return None
        second = self.random.choice(near)
        low, high = min(first, second), max(first, second)
        picked = [0, high - low]
        if high - low < _MOST_JOINED and self.random.random() < 0.4:
            picked = list(range(high - low + 1))
        layers = self.kernels.joined([kernels[low + i] for i in picked])
        own = self.random.choice([kernels[low + i].split for i in picked])
        split = own
        if self.random.random() >= 0.6:
            split = replace(self._split(layers, own), cores=own.cores)

        def change(window: Sequence[Kernel]) -> tuple[Kernel, ...] | None:
            one = Kernel(self.kernels.joined([window[i] for i in picked]), split)
            rest = [k for i, k in enumerate(window) if i not in picked]
            return self._fitting([one, *rest])

        return self._applied(plan, kernels, range(low, high + 1), f"{len(picked)} joined, {split}", change)

    def _cut(self, plan: NestPlan, kernels: Sequence[Kernel], first: int) -> Move | None:
        """A kernel as two."""
        kernel = kernels[first]
        prefixes = self.kernels.prefixes(kernel.layers)
        if not prefixes:
            return None
        prefix = self.random.choice(prefixes)
        places = frozenset(kernel.layers.index(layer) for layer in prefix)
        rest = tuple(x for i, x in enumerate(kernel.layers) if i not in places)
        splits = [kernel.split, kernel.split]
        changed = self.random.randrange(3)
        if changed < 2:
            split = self._split((prefix, rest)[changed], kernel.split)
            splits[changed] = replace(split, cores=kernel.split.cores)

        def change(window: Sequence[Kernel]) -> tuple[Kernel, ...] | None:
            (whole,) = window
            parts = (
                tuple(x for i, x in enumerate(whole.layers) if (i in places) is inside)
                for inside in (True, False)
            )
            return self._fitting([Kernel(p, s) for p, s in zip(parts, splits, strict=True)])

        return self._applied(plan, kernels, range(first, first + 1), f"cut after {len(prefix)}", change)

    def _shifted(self, plan: NestPlan, kernels: Sequence[Kernel], first: int) -> Move | None:
        """Layers of a kernel that become part of one that reads them, or whose results they read."""
        near = self._near(kernels, first)
        if not near or len(kernels[first].layers) < 2:
            return None
        second = self.random.choice(near)
        low, high = min(first, second), max(first, second)
        length = len(kernels[first].layers)
        count = self.random.randint(1, max(1, length // 2))
        moved = frozenset(range(length - count, length) if first < second else range(count))
        here, there = first - low, second - low

        def change(window: Sequence[Kernel]) -> tuple[Kernel, ...] | None:
            if len(window[here].layers) != length:
                return None
            taken = tuple(x for i, x in enumerate(window[here].layers) if i in moved)
            left = tuple(x for i, x in enumerate(window[here].layers) if i not in moved)
            found = list(window)
            found[here] = Kernel(left, window[here].split)
            found[there] = Kernel(
                tuple(sorted((*taken, *window[there].layers), key=max)), window[there].split
            )
            return self._fitting(found)

        return self._applied(plan, kernels, range(low, high + 1), f"{count} layers moved", change)

    def _near(self, kernels: Sequence[Kernel], first: int) -> list[int]:
        """Kernels that read what one makes, make what it reads, or read the same; not far from it."""
        around = range(max(0, first - _MOST_JOINED + 1), min(len(kernels), first + _MOST_JOINED))
        own = set(kernels[first].nodes)
        read = {s for i in own for s in self._sources[i]}
        found = []
        for place in around:
            if place == first:
                continue
            nodes = set(kernels[place].nodes)
            sources = {s for i in nodes for s in self._sources[i]}
            if sources & (own | read) or nodes & read:
                found.append(place)
        return found

    def _fitting(self, kernels: Sequence[Kernel]) -> tuple[Kernel, ...] | None:
        found = []
        for kernel in kernels:
            fitting = self.kernels.fitting(kernel)
            if fitting is None:
                return None
            found.append(fitting)
        return tuple(found)

    def _applied(
        self, plan: NestPlan, kernels: Sequence[Kernel], window: range, what: str, change: Change
    ) -> Move | None:
        """The change of a window and, mostly, of all that are alike."""
        spans = [window]
        if self.random.random() < 0.75:
            spans = [window, *self._alike(kernels, window)]
        pairs = []
        for span in spans:
            old = tuple(kernels[i] for i in span)
            new = change(old)
            if new is None:
                if span is window:
                    return None
                continue
            if new != old:
                pairs.append((old, new))
        name = f"kernels {window.start} to {window.stop - 1} of {len(kernels)}: {what}"
        return self._replaced(plan, name, pairs) if pairs else None

    def _alike(self, kernels: Sequence[Kernel], window: range) -> Iterator[range]:
        """Windows of kernels of the same structures, none of which overlap."""
        size = len(window)
        structures: list[Hashable] = [self.kernels.structure(k) for k in kernels]
        wanted = structures[window.start : window.stop]
        place = 0
        while place + size <= len(kernels):
            if place + size > window.start and place < window.stop:
                place = window.stop
            elif structures[place : place + size] == wanted:
                yield range(place, place + size)
                place += size
            else:
                place += 1

    def _replaced(
        self,
        plan: NestPlan,
        what: str,
        pairs: Sequence[tuple[tuple[Kernel, ...], tuple[Kernel, ...]]],
    ) -> Move:
        """The plan with kernels in place of others, in the nest of the first of these."""
        nests = [list(nest.kernels) for nest in plan.nests]
        for old, new in pairs:
            gone = set(old)
            home = next(i for i, nest in enumerate(nests) if any(k in gone for k in nest))
            at = next(i for i, k in enumerate(nests[home]) if k in gone)
            nests[home].insert(at, new[0])
            nests[home][at + 1 : at + 1] = new[1:]
            nests = [
                [k for i, k in enumerate(nest) if k not in gone or (n == home and at <= i < at + len(new))]
                for n, nest in enumerate(nests)
            ]
        found = tuple(
            nest if tuple(kernels) == nest.kernels else Nest(tuple(kernels), nest.rule)
            for kernels, nest in zip(nests, plan.nests, strict=True)
            if kernels
        )
        return Move(what, replace(plan, nests=found))


def _shared_along(axes: Sequence[int]) -> str:
    return f"shared along axes {', '.join(map(str, axes))}" if axes else "shared as readers want"


def _in_one_group(plan: NestPlan) -> Move:
    """All cores as one group, which holds weights: what passes for the next slices comes meanwhile."""
    return Move("1 groups of cores", replace(plan, num_groups=1, homes=()))
