"""`tw.diff`: what was decided otherwise in two compiled models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.api.artifacts import asked_of_artifacts, for_models, open_or_compile
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.results import Result, Table, about, in_json
from tilewright.steps import KernelInfo
from tilewright.text.formatting import counted, format_bytes, format_ms

SHOWN_KERNELS = 30


@dataclass(frozen=True, slots=True)
class DifferingFact:
    """Something that both models have, as texts."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class KernelChange:
    """How the same nodes are run: by these kernels in A, by those in B; none where only one has the nodes."""

    nodes: tuple[str, ...]
    a: tuple[str, ...]
    b: tuple[str, ...]
    a_estimate_ns: float | None
    b_estimate_ns: float | None


@dataclass(frozen=True, slots=True)
class DiffResult(Result):
    """What differs between two compiled models: options, figures, nodes, and how nodes became kernels."""

    a: str
    b: str
    options: tuple[DifferingFact, ...] = field(metadata=about("Options that were asked for otherwise."))
    figures: tuple[DifferingFact, ...] = field(
        metadata=about("Model, target, schedule, number of kernels, estimate, memory: those that differ.")
    )
    only_a: tuple[str, ...] = field(metadata=about("Nodes of the optimised graph of A alone."))
    only_b: tuple[str, ...] = field(metadata=about("Nodes of that of B alone."))
    kernels: tuple[KernelChange, ...] = field(metadata=about("In the order in which A runs them."))

    @in_json
    def is_same(self) -> bool:
        """Whether nothing differs that is decided while compiling."""
        return not (self.options or self.figures or self.only_a or self.only_b or self.kernels)

    def tables(self) -> Sequence[Table]:
        """Options and figures; kernels; nodes of one of the two alone."""
        tables = []
        facts = (*self.options, *self.figures)
        if facts:
            rows = tuple((fact.name, fact.a, fact.b) for fact in facts)
            tables.append(Table(("what", self.a, self.b), rows, "asked for and planned"))
        if self.kernels:
            shown = self.kernels[:SHOWN_KERNELS]
            rows = tuple(
                (", ".join(k.nodes), _made(k.a, k.a_estimate_ns), _made(k.b, k.b_estimate_ns)) for k in shown
            )
            more = f"; the first {len(shown)}" if len(shown) < len(self.kernels) else ""
            title = f"{counted(len(self.kernels), 'group')} of nodes run otherwise{more}"
            tables.append(Table(("nodes", self.a, self.b), rows, title))
        alone = [(name, self.a) for name in self.only_a] + [(name, self.b) for name in self.only_b]
        if alone:
            title = f"{counted(len(alone), 'node')} of one alone"
            tables.append(Table(("node", "is only in"), tuple(alone[:SHOWN_KERNELS]), title))
        return tables

    def lines(self) -> Sequence[str]:
        """That they are the same, where they are."""
        return ("nothing differs: same options, nodes and kernels",) if self.is_same else ()


