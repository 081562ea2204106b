"""The forms of a subgraph as a space to search: cuts into kernels, blocks of each, ways to make products."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import pairwise, zip_longest
from math import inf, log2
from typing import Any

from tilewright.ir.graph import Graph, Node, Value
from tilewright.partition.base import Subgraph, make_subgraph
from tilewright.partition.check_forms import form_violations
from tilewright.partition.form import Blocking, Form, KernelForm
from tilewright.partition.quotient import QuotientGraph
from tilewright.planning.choice import Choice
from tilewright.records import dataclass
from tilewright.targets.cpu.costs.model import CpuCosts
from tilewright.targets.cpu.forms.knobs import Knob, Work, distance
from tilewright.targets.cpu.fused.estimate import Estimate
from tilewright.targets.cpu.fused.generate import inner_loops, inner_product
from tilewright.targets.cpu.lower.layouts import BY_WISH, LAYOUT, ROW_MAJOR
from tilewright.tuning.space import FormPart

# Elements of one kernel.
_MAX_ELEMENTS = 8
# Of the blocks of a kernel the best by estimate, among which a form is changed; how often it gets none.
_NUM_BLOCKINGS = 24
_NUM_STARTS = 3
_PLAIN_SHARE = 0.25
# How often another way to make a product may be one beside the present one that is not listed.
_NEAR_SHARE = 0.25
# Of so many other ways to make a product that chance picks the one most like the present one is taken.
_NUM_COMPARED = 5
# What a way to make a product that templates rank lower is estimated to take more, down to a rank.
_RANK_SHARE = 0.01
_LOWEST_RANK = 12
# Blocks that are estimated to take so much longer than the untuned form do not come first.
_HOPELESS_RATIO = 1.1

SIZES = ("log2_read", "log2_made", "log2_weights")
"""Features that say how large a subgraph is."""

Positions = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SubgraphForms:
    """See `FormSpace`. `layers` number the layer of each node: one heavy operator and what follows it.

    `code` is what is generated for each layer, by positions, with its digest; `machine` is what else decides
    what forms cost.
    """

    graph: Graph
    subgraph: Subgraph
    untuned: Form
    layers: tuple[int, ...]
    works: tuple[Work, ...]
    costs: CpuCosts
    code: tuple[tuple[frozenset[int], str], ...]
    machine: str
    _estimates: dict[Positions, tuple[Estimate, ...]] = field(default_factory=dict)
    _apart_ns: dict[Positions, float] = field(default_factory=dict)
    _known_knobs: dict[tuple[Positions, bool], tuple[Knob, ...]] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Digest of operators, shapes and data flow, of the untuned form, of code and machine."""
        if "key" not in self._digests:
            self._digests["key"] = self._digest_of_all()
        return self._digests["key"]

    def _digest_of_all(self) -> str:
        place: dict[Value, object] = {}
        for position, node in enumerate(self._nodes):
            place |= {value: (position, number) for number, value in enumerate(node.results())}
        lines: list[object] = [self.machine, self.untuned, self.layers, self.works]
        lines += [(sorted(positions), digest) for positions, digest in self.code]
        for node in self._nodes:
            for value in node.operands():
                place.setdefault(value, ("outside", len(place)))
            attributes = sorted((name, str(value)) for name, value in node.attributes.items())
            values = [(place[v], v.is_constant, v.shape, v.dtype) for v in node.operands()]
            results = [(v.shape, v.dtype, v in self.subgraph.outputs) for v in node.results()]
            lines.append((node.op_type, attributes, values, results))
        return hashlib.sha256(repr(lines).encode()).hexdigest()

    @property
    def structure(self) -> str:
        """Digest of operators and data flow, of the untuned cut and of what can be chosen: no sizes."""
        if "structure" not in self._digests:
            self._digests["structure"] = self._digest_without_sizes()
        return self._digests["structure"]

    def _digest_without_sizes(self) -> str:
        place: dict[Value, object] = {}
        for position, node in enumerate(self._nodes):
            place |= {value: (position, number) for number, value in enumerate(node.results())}
        lines: list[object] = [self.machine, self.layers]
        lines += [(kernel.nodes, kernel.blocking is not None) for kernel in self.untuned.kernels]
        lines += [(sorted(work.positions), work.is_loops, work.ways[0].algorithm) for work in self.works]
        for node in self._nodes:
            values = [(place.get(v), v.is_constant, len(v.shape), v.dtype) for v in node.operands()]
            lines.append((node.op_type, values, [(len(v.shape), v.dtype) for v in node.results()]))
        return hashlib.sha256(repr(lines).encode()).hexdigest()

    def initial(self) -> Form:
        """The form that estimates chose."""
        return self.untuned

    def starts(self) -> Sequence[Form]:
        """Products in other ways, and other blocks of each kernel, kernels apart, neighbours as one."""
        found: list[Form] = []
        for number, kernel in enumerate(self.untuned.kernels):
            for other in self._blocked(kernel)[:_NUM_STARTS]:
                found.append(self._replaced(self.untuned, number, (other,)))
        apart = self._ordered([KernelForm(p) for p in self._all_elements])
        found += [] if apart is None else [apart]
        for merged in self._merged(self.untuned):
            found += merged[:1]
        most_ns = _HOPELESS_RATIO * self.estimate_ns(self.untuned)
        cuts = sorted((form for form in found if self.estimate_ns(form) < most_ns), key=self.estimate_ns)
        ways = (
            [self._made(self.untuned, number, knob, way) for way in knob.others[: knob.num_listed]]
            for number, kernel in enumerate(self.untuned.kernels)
            for knob in self._knobs(kernel)
        )
        made = [form for turn in zip_longest(*ways) for form in turn if form is not None]
        # Products take turns with all else: they are what most often brings something.
        turns = zip_longest(made[::2], made[1::2], cuts)
        mixed = dict.fromkeys(form for turn in turns for form in turn if form is not None)
        return [form for form in mixed if form != self.untuned]

    def mutate(self, form: Form, rng: random.Random) -> Form:
        """Other blocks of a kernel, two kernels as one, one as two, or a product in another way."""
        moves: list[Callable[[Form, random.Random], Form]] = [
            self._with_other_blocks,
            self._with_two_as_one,
            self._with_one_as_two,
            self._with_other_way,
        ]
        rng.shuffle(moves)
        return next((other for move in moves if (other := move(form, rng)) != form), form)

    def cross(self, one: Form, other: Form, rng: random.Random) -> Form | None:
        """Of each part of the subgraph that both cut off from the rest, the kernels of one of them."""
        root = list(range(len(self.layers)))

        def find(i: int) -> int:
            while root[i] != i:
                i = root[i]
            return i

        for kernel in (*one.kernels, *other.kernels):
            for a, b in pairwise(kernel.nodes):
                root[find(a)] = find(b)
        kernels: list[KernelForm] = []
        for part in sorted({find(i) for i in range(len(root))}):
            source = one if rng.random() < 0.5 else other
            kernels += [kernel for kernel in source.kernels if find(kernel.nodes[0]) == part]
        return self._ordered(kernels)

    def kind(self, form: Form) -> Hashable:
        """The cut, which kernels have blocks, and the algorithms of products."""
        return tuple(
            (
                kernel.nodes,
                kernel.blocking is not None,
                tuple((name, choice.algorithm) for name, choice in kernel.choices),
            )
            for kernel in form.kernels
        )

    def keeps_kernels(self, form: Form) -> bool:
        """Whether its kernels are those of the untuned form, products in other ways."""
        cuts = ([(kernel.nodes, kernel.blocking) for kernel in f.kernels] for f in (form, self.untuned))
        return next(cuts) == next(cuts)

    def estimate_ns(self, form: Form) -> float:
        """The kernels one after another; blocks save or cost what the estimate of blocks says."""
        return sum(map(self._kernel_ns, form.kernels))

    def features(self, form: Form) -> Mapping[str, float]:
        """Of all kernels together: how many, what blocks save and pay, and how large these are."""
        estimates = [e for kernel in form.kernels if (e := self._estimate(kernel)) is not None]
        ranks = [self._rank(kernel) for kernel in form.kernels]
        return {
            "num_kernels": float(len(form.kernels)),
            "num_elements": float(len(self._all_elements)),
            "num_blockwise": float(len(estimates)),
            "saved_cycles": sum(e.saved for e in estimates),
            "paid_cycles": sum(e.paid for e in estimates),
            "total_cycles": sum(e.total for e in estimates),
            "longest_strip": float(max((e.blocking.strip for e in estimates), default=0)),
            "rank_of_products": float(sum(ranks)),
            **self.sizes,
        }

    @property
    def sizes(self) -> Mapping[str, float]:
        """How large the subgraph is: doublings of what it reads, makes, and has as weights, in elements."""
        read = {v for node in self._nodes for v in node.operands()} - {
            v for node in self._nodes for v in node.results()
        }
        counts = (
            sum(v.num_elements for v in read if not v.is_constant),
            sum(v.num_elements for v in self.subgraph.outputs),
            sum(v.num_elements for v in read if v.is_constant),
        )
        return {name: log2(1 + count) for name, count in zip(SIZES, counts, strict=True)}

    def read(self, document: object) -> Form | None:
        """A form whose kernels hold whole layers, with known blocks and known ways to make products."""
        form = Form.from_json(document)
        if (
            form is None
            or next(form_violations(self.graph, replace(self.subgraph, form=form)), None) is not None
        ):
            return None
        for kernel in form.kernels:
            known = {knob.name: knob for knob in self._knobs(kernel)}
            if not all(name in known and known[name].accepts(choice) for name, choice in kernel.choices):
                return None
            if kernel.blocking is not None and self._estimate(kernel) is None:
                return None
        return form

    def portable(self, form: Form) -> Mapping[str, Any]:
        """The form with what is chosen by number, as signatures tell sizes."""
        kernels: list[KernelForm] = []
        for kernel in form.kernels:
            numbers = {knob.name: number for number, knob in enumerate(self._knobs(kernel))}
            chosen = ((str(numbers[name]), choice) for name, choice in kernel.choices if name in numbers)
            kernels.append(replace(kernel, choices=tuple(chosen), saved_share=0.0))
        return Form(tuple(kernels)).to_json()

    def adapted(self, document: object) -> Form | None:
        """The same cut, and of blocks and ways that are possible here those most like that form's."""
        form = Form.from_json(document)
        whole = list(range(len(self.layers)))
        if form is None or sorted(node for kernel in form.kernels for node in kernel.nodes) != whole:
            return None
        kernels = [self._adapted(kernel) for kernel in form.kernels]
        possible = [kernel for kernel in kernels if kernel is not None]
        return self.read(Form(tuple(possible)).to_json()) if len(possible) == len(kernels) else None

    def _adapted(self, kernel: KernelForm) -> KernelForm | None:
        if kernel.blocking is not None:
            blocking, found = kernel.blocking, self._candidates(kernel.nodes)
            if not found:
                return None
            nearest = min(found, key=lambda e: _difference(e.blocking, blocking))
            kernel = replace(kernel, blocking=nearest.blocking, saved_share=nearest.saved_share)
        numbered = dict(kernel.choices)
        chosen: dict[str, Choice] = {}
        for number, knob in enumerate(self._knobs(kernel)):
            choice = numbered.get(str(number))
            if choice is not None:
                way = choice if knob.accepts(choice) else min(knob.others, key=partial(distance, choice))
                if way.algorithm == choice.algorithm:
                    chosen[knob.name] = way
        return replace(kernel, choices=tuple(sorted(chosen.items())))

    def split(self) -> tuple[FormPart[Form], ...]:
        """The layers, in the order in which they can run: each has at most one complex operator."""
        elements = self._all_elements
        if len(elements) < 2:
            return ()
        return tuple(FormPart(positions, self._part(positions)) for positions in elements)

    def join(self, forms: Sequence[Form]) -> Form:
        """The kernels of all parts, one after another."""
        kernels = [
            replace(kernel, nodes=tuple(positions[node] for node in kernel.nodes))
            for positions, form in zip(self._all_elements, forms, strict=True)
            for kernel in form.kernels
        ]
        return Form(tuple(kernels))

    # Parts and kernels.

    @property
    def _nodes(self) -> tuple[Node, ...]:
        return self.subgraph.nodes

    def _part(self, positions: Positions) -> SubgraphForms:
        place = {position: i for i, position in enumerate(positions)}
        works = tuple(
            replace(work, positions=frozenset(place[p] for p in work.positions))
            for work in self.works
            if work.positions <= place.keys()
        )
        subgraph = make_subgraph(0, [self._nodes[p] for p in positions], self.graph)
        return replace(
            self,
            subgraph=subgraph,
            untuned=Form.whole(len(positions)),
            layers=(0,) * len(positions),
            works=works,
            code=tuple((frozenset(place[p] for p in q), d) for q, d in self.code if q <= place.keys()),
            _estimates={},
            _apart_ns={},
            _known_knobs={},
            _digests={},
        )

    def _elements(self, positions: Sequence[int]) -> list[Positions]:
        """These nodes layer by layer; each stands where its last node does, by then all it reads is made."""
        members: dict[int, list[int]] = {}
        for position in positions:
            members.setdefault(self.layers[position], []).append(position)
        return sorted(map(tuple, members.values()), key=lambda layer: layer[-1])

    @property
    def _all_elements(self) -> list[Positions]:
        return self._elements(range(len(self.layers)))

    def _work(self, positions: Positions) -> Subgraph:
        return make_subgraph(0, [self._nodes[p] for p in positions], self.graph)

    def _candidates(self, positions: Positions) -> tuple[Estimate, ...]:
        """Blocks of these nodes as one kernel, the best by estimate first."""
        if positions not in self._estimates:
            work = self._work(positions)
            found = self.costs.blocks.all_of(work.nodes, work.outputs)
            ranked = sorted(found, key=lambda e: e.paid - e.saved)
            surest = max(found, key=lambda e: e.gain, default=None)  # the estimates' choice
            kept = dict.fromkeys((*ranked[:_NUM_BLOCKINGS], *([] if surest is None else [surest])))
            self._estimates[positions] = tuple(kept)
        return self._estimates[positions]

    def _estimate(self, kernel: KernelForm) -> Estimate | None:
        if kernel.blocking is None:
            return None
        return next((e for e in self._candidates(kernel.nodes) if e.blocking == kernel.blocking), None)

    def _kernel_ns(self, kernel: KernelForm) -> float:
        estimate = self._estimate(kernel)
        if estimate is None:
            return self._time_ns(kernel.nodes) * (1.0 + _RANK_SHARE * self._rank(kernel))
        apart_ns = sum(map(self._time_ns, self._elements(kernel.nodes)))
        share = max(0.05, 1.0 - (estimate.saved - estimate.paid) / estimate.total)
        return apart_ns * share * (1.0 + _RANK_SHARE * self._rank(kernel))

    def _time_ns(self, positions: Positions) -> float:
        if positions not in self._apart_ns:
            self._apart_ns[positions] = self.costs.kernel(self._work(positions)).time_ns
        return self._apart_ns[positions]

    def _rank(self, kernel: KernelForm) -> int:
        chosen = dict(kernel.choices)
        return sum(
            min(_LOWEST_RANK, 1 + (*knob.others, chosen[knob.name]).index(chosen[knob.name]))
            for knob in self._knobs(kernel)
            if knob.name in chosen
        )

    def _knobs(self, kernel: KernelForm) -> tuple[Knob, ...]:
        """The choices of a kernel: how its products are made; within blocks in which register tiles."""
        key = kernel.nodes, kernel.blocking is not None
        if key not in self._known_knobs:
            self._known_knobs[key] = tuple(self._all_knobs(key[0], has_blocks=key[1]))
        return self._known_knobs[key]

    def _all_knobs(self, positions: Positions, *, has_blocks: bool) -> Iterator[Knob]:
        if self._passes_on_images(positions):
            yield Knob(LAYOUT, BY_WISH, (ROW_MAJOR,), 0)
        inside = [work for work in self.works if work.positions <= set(positions)]
        if not has_blocks:
            for work in inside:
                if len(work.ways) > 1:
                    listed = work.num_listed - 1
                    yield Knob(work.signature, work.ways[0], work.ways[1:], listed, work.around)
            return
        for is_loops, name in ((False, inner_product), (True, inner_loops)):
            chosen = [work for work in inside if work.is_inner and work.is_loops == is_loops]
            for number, work in enumerate(sorted(chosen, key=lambda work: min(work.positions))):
                if len(work.tiles) > 1:
                    yield Knob(name(number), None, work.tiles, _NUM_STARTS)

    def _passes_on_images(self, positions: Positions) -> bool:
        """Whether others of the subgraph alone read what these nodes make, of three axes or more."""
        nodes = {self._nodes[p] for p in positions}
        return any(
            len(value.shape) > 2 and value not in self.subgraph.outputs and not nodes.issuperset(value.users)
            for node in nodes
            for value in node.results()
        )

    # Changes.

    def _blocked(self, kernel: KernelForm) -> list[KernelForm]:
        """A kernel in other blocks, the best first, and in none."""
        choices = () if kernel.blocking is None else kernel.choices
        found = [
            KernelForm(kernel.nodes, e.blocking, e.saved_share, choices)
            for e in self._candidates(kernel.nodes)
            if e.blocking != kernel.blocking
        ]
        return found if kernel.blocking is None else [*found, KernelForm(kernel.nodes)]

    def _merged(self, form: Form) -> Iterator[list[Form]]:
        """For each two neighbours that can be one kernel the forms in which they are, the best first."""
        kernels = form.kernels
        number_of = form.kernel_numbers()
        place = {node: i for i, node in enumerate(self._nodes)}
        edges = {
            (number_of[place[v.producer]], number_of[i])
            for i, node in enumerate(self._nodes)
            for v in node.operands()
            if v.producer in place
        }
        proper = sorted((u, v) for u, v in edges if u != v)
        quotient = QuotientGraph(len(kernels), proper)
        for u, v in proper:
            nodes = tuple(sorted((*kernels[u].nodes, *kernels[v].nodes)))
            if not quotient.can_contract(u, v) or len(self._elements(nodes)) > _MAX_ELEMENTS:
                continue
            merged = KernelForm(nodes)
            rest = [kernel for i, kernel in enumerate(kernels) if i not in (u, v)]
            forms = (self._ordered([*rest, kernel]) for kernel in (*self._blocked(merged), merged))
            yield [form for form in forms if form is not None]

    def _with_other_blocks(self, form: Form, rng: random.Random) -> Form:
        options = [(n, found) for n, k in enumerate(form.kernels) if (found := self._blocked(k))]
        if not options:
            return form
        number, found = rng.choice(options)
        return self._replaced(form, number, (rng.choice(found),))

    def _with_two_as_one(self, form: Form, rng: random.Random) -> Form:
        options = [forms for forms in self._merged(form) if forms]
        if not options:
            return form
        forms = rng.choice(options)
        if len(forms) == 1 or rng.random() < _PLAIN_SHARE:
            return forms[-1]
        return forms[min(int(rng.expovariate(0.5)), len(forms) - 1)]

    def _with_one_as_two(self, form: Form, rng: random.Random) -> Form:
        options = [n for n, kernel in enumerate(form.kernels) if len(self._elements(kernel.nodes)) > 1]
        if not options:
            return form
        number = rng.choice(options)
        elements = self._elements(form.kernels[number].nodes)
        at = rng.randrange(1, len(elements))
        parts: list[KernelForm] = []
        for members in (elements[:at], elements[at:]):
            kernel = KernelForm(tuple(sorted(p for layer in members for p in layer)))
            found = self._candidates(kernel.nodes) if form.kernels[number].blocking is not None else ()
            if found and found[0].gain:
                kernel = replace(kernel, blocking=found[0].blocking, saved_share=found[0].saved_share)
            parts.append(kernel)
        return self._replaced(form, number, parts)

    def _with_other_way(self, form: Form, rng: random.Random) -> Form:
        options = [(number, knob) for number, k in enumerate(form.kernels) for knob in self._knobs(k)]
        if not options:
            return form
        number, knob = rng.choice(options)
        chosen = dict(form.kernels[number].choices).get(knob.name, knob.usual)
        others = knob.beside(chosen, goes_on=rng.random() < _NEAR_SHARE)
        if chosen is None or rng.random() < _PLAIN_SHARE:
            return self._made(form, number, knob, rng.choice(others))
        some = rng.sample(others, min(_NUM_COMPARED, len(others)))
        return self._made(form, number, knob, min(some, key=partial(distance, chosen)))

    def _made(self, form: Form, number: int, knob: Knob, way: Choice) -> Form:
        """The form in which a kernel makes one of its products in this way."""
        kernel = form.kernels[number]
        chosen = {name: choice for name, choice in kernel.choices if name != knob.name}
        if way != knob.usual:
            chosen[knob.name] = way
        return self._replaced(form, number, (replace(kernel, choices=tuple(sorted(chosen.items()))),))

    def _replaced(self, form: Form, number: int, kernels: Sequence[KernelForm]) -> Form:
        return Form((*form.kernels[:number], *kernels, *form.kernels[number + 1 :]))

    def _ordered(self, kernels: Sequence[KernelForm]) -> Form | None:
        """These kernels in the first order in which they can run; None if they wait for each other."""
        home = {self._nodes[p]: i for i, kernel in enumerate(kernels) for p in kernel.nodes}
        waiting = {
            i: {
                home[v.producer]
                for p in kernel.nodes
                for v in self._nodes[p].operands()
                if v.producer in home
            }
            - {i}
            for i, kernel in enumerate(kernels)
        }
        ordered: list[KernelForm] = []
        while waiting:
            ready = [i for i, others in waiting.items() if not others & waiting.keys()]
            if not ready:
                return None
            following = min(ready, key=lambda i: kernels[i].nodes)
            del waiting[following]
            ordered.append(kernels[following])
        return Form(tuple(ordered))


def _difference(one: Blocking, other: Blocking) -> float:
    """By how often an extent of a block, or a strip, is twice the other's."""
    if len(one.block) != len(other.block):
        return inf
    pairs = zip((*one.block, one.strip), (*other.block, other.strip), strict=True)
    return sum(abs(log2(max(a, 1)) - log2(max(b, 1))) for a, b in pairs)
