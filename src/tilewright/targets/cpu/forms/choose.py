"""The best cut of subgraphs into kernels, and the blocks of each, by estimate.

Kernels are put together from elements, of which each alone is always the alternative. Runs of elements in
which each makes what only the next reads are cut by dynamic programming, so that all gains of a run add up to
the most; where several branches meet, groups of more structure replace what was chosen if they gain more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from tilewright.ir.graph import Graph, Node, Value
from tilewright.partition.base import (
    Partition,
    PartitionProblem,
    Reason,
    Subgraph,
    build_partition,
    make_subgraph,
)
from tilewright.partition.form import Blocking, Form, KernelForm
from tilewright.partition.layerwise import Layerwise, layerwise_clusters
from tilewright.partition.merge_chains import Chain, merge_chains, quotient_of
from tilewright.partition.quotient import QuotientGraph
from tilewright.records import dataclass
from tilewright.targets.cpu.fused.estimate import saved_cycles
from tilewright.targets.cpu.fused.gain_bound import GainBound, may_gain
from tilewright.targets.cpu.fused.prices import CERTAIN, GroupEstimates, Trust

# Elements of one kernel.
_MAX_ELEMENTS = 6
# Saved by the first and by the last tensor within a run, at least.
_MIN_SAVED_CYCLES = 30_000.0
# How estimates are believed in choices that must win a race: as they are, twice as much, in other blocks.
_DOUBTFUL = (Trust(1.0), Trust(2.0), Trust(1.0, rank=1))


@dataclass(frozen=True, slots=True)
class Group:
    """Elements, by number and ascending, that one kernel computes block by block; cycles that this gains."""

    members: tuple[int, ...]
    blocking: Blocking
    gain: float
    saved_share: float


def choose_forms(problem: PartitionProblem, partition: Partition, prices: GroupEstimates) -> Partition:
    """The partition with the forms of its subgraphs; those that share a kernel become one."""
    partition = join_layers(problem, partition)
    return merge_chains(problem, partition, find_forms(partition, prices))


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """A partition and several choices of groups of its elements, the estimates' own first, then others that
    may turn out faster when they are measured: all apart, and groups whose gain is not certain."""

    problem: PartitionProblem
    elements: Elements
    choices: tuple[tuple[Group, ...], ...]

    @classmethod
    def of(cls, problem: PartitionProblem, partition: Partition, prices: GroupEstimates) -> Cuts:
        """Those of a partition before it has forms."""
        elements = Elements(join_layers(problem, partition))
        contenders = (choose_groups(elements, prices.trusting(trust)) for trust in (CERTAIN, *_DOUBTFUL))
        certain, *others = contenders
        choices = {tuple((g.members, g.blocking) for g in c): c for c in (certain, (), *others)}
        return cls(problem, elements, tuple(choices.values()))

    def partition(self, groups: Sequence[Group]) -> Partition:
        """The partition with these groups."""
        return merge_chains(self.problem, self.elements.partition, _forms(self.elements, groups))

    def regions(self) -> tuple[frozenset[int], ...]:
        """The elements that some choice groups, in the smallest sets that hold whole groups of every choice.

        What one choice does in a region can stand beside what another does in the next one, as far as
        `compatible` says so.
        """
        sets: list[frozenset[int]] = []
        for group in (group for choice in self.choices for group in choice):
            meeting = [found for found in sets if not found.isdisjoint(group.members)]
            sets = [found for found in sets if found not in meeting]
            sets.append(frozenset(group.members).union(*meeting))
        return tuple(sorted(sets, key=min))

    def compatible(self, groups: Iterable[Group]) -> tuple[Group, ...]:
        """Those of the groups whose subgraphs can become one beside those of the ones before."""
        return tuple(sorted(_compatible(self.elements, list(groups)), key=lambda g: g.members[-1]))


def find_forms(partition: Partition, prices: GroupEstimates) -> tuple[Chain, ...]:
    """The subgraphs, alone or several that become one, whose form is worth stating, by number."""
    elements = Elements(partition)
    return tuple(_forms(elements, choose_groups(elements, prices)))


def choose_groups(elements: Elements, prices: GroupEstimates) -> tuple[Group, ...]:
    """Groups of elements, each in one at most, that are worth computing block by block."""
    groups = _Groups(elements, prices)
    chosen = [group for run in _runs(elements) for group in groups.cut_run(run)]
    for element in elements.all:
        meeting = groups.meeting_at(element)
        replaced = [g for g in chosen if meeting is not None and set(g.members) & set(meeting.members)]
        if meeting is not None and meeting.gain > sum(g.gain for g in replaced):
            chosen = [g for g in chosen if g not in replaced] + [meeting]
    return tuple(sorted(_compatible(elements, chosen), key=lambda group: group.members[-1]))


def _compatible(elements: Elements, groups: Sequence[Group]) -> Iterator[Group]:
    """The groups, the largest gain first, whose subgraphs can become one beside those of the ones before."""
    quotient = quotient_of(elements.partition)
    for group in sorted(groups, key=lambda group: (-group.gain, group.members)):
        homes = {quotient.cluster_of(elements.all[number].subgraph.id) for number in group.members}
        if len(homes) == 1 or quotient.can_contract_all(sorted(homes)):
            if len(homes) > 1:
                quotient.contract_all(sorted(homes))
            yield group


def _runs(elements: Elements) -> Iterator[list[int]]:
    """All elements, in rows as long as possible in which each makes what only the next reads.

    Of several that make what only one reads, the last leads to it.
    """
    before: dict[int, int] = {}
    for element in elements.all:
        readers = elements.readers(element)
        if readers is not None and len(readers) == 1 and len(element.outputs) == 1:
            (reader,) = readers
            if elements.may_meet(element.subgraph, [elements.all[reader].subgraph.id]):
                before[reader] = element.number
    has_next = set(before.values())
    for element in elements.all:
        if element.number not in has_next:
            run = [element.number]
            while run[-1] in before:
                run.append(before[run[-1]])
            yield run[::-1]


class _Groups:
    """Groups of a partition's elements and what they gain."""

    def __init__(self, elements: Elements, prices: GroupEstimates) -> None:
        self._elements = elements
        self._prices = prices
        self._gain_bounds: dict[int, GainBound | None] = {}

    def cut_run(self, run: Sequence[int]) -> list[Group]:
        """The groups of a run with the largest gain in all."""
        best: list[tuple[float, list[Group]]] = [(0.0, [])]  # of the last 0, 1, ... elements of the run
        for first in reversed(range(len(run))):
            most = best[-1]
            for last in range(first, min(first + _MAX_ELEMENTS, len(run))):
                group = self._of_run(run[first : last + 1])
                rest_gain, rest = best[len(run) - 1 - last]
                if group is not None and group.gain + rest_gain > most[0]:
                    most = (group.gain + rest_gain, [group, *rest])
            best.append(most)
        return best[-1][1]

    def meeting_at(self, last: Element) -> Group | None:
        """Of the groups in which branches meet and that end at an element, the one with the largest gain."""
        if len(last.outputs) != 1:
            return None
        members = [last]
        best: Group | None = None
        while len(members) < _MAX_ELEMENTS and (found := self._closed(members)) is not None:
            if saved_cycles(found.outputs[0].size_bytes, self._prices.isa) < _MIN_SAVED_CYCLES:
                break
            members.insert(0, found)
            group = self._of(members) if self._have_branches(members) else None
            if group is not None and (best is None or group.gain > best.gain):
                best = group
        return best

    def _have_branches(self, members: Sequence[Element]) -> bool:
        """Whether one of these reads two others of them."""
        inside = set(members)
        return any(len(inside.intersection(self._elements.producers(m))) > 1 for m in members)

    def _closed(self, members: Sequence[Element]) -> Element | None:
        """The last element beside these whose results only they read."""
        inside = {element.number for element in members}
        candidates = {p.number: p for m in members for p in self._elements.producers(m)}
        for number in sorted(candidates.keys() - inside, reverse=True):
            readers = self._elements.readers(candidates[number])
            if readers is not None and readers <= inside:
                homes = [member.subgraph.id for member in members]
                may_meet = self._elements.may_meet(candidates[number].subgraph, homes)
                return candidates[number] if may_meet else None
        return None

    def _of_run(self, run: Sequence[int]) -> Group | None:
        members = [self._elements.all[number] for number in run]
        between = [element.outputs[0].size_bytes for element in members[:-1]]
        ends = (between[0], between[-1]) if between else ()
        if any(saved_cycles(size, self._prices.isa) < _MIN_SAVED_CYCLES for size in ends):
            return None  # without its first or its last element the run saves as much
        return self._of(members)

    def _gain_bound(self, element: Element) -> GainBound | None:
        if element.number not in self._gain_bounds:
            self._gain_bounds[element.number] = self._prices.gain_bound_of(element.nodes, element.outputs)
        return self._gain_bounds[element.number]

    def _of(self, members: Sequence[Element]) -> Group | None:
        trust = self._prices.trust
        if trust == CERTAIN and len(members) > 1 and not may_gain([self._gain_bound(m) for m in members]):
            return None
        ordered = sorted(members, key=lambda element: element.number)
        nodes = [node for element in ordered for node in element.nodes]
        price = self._prices.of_one if len(members) == 1 else self._prices.of
        estimate = price(nodes, members[-1].outputs)
        if estimate is None:
            return None
        numbers = tuple(element.number for element in ordered)
        saved_share = max(0.0, estimate.saved - estimate.paid) / estimate.total
        return Group(numbers, estimate.blocking, trust.gain(estimate), saved_share)


