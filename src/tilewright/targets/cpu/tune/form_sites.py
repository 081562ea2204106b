"""Sites of a model: subgraphs that have a time of their own, or share one; plans of forms as programs.

Subgraphs whose kernels run side by side in a stage have one time together: they are one site, whose form is
that of all of them, one behind the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.graph import Node
from tilewright.partition.base import Subgraph
from tilewright.partition.check_forms import form_violations
from tilewright.partition.form import Form
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredModel, LoweredStage
from tilewright.targets.cpu.tune.site_space import GroupSpace, SiteSpace, member_form
from tilewright.tuning.form_plan import FormSite


@dataclass(frozen=True, slots=True)
class Home:
    """The site of a subgraph: its key, the subgraphs there in order, and where this one's nodes begin."""

    key: str
    members: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FormSites:
    """Sites of the untuned program, by the numbers of subgraphs; those without kernels have none."""

    program: Program
    homes: Mapping[int, Home]
    place: Mapping[Node, tuple[int, int]]  # the number of its subgraph, and its position there

    @classmethod
    def of(cls, program: Program, plain: LoweredModel) -> FormSites:
        """The sites of a program that `plain` is made of."""
        subgraphs = program.partition.subgraphs
        keys = subgraph_keys(program, plain)
        homes = {number: Home(key, (number,)) for number, key in keys.items()}
        for stage in program.schedule.stages:
            groups = [[i.subgraph_id for i in g.instances if i.subgraph_id in keys] for g in stage.groups]
            members = tuple(number for group in groups for number in group)
            if sum(map(bool, groups)) < 2 or len(set(members)) < len(members):
                continue
            cores = [group.num_cores for group in stage.groups]
            facts = [[keys[number] for number in group] for group in groups]
            key = f"group:{hashlib.sha256(repr((cores, facts)).encode()).hexdigest()}"
            offset = 0
            for number in members:
                homes[number] = Home(key, members, offset)
                offset += len(subgraphs[number].nodes)
        place = {node: (s.id, i) for s in subgraphs for i, node in enumerate(s.nodes)}
        return cls(program, homes, place)

    @property
    def keys(self) -> tuple[str, ...]:
        """Each site's key once, in the order of their first subgraphs."""
        return tuple(dict.fromkeys(self.homes[number].key for number in sorted(self.homes)))

    def with_spaces(self, spaces: Mapping[int, SiteSpace]) -> tuple[FormSites, tuple[FormSite[Form], ...]]:
        """What is searched if subgraphs have these spaces: the sites, and one of each key, in order."""
        homes: dict[int, Home] = {}
        found: dict[str, SiteSpace | GroupSpace] = {}
        for number in sorted(self.homes):
            home = self.homes[number]
            if not any(member in spaces for member in home.members):
                continue
            space: SiteSpace | GroupSpace
            if len(home.members) == 1:
                space = spaces[number]
            else:
                untuned = tuple(self._untuned(member) for member in home.members)
                space = GroupSpace(home.key, untuned, tuple(map(spaces.get, home.members)))
            found.setdefault(space.key, space)
            homes[number] = replace(home, key=space.key)
        sites = replace(self, homes=homes)
        return sites, tuple(FormSite(space, sites.nodes(key)) for key, space in found.items())

    def fitting(self, key: str, document: object) -> Form | None:
        """The form that a document is, if it is one of the subgraphs of a key."""
        form = Form.from_json(document)
        if form is None:
            return None
        num_kernels = 0
        for subgraph, part in self._parts(key, form):
            if any(form_violations(self.program.graph, replace(subgraph, form=part))):
                return None
            num_kernels += len(part.kernels)
        return form if num_kernels == len(form.kernels) else None

    def nodes(self, key: str) -> tuple[str, ...]:
        """Each place of a site by the names of the first operators of its subgraphs."""
        places = dict.fromkeys(self.homes[n].members for n in sorted(self.homes) if self.homes[n].key == key)
        return tuple(" and ".join(self._subgraphs[n].nodes[0].name for n in members) for members in places)

    def planned(self, forms: Mapping[str, Form]) -> Program:
        """The program with these forms, by the keys of sites."""
        return self.program.with_forms(self.numbered(forms))

    def numbered(self, forms: Mapping[str, Form]) -> dict[int, Form]:
        """These forms by the numbers of subgraphs; those of a stage that keep theirs are left out."""
        chosen: dict[int, Form] = {}
        for number, home in self.homes.items():
            if home.key in forms:
                form = member_form(forms[home.key], home.offset, len(self._subgraphs[number].nodes))
                if len(home.members) == 1 or form != self._untuned(number):
                    chosen[number] = form
        return chosen

    def describe(self, key: str, form: Form) -> str:
        """A form in words, by the operators of the first of its places: kernels, and how each is made."""
        nodes = [node for subgraph, _ in self._parts(key, form) for node in subgraph.nodes]
        kernels: list[str] = []
        for kernel in form.kernels:
            names = [nodes[position].name for position in kernel.nodes]
            named = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            how = [str(choice) for _, choice in kernel.choices]
            if kernel.blocking is not None:
                block = "x".join(map(str, kernel.blocking.block))
                how.insert(0, f"blocks of {block} in strips of {kernel.blocking.strip}")
            kernels.append(": ".join((named, ", ".join(how))) if how else named)
        return " | ".join(kernels)

    def by_site(
        self, lowered: LoweredModel, steps_ns: Sequence[Sequence[float]]
    ) -> dict[str, dict[int, list[float]]]:
        """The times of runs by site and first operator of a kernel; a run has a time for each step."""
        times: dict[str, dict[int, list[float]]] = {}
        for index, step in enumerate(lowered.steps):
            if not isinstance(step, LoweredStage) or not step.launches[0].nodes:
                continue
            number, position = self.place[step.launches[0].nodes[0]]
            if number not in self.homes:
                continue
            home = self.homes[number]
            kernels = times.setdefault(home.key, {})
            samples = [run[index] for run in steps_ns]
            before = kernels.get(home.offset + position)
            kernels[home.offset + position] = (
                samples if before is None else [a + b for a, b in zip(before, samples, strict=True)]
            )
        return times

    def digest(self) -> str:
        """Digest of the sites in order: models and schedules of one digest share their plans."""
        homes = [(number, home.key, home.offset) for number, home in sorted(self.homes.items())]
        operators = [tuple(node.op_type for node in s.nodes) for s in self._subgraphs]
        return hashlib.sha256(repr((homes, operators)).encode()).hexdigest()

    def _parts(self, key: str, form: Form) -> list[tuple[Subgraph, Form]]:
        """The subgraphs of the first place of a site, each with its part of a form."""
        members = next(home.members for _, home in sorted(self.homes.items()) if home.key == key)
        parts: list[tuple[Subgraph, Form]] = []
        for number in members:
            subgraph = self._subgraphs[number]
            parts.append((subgraph, member_form(form, self.homes[number].offset, len(subgraph.nodes))))
        return parts

    def _untuned(self, number: int) -> Form:
        return Form(self._subgraphs[number].kernels)

    @property
    def _subgraphs(self) -> tuple[Subgraph, ...]:
        return self.program.partition.subgraphs


def subgraph_keys(program: Program, lowered: LoweredModel) -> dict[int, str]:
    """Of each subgraph with kernels a digest of its form and of all its kernels as the estimates make them.

    A kernel's symbol is a digest of its code, so that equal keys mean equal work on equal layouts.
    """
    launches: dict[int, list[KernelLaunch]] = {}
    for launch in lowered.launches:
        if launch.nodes:
            launches.setdefault(program.partition.subgraph_of(launch.nodes[0]).id, []).append(launch)
    return {number: _key(program.partition.subgraphs[number], made) for number, made in launches.items()}


def _key(subgraph: Subgraph, launches: Sequence[KernelLaunch]) -> str:
    kernels = [(m.kernel.signature, m.kernel.symbol, m.kernel.num_chunks) for m in launches]
    forms = [(kernel.nodes, kernel.blocking, kernel.choices) for kernel in subgraph.kernels]
    operators = [node.op_type for node in subgraph.nodes]
    return hashlib.sha256(repr((operators, forms, kernels)).encode()).hexdigest()
