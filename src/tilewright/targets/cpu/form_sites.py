"""Subgraphs whose forms are tuned in a running model: which they are, and how a plan becomes a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node
from tilewright.partition.base import Subgraph
from tilewright.partition.form import Form
from tilewright.program import Program
from tilewright.targets.cpu.lowered import LoweredModel, LoweredStage
from tilewright.tuning.form_plan import FormSite
from tilewright.tuning.space import FormSpace


@dataclass(frozen=True, slots=True, eq=False)
class FormSites:
    """Subgraphs by what they have in common, in the untuned program.

    `spaces` are by the numbers of subgraphs; a subgraph without one keeps its form.
    """

    program: Program
    spaces: Mapping[int, FormSpace[Form]]
    place: Mapping[Node, tuple[int, int]]  # the number of its subgraph, and its position there

    @classmethod
    def of(cls, program: Program, plain: LoweredModel, spaces: Mapping[int, FormSpace[Form]]) -> FormSites:
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
        alone = {number: space for number, space in spaces.items() if number not in shared}
        return cls(program, alone, place)

    def sites(self) -> tuple[FormSite[Form], ...]:
        """One for each key, in the order of the subgraphs."""
        first_nodes: dict[str, list[str]] = {}
        spaces: dict[str, FormSpace[Form]] = {}
        for number, space in sorted(self.spaces.items()):
            spaces.setdefault(space.key, space)
            first_nodes.setdefault(space.key, []).append(self._subgraphs[number].nodes[0].name)
        return tuple(FormSite(space, tuple(first_nodes[key])) for key, space in spaces.items())

    def planned(self, forms: Mapping[str, Form]) -> Program:
        """The program with these forms, by the keys of sites."""
        return self.program.with_forms(self.numbered(forms))

    def numbered(self, forms: Mapping[str, Form]) -> dict[int, Form]:
        """These forms by the numbers of subgraphs."""
        return {number: forms[space.key] for number, space in self.spaces.items() if space.key in forms}

    def describe(self, key: str, form: Form) -> str:
        """A form in words, by the operators of the first of its subgraphs: kernels, and how each is made."""
        number = next(number for number, space in sorted(self.spaces.items()) if space.key == key)
        nodes = self._subgraphs[number].nodes
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
            if number not in self.spaces:
                continue
            kernels = times.setdefault(self.spaces[number].key, {})
            samples = [run[index] for run in steps_ns]
            before = kernels.get(position)
            kernels[position] = (
                samples if before is None else [a + b for a, b in zip(before, samples, strict=True)]
            )
        return times

    @property
    def _subgraphs(self) -> tuple[Subgraph, ...]:
        return self.program.partition.subgraphs