def _forms(elements: Elements, groups: Sequence[Group]) -> Iterator[Chain]:
    """The subgraphs that groups make one, each with its form, and those of several elements."""
    joined = _joined_subgraphs(elements, groups)
    group_of = {number: group for group in groups for number in group.members}
    for ids in joined:
        members = [element for i in ids for element in elements.of_subgraph[i]]
        if len(members) == 1 and members[0].number not in group_of:
            continue
        nodes = [node for i in ids for node in elements.partition.subgraphs[i].nodes]
        position = {node: place for place, node in enumerate(nodes)}
        kernels: list[KernelForm] = []
        for element in members:
            group = group_of.get(element.number)
            if group is not None and element.number != group.members[-1]:
                continue  # a group stands where its last element does
            inside = [element] if group is None else [elements.all[number] for number in group.members]
            places = tuple(sorted(position[node] for e in inside for node in e.nodes))
            kernel = KernelForm(places)
            if group is not None:
                kernel = KernelForm(places, group.blocking, group.saved_share)
            kernels.append(kernel)
        yield Chain(ids, Form(tuple(kernels)))


def _joined_subgraphs(elements: Elements, groups: Sequence[Group]) -> list[tuple[int, ...]]:
    """The subgraphs in sets that share groups, each ascending."""
    root = list(range(len(elements.of_subgraph)))

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    for group in groups:
        ids = {find(elements.all[number].subgraph.id) for number in group.members}
        for i in ids:
            root[i] = max(ids)
    sets: dict[int, list[int]] = {}
    for i in range(len(root)):
        sets.setdefault(find(i), []).append(i)
    return [tuple(ids) for ids in sets.values()]


