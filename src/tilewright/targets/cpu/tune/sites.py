"""What tuning measures in a lowered model: products with steps of their own, and groups that share steps.

Where several groups of a stage have kernels, these run side by side, and only the stage as a whole has a
time. It is filed under its kernels, never under one of its products.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from tilewright.ir.graph import Node
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.schedule.base import Schedule
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredModel, LoweredStage, LoweredStep
from tilewright.targets.cpu.product.select import product_candidates
from tilewright.tuning import NO_CHOICES, Candidate, Choice, Choices, Plan, Site, place_key

_GROUP = "group:"


@dataclass(frozen=True, slots=True)
class _Place:
    """One launch of a product: where, and in which subgraph."""

    site: str
    signature: str
    subgraph_id: int
    launch: KernelLaunch


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """The sites of a program, taken from what the estimates alone made of it.

    `shared` gives the key of each stage that several groups share, by its number; `places` the launches of
    products in order.
    """

    plain: LoweredModel
    schedule: Schedule
    stage_of: Mapping[Node, tuple[int, int]]  # and the group
    shared: Mapping[int, str]
    places: tuple[_Place, ...]

    @classmethod
    def of(cls, plain: LoweredModel, schedule: Schedule) -> Sites:
        """The sites of a program that `plain` is made of."""
        stage_of = {
            node: (number, position)
            for number, stage in enumerate(schedule.stages)
            for position, group in enumerate(stage.groups)
            for instance in group.instances
            for node in schedule.partition.subgraphs[instance.subgraph_id].nodes
        }
        groups: dict[int, dict[int, list[KernelLaunch]]] = {}
        for launch in plain.launches:
            if launch.nodes:
                number, position = stage_of[launch.nodes[0]]
                groups.setdefault(number, {}).setdefault(position, []).append(launch)
        waits: dict[int, list[tuple[int, ...]]] = {}
        for step in plain.steps:
            if isinstance(step, LoweredStage) and step.launches[0].nodes:
                number, _ = stage_of[step.launches[0].nodes[0]]
                waits.setdefault(number, []).append(tuple(len(group.launches) for group in step.groups))
        shared = {
            number: _group_key(schedule, number, members, waits[number])
            for number, members in groups.items()
            if len(members) > 1
        }
        places = tuple(
            _Place(
                shared.get(stage_of[launch.nodes[0]][0], launch.kernel.signature),
                launch.kernel.signature,
                schedule.partition.subgraph_of(launch.nodes[0]).id,
                launch,
            )
            for launch in plain.launches
            if launch.kernel.signature
        )
        return cls(plain, schedule, stage_of, shared, places)

    def site_of(self, step: LoweredStep) -> str:
        """The key of the site whose time a step's is, whatever the choices; empty where it is none's."""
        if not isinstance(step, LoweredStage) or not step.launches[0].nodes:
            return ""
        number, _ = self.stage_of[step.launches[0].nodes[0]]
        return self.shared.get(number, step.launches[0].kernel.signature)

    def all(self, isa: Isa, accuracy: Accuracy) -> tuple[Site, ...]:
        """Every site with another way to do its work, in the order in which they run."""
        sites: list[Site] = []
        for key, places in self._by_site().items():
            ways = [
                [Candidate.of({signature: choice}) for choice in self._alternatives(signature, isa, accuracy)]
                for signature in dict.fromkeys(place.signature for place in places)
            ]
            # Members of a group in turns, so that the first candidates hold the best of each.
            candidates = tuple(c for turn in zip_longest(*ways) for c in turn if c is not None)
            if candidates:
                nodes = dict.fromkeys(place.launch.nodes[0].name for place in places)
                sites.append(Site(key, candidates, tuple(nodes)))
        return tuple(sites)

    def template(self, key: str) -> str:
        """What the estimates chose for the products of a site."""
        launches = (place.launch for place in self.places if place.site == key)
        return " + ".join(dict.fromkeys(launch.kernel.template for launch in launches))

    def choices(self, plan: Plan) -> Choices:
        """The choices that make a program as a plan says.

        Where groups share stages, a product may be made one way in one place and another way elsewhere, so
        that every choice names its place.
        """
        if not self.shared:
            return dict(choice for candidate in plan.values() for choice in candidate.choices)
        chosen: dict[str, Choice] = {}
        for place in self.places:
            candidate = plan.get(place.site)
            choice = None if candidate is None else dict(candidate.choices).get(place.signature)
            if choice is not None:
                chosen[place_key(place.subgraph_id, place.signature)] = choice
        return chosen or NO_CHOICES

    def describe(self, key: str, candidate: Candidate) -> str:
        """A candidate in words: the operators that it changes, where a site has several products."""
        names = {
            place.signature: place.launch.nodes[0].name
            for place in reversed(self.places)
            if place.site == key
        }
        if len(names) == 1:
            return ", ".join(str(choice) for _, choice in candidate.choices)
        return ", ".join(f"{names[signature]}: {choice}" for signature, choice in candidate.choices)

    def digest(self) -> str:
        """Of the sites in the order in which they run: equal for models and schedules with equal plans."""
        keys = (self.site_of(step) for step in self.plain.steps)
        return hashlib.sha256("\0".join(key for key in keys if key).encode()).hexdigest()

    def _by_site(self) -> dict[str, list[_Place]]:
        by_site: dict[str, list[_Place]] = {}
        for place in self.places:
            by_site.setdefault(place.site, []).append(place)
        return by_site

    def _alternatives(self, signature: str, isa: Isa, accuracy: Accuracy) -> tuple[Choice, ...]:
        """Ways to make a product beside the one that the estimates chose."""
        product = self.plain.products[signature]
        context = product.context(isa, accuracy)
        ways = product_candidates(product.nest, context)
        return ways[1:]


def _group_key(
    schedule: Schedule,
    number: int,
    members: Mapping[int, list[KernelLaunch]],
    waits: Sequence[tuple[int, ...]],
) -> str:
    """Digest of all that runs in a stage: of each group its cores and its kernels by the estimates.

    A kernel's symbol is a digest of its code. `waits` are the kernels of each group between barriers.
    """
    facts: list[object] = [
        (
            schedule.stages[number].groups[position].num_cores,
            [(x.kernel.signature, x.kernel.symbol, x.kernel.num_chunks) for x in launches],
        )
        for position, launches in sorted(members.items())
    ]
    facts.append(waits)
    return _GROUP + hashlib.sha256(repr(facts).encode()).hexdigest()
