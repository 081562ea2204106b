"""Subgraphs whose forms are tuned in a running model: which they are, and how a plan becomes a program."""

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
from tilewright.tuning.form_plan import FormSite
from tilewright.tuning.space import FormSpace


@dataclass(frozen=True, slots=True, eq=False)
class FormSites:
    """Subgraphs by what they have in common, in the untuned program.

    `keys` are by the numbers of subgraphs; a subgraph without one keeps its form.
    """

    program: Program
    keys: Mapping[int, str]
    place: Mapping[Node, tuple[int, int]]  # the number of its subgraph, and its position there

    @classmethod
    def of(cls, program: Program, plain: LoweredModel) -> FormSites:
        """The sites of a program that `plain` is made of.

        Subgraphs whose kernels run beside those of others have no time of their own: they keep their forms.
        """
        subgraphs = program.partition.subgraphs
        place = {node: (s.id, i) for s in subgraphs for i, node in enumerate(s.nodes)}
        shared = {
            place[launch.nodes[0]][0]
            for step in plain.steps
            if isinstance(step, LoweredStage) and len(step.groups) > 1
            for launch in step.launches
            if launch.nodes
        }
        keys = {n: key for n, key in subgraph_keys(program, plain).items() if n not in shared}
        return cls(program, keys, place)

    def with_spaces(
        self, spaces: Mapping[int, FormSpace[Form]]
    ) -> tuple[FormSites, tuple[FormSite[Form], ...]]:
        """What is searched if subgraphs have these spaces: the sites, and one of each key, in order."""
        keys = {number: spaces[number].key for number in sorted(self.keys) if number in spaces}
        first_nodes: dict[str, list[str]] = {}
        of_key: dict[str, FormSpace[Form]] = {}
        for number, key in keys.items():
            of_key.setdefault(key, spaces[number])
            first_nodes.setdefault(key, []).append(self._subgraphs[number].nodes[0].name)
        sites = tuple(FormSite(space, tuple(first_nodes[key])) for key, space in of_key.items())
        return replace(self, keys=keys), sites

    def fitting(self, key: str, document: object) -> Form | None:
        """The form that a document is, if it is one of the subgraphs of a key."""
        form = Form.from_json(document)
        subgraph = self._subgraphs[self._first(key)]
        if form is None or any(form_violations(self.program.graph, replace(subgraph, form=form))):
            return None
        return form

    def nodes(self, key: str) -> tuple[str, ...]:
        """The names of the first operators of its subgraphs."""
        return tuple(
            self._subgraphs[n].nodes[0].name for n, other in sorted(self.keys.items()) if other == key
        )

    def planned(self, forms: Mapping[str, Form]) -> Program:
        """The program with these forms, by the keys of sites."""
        return self.program.with_forms(self.numbered(forms))

    def numbered(self, forms: Mapping[str, Form]) -> dict[int, Form]:
        """These forms by the numbers of subgraphs."""
        return {number: forms[key] for number, key in self.keys.items() if key in forms}

    def describe(self, key: str, form: Form) -> str:
        """A form in words, by the operators of the first of its subgraphs: kernels, and how each is made."""
        nodes = self._subgraphs[self._first(key)].nodes
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
            if number not in self.keys:
                continue
            kernels = times.setdefault(self.keys[number], {})
            samples = [run[index] for run in steps_ns]
            before = kernels.get(position)
            kernels[position] = (
                samples if before is None else [a + b for a, b in zip(before, samples, strict=True)]
            )
        return times

    def _first(self, key: str) -> int:
        return next(number for number, other in sorted(self.keys.items()) if other == key)

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