_EFFORT = (Reason.WEIGHT, Reason.STAGE, Reason.CYCLE)


def join_layers(problem: PartitionProblem, partition: Partition) -> Partition:
    """The partition with subgraphs merged that share a layer, where that makes no cycle.

    Only where the partitioner stopped at a bound of effort, which cuts also between an operator and what
    follows it element by element: that costs a pass over memory and spares a tuner nothing. What was kept
    apart for another reason stays apart.
    """
    is_bounded = any(decision.reason is Reason.WEIGHT for decision in partition.decisions)
    if not is_bounded or partition.is_split or partition.layers is not None:
        return partition
    layer_of = {node: i for i, layer in enumerate(layerwise_clusters(partition.graph)) for node in layer}
    home = {node: subgraph.id for subgraph in partition.subgraphs for node in subgraph.nodes}
    edges = [(home[d.producer], home[d.consumer]) for d in partition.decisions]
    quotient = QuotientGraph(len(partition.subgraphs), [(u, v) for u, v in edges if u != v])
    cut = [
        (home[decision.producer], home[decision.consumer])
        for decision in partition.decisions
        if decision.reason in _EFFORT and layer_of[decision.producer] == layer_of[decision.consumer]
    ]
    num_clusters = 0
    while num_clusters != len(quotient.clusters):  # a merge may take away what stood in another's way
        num_clusters = len(quotient.clusters)
        for ends in cut:
            u, v = map(quotient.cluster_of, ends)
            if u != v and quotient.can_contract(u, v):
                quotient.contract(u, v)
    if len(quotient.clusters) == len(partition.subgraphs):
        return partition
    known = {(d.producer, d.consumer, d.value): d.reason for d in partition.decisions}

    def reason(producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
        stated = known[producer, consumer, value]
        return Reason.CLUSTER if fused and not stated.is_fused else stated

    clusters = [
        [node for i in quotient.members(cluster) for node in partition.subgraphs[i].nodes]
        for cluster in quotient.clusters
    ]
    joined = build_partition(problem, clusters, reason, partition.provenance)
    return replace(joined, element_bytes=partition.element_bytes, border_bytes=partition.border_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """A mini-subgraph: what the layerwise rule would make one kernel of, as far as one subgraph holds it.

    Elements are numbered in topological order. `outputs` are the values that others read, or the user.
    """

    number: int
    subgraph: Subgraph
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]


class Elements:
    """The elements of a partition, and which reads which."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        graph = partition.graph
        self.all: list[Element] = []
        self.of_subgraph: list[tuple[Element, ...]] = []
        layer_of = _layers(partition)
        for subgraph in partition.subgraphs:
            pieces: dict[int, list[Node]] = {}
            for node in subgraph.nodes:
                pieces.setdefault(layer_of.get(node, -1), []).append(node)
            place = {node: i for i, node in enumerate(subgraph.nodes)}
            # A layer stands where its last node does: by then all it reads is made.
            ordered = sorted(pieces.values(), key=lambda nodes: place[nodes[-1]])
            self.of_subgraph.append(tuple(self._element(subgraph, nodes, graph) for nodes in ordered))

    def _element(self, subgraph: Subgraph, nodes: list[Node], graph: Graph) -> Element:
        whole = len(nodes) == len(subgraph.nodes)
        outputs = subgraph.outputs if whole else make_subgraph(0, nodes, graph).outputs
        self.all.append(Element(len(self.all), subgraph, tuple(nodes), outputs))
        return self.all[-1]

    @cached_property
    def _home(self) -> dict[Node, Element]:
        return {node: element for element in self.all for node in element.nodes}

    @cached_property
    def _results(self) -> frozenset[Value]:
        return frozenset(self.partition.graph.outputs)

    def readers(self, element: Element) -> frozenset[int] | None:
        """Numbers of the elements that read what one makes; None where the user reads it, or nothing does."""
        if not element.outputs or not self._results.isdisjoint(element.outputs):
            return None
        return frozenset(self._home[user].number for value in element.outputs for user in value.users) - {
            element.number
        }

    def producers(self, element: Element) -> tuple[Element, ...]:
        """The elements that an element reads."""
        numbers = {
            self._home[value.producer].number
            for node in element.nodes
            for value in node.operands()
            if value.producer is not None
        }
        return tuple(self.all[number] for number in sorted(numbers - {element.number}))

    def may_meet(self, subgraph: Subgraph, others: Iterable[int]) -> bool:
        """Whether a subgraph and others that read it can become one: no path leaves them and comes back."""
        homes = {*others} - {subgraph.id}
        readers = {reader.id for reader in self.partition.successors(subgraph)}
        if not homes or (readers <= homes and len(homes) == 1):
            return True
        return self.quotient.can_contract_all([subgraph.id, *sorted(homes)])

    @cached_property
    def quotient(self) -> QuotientGraph:
        """Which subgraph reads which."""
        return quotient_of(self.partition)


def _layers(partition: Partition) -> dict[Node, int]:
    """The layer of each node, where subgraphs may hold several; layers of the rule itself are whole."""
    is_layerwise = partition.provenance.planner == Layerwise.name
    if is_layerwise or all(len(subgraph.nodes) == 1 for subgraph in partition.subgraphs):
        return {}
    return {node: i for i, nodes in enumerate(layerwise_clusters(partition.graph)) for node in nodes}
