"""A compilation as data, and as one HTML file that needs no network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.arguments import checked
from tilewright.compiled_facts import CompiledFacts, MeasuredError, TensorInfo
from tilewright.explain import Explanation
from tilewright.files import write_output
from tilewright.planning import Bound
from tilewright.report.figure import heading, html_table, page
from tilewright.results import Result, Table, about
from tilewright.steps import CostInfo, MemoryInfo, StepInfo, TuningInfo
from tilewright.text.formatting import format_ms
from tilewright.text.printable import json_text


@dataclass(frozen=True, slots=True)
class ChosenAlgorithms(Result):
    """Which templates made the kernels, and how exact they are."""

    algorithms: Mapping[str, int] = field(
        metadata=about("Kernels of the model by the template that made them.")
    )
    error: MeasuredError | None = field(metadata=about("Where it was measured."))
    accuracy: str = field(metadata=about("Which ways to compute were allowed, as `--accuracy` names them."))

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self.algorithms.items()) or "none"


@dataclass(frozen=True, slots=True)
class CompilationSummary(Result):
    """A compilation: kernels, memory, and the seconds that each phase took."""

    options: Mapping[str, Any] = field(metadata=about("As `tilewright schema options`."))
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    num_nodes: int
    num_subgraphs: int
    num_stages: int
    memory: MemoryInfo | None
    cost: CostInfo | None = field(metadata=about("By estimate; null for artifacts that do not say."))
    algorithms: Mapping[str, int] = field(metadata=about("Kernels by the template that made them."))
    error: MeasuredError | None = field(metadata=about("With --error."))
    tuning: TuningInfo | None = field(metadata=about("Where measurements chose kernels."))
    steps: tuple[StepInfo, ...]
    phase_s: Mapping[str, float]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompilationReport:
    """Everything a compilation decided. Equal compilations give equal bytes."""

    document: dict[str, Any]
    tables: tuple[Table, ...]

    @classmethod
    def of(
        cls, document: Mapping[str, Any], facts: CompiledFacts, explanation: Explanation
    ) -> CompilationReport:
        """The report of a compiled model, whose plain values are `document`."""
        document = {**document, "explanation": explanation.to_json()}
        kernels = tuple(
            (
                k.id,
                k.template,
                ", ".join(k.nodes),
                f"{k.macs:,}" if k.macs else "",
                str(k.num_chunks),
                "" if k.estimate_ns is None else format_ms(k.estimate_ns / 1e6),
                "; ".join(k.notes),
            )
            for k in explanation.kernels
        )
        nodes = tuple(
            (n.name, n.op_type, ", ".join(n.became), ", ".join(n.kernels), n.note) for n in explanation.nodes
        )
        edges = tuple(
            (e.producer, e.consumer, "fused" if e.is_fused else "cut", e.code, e.text)
            for e in explanation.edges
        )
        heads = ("kernel", "template", "nodes", "multiply-accumulates", "chunks", "estimate", "notes")
        tables = (
            Table(("", ""), _summary(document, facts), "Summary"),
            Table(heads, kernels, "Kernels"),
            Table(("node", "operator", "became", "kernels", "note"), nodes, "Nodes of the model"),
            Table(("from", "to", "verdict", "code", "reason"), edges, "Edges"),
        )
        return cls(document, tables)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return self.document

    def summary_html(self) -> str:
        """The first table alone: what a notebook shows."""
        return _titled(self.tables[0])

    def html(self) -> str:
        """The whole report as one page."""
        return page("tilewright report", list(map(_titled, self.tables)))

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write HTML, or JSON if the name ends in `.json`.

        Raises:
            UsageError: the file cannot be written.
        """
        path = Path(path)
        is_json = path.suffix == ".json"
        text = (
            json_text(json.dumps(self.document, indent=1, sort_keys=True)) + "\n" if is_json else self.html()
        )
        write_output(path, text.encode())
        return path

    def _repr_html_(self) -> str:
        return "".join(map(_titled, self.tables))


def in_words(table: Table) -> str:
    """A table of words, without its title."""
    return html_table(table.heads, table.rows, is_words=True)


def _titled(table: Table) -> str:
    return heading(table.title) + in_words(table)


def cost_rows(cost: CostInfo) -> list[tuple[str, str]]:
    """What a plan costs, and at least: where it is simulated also energy, bytes and how busy units are."""
    rows = []
    if cost.simulated is None or cost.unit != "ns":
        rows.append(("estimate", f"{_amount(cost.cost, cost.unit)}, by {cost.source}"))
        rows += (("at least", _bound_text(cost, bound)) for bound in cost.bounds)
    if cost.simulated is not None:
        from tilewright.report.simulation import cost_rows as simulated_rows

        rows += simulated_rows(cost.simulated)
    return rows


def _bound_text(cost: CostInfo, bound: Bound) -> str:
    """A lower bound beside the cost, and the plans that it is of."""
    kind = "" if bound.is_proven else ", estimated too"
    gap = ""
    if cost.cost == bound.value:
        gap = ": reached"
    elif bound.value > 0:
        share = 100 * (cost.cost / bound.value - 1)
        gap = f": {share:.0f} % above" if share >= 0 else f": {-share:.0f} % below, so that it is violated"
    return f"{_amount(bound.value, cost.unit)} ({bound.space}){kind}{gap}"


def _amount(cost: float, unit: str) -> str:
    return format_ms(cost / 1e6) if unit == "ns" else f"{cost:.4g} {unit}"


def _summary(document: Mapping[str, Any], facts: CompiledFacts) -> tuple[tuple[str, str], ...]:
    kernels = [kernel for step in facts.steps for kernel in step.kernels]
    on_host = [kernel for kernel in kernels if kernel.is_host]
    rows: list[tuple[str, str]] = [
        ("target", str(facts.target)),
        ("model", facts.model_sha256),
        ("inputs", _joined(facts.inputs)),
        ("outputs", _joined(facts.outputs)),
        ("nodes", str(document["num_nodes"])),
        ("kernels", f"{len(kernels)}, of which {len(on_host)} on the host"),
        ("algorithms", ", ".join(f"{n} {name}" for name, n in document["algorithms"].items())),
        ("error", "not measured" if facts.error is None else str(facts.error)),
    ]
    if facts.cost is not None:
        rows += cost_rows(facts.cost)
    if facts.memory is not None:
        memory = facts.memory
        rows += [
            (level.name, f"{level.peak_bytes:,} bytes; at least {level.lower_bound_bytes:,} are needed")
            for level in memory.levels
        ]
        rows.append(("constants", f"{memory.constant_bytes:,} bytes"))
    return (*rows, *(("remark", remark) for remark in document["remarks"]))


def _joined(items: Sequence[object] | Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "none"