@checked
def diff_models(
    a: CompiledModel | str | Path,
    b: CompiledModel | str | Path,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> DiffResult:
    """Compare what was decided in two compiled models: artifacts, or models that are compiled for it.

    Nothing runs: `compare` says whether results agree, `bench` which is faster.

    Raises:
        UsageError: no such file, or options that an artifact cannot honour.
    """
    options = options or Options()
    files = [Path(side) for side in (a, b) if not isinstance(side, CompiledModel)]
    asked = asked_of_artifacts(options, files)

    def opened(side: CompiledModel | str | Path) -> CompiledModel:
        if isinstance(side, CompiledModel):
            return side
        return open_or_compile(Path(side), for_models(options, files), progress, asked)

    def named(letter: str, side: CompiledModel | str | Path) -> str:
        return f"{letter}: {side.target if isinstance(side, CompiledModel) else Path(side).name}"

    left, right = opened(a), opened(b)
    mine, theirs = _labels(left.program.graph), _labels(right.program.graph)
    return DiffResult(
        a=named("A", a),
        b=named("B", b),
        options=_differing(_options(left.options), _options(right.options)),
        figures=_differing(_figures(left), _figures(right)),
        only_a=tuple(label for label in mine if label not in theirs),
        only_b=tuple(label for label in theirs if label not in mine),
        kernels=_changes(left, right),
    )


def _made(kernels: Sequence[str], estimate_ns: float | None) -> str:
    text = "; ".join(kernels) or "-"
    return text if estimate_ns is None else f"{text} ({format_ms(estimate_ns / 1e6)})"


def _options(options: Options) -> dict[str, str]:
    document: Mapping[str, Any] = json.loads(options.to_json())
    return {f"--{name.replace('_', '-')}": json.dumps(value) for name, value in document.items()}


def _figures(compiled: CompiledModel) -> dict[str, str]:
    cost, memory = compiled.cost, compiled.memory
    figures = {
        "model": compiled.model_sha256[:16],
        "target": compiled.target,
        "version": compiled.facts.tool_version,
        "kernels": str(len(compiled.kernels)),
        "algorithms": ", ".join(f"{count} {name}" for name, count in compiled.algorithms.items()),
        "subgraphs": str(len(compiled.partition.subgraphs)),
        "stages": str(len(compiled.schedule.stages)),
    }
    if cost is not None:
        is_time = cost.unit == "ns"
        figures["estimate"] = format_ms(cost.cost / 1e6) if is_time else f"{cost.cost:.4g} {cost.unit}"
        figures["bound"] = format_ms(cost.bound / 1e6) if is_time else f"{cost.bound:.4g} {cost.unit}"
    if memory is not None:
        figures["activations"] = format_bytes(memory.peak_bytes)
        figures["constants"] = format_bytes(memory.constant_bytes)
    return figures


def _differing(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[DifferingFact, ...]:
    facts = (DifferingFact(name, a.get(name, "-"), b.get(name, "-")) for name in dict.fromkeys((*a, *b)))
    return tuple(fact for fact in facts if fact.a != fact.b)


def _labels(graph: Graph) -> dict[str, None]:
    return dict.fromkeys(f"{node.op_type} {node.name}" for node in graph.nodes)


def _changes(left: CompiledModel, right: CompiledModel) -> tuple[KernelChange, ...]:
    """Groups of nodes, the smallest that are whole in both, whose kernels differ."""
    groups = _groups([kernel.nodes for side in (left, right) for kernel in side.kernels])
    a, b = (_by_group(side.kernels, groups) for side in (left, right))
    nodes_of: dict[int, list[str]] = {}
    for node, number in groups.items():
        nodes_of.setdefault(number, []).append(node)
    changes = []
    for group in dict.fromkeys((*a, *b)):
        mine, theirs = a.get(group, []), b.get(group, [])
        if [_identity(kernel) for kernel in mine] != [_identity(kernel) for kernel in theirs]:
            estimates = _estimate(mine), _estimate(theirs)
            changes.append(KernelChange(tuple(nodes_of[group]), _texts(mine), _texts(theirs), *estimates))
    return tuple(changes)


def _groups(sets: Sequence[Sequence[str]]) -> dict[str, int]:
    """The number of the group of each node: nodes that share a kernel in either are in one."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for nodes in sets:
        for node in nodes:
            parent[root(node)] = root(nodes[0])
    numbers: dict[str, int] = {}
    return {node: numbers.setdefault(root(node), len(numbers)) for node in list(parent)}


def _by_group(kernels: Sequence[KernelInfo], groups: Mapping[str, int]) -> dict[int, list[KernelInfo]]:
    found: dict[int, list[KernelInfo]] = {}
    for kernel in kernels:
        if kernel.nodes:  # copies between layouts follow from the kernels around them
            found.setdefault(groups[kernel.nodes[0]], []).append(kernel)
    return found


def _identity(kernel: KernelInfo) -> tuple[object, ...]:
    return (kernel.template, kernel.nodes, kernel.notes, kernel.num_chunks)


def _texts(kernels: Sequence[KernelInfo]) -> tuple[str, ...]:
    return tuple(f"{kernel.template}{f': {kernel.notes[0]}' if kernel.notes else ''}" for kernel in kernels)


def _estimate(kernels: Sequence[KernelInfo]) -> float | None:
    known = [kernel.estimate_ns for kernel in kernels if kernel.estimate_ns is not None]
    return sum(known) if known and len(known) == len(kernels) else None
