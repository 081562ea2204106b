"""The report of a model as one page: its graph, what kernels take, memory over time, why edges were cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.explain import Explanation
from tilewright.program import Program
from tilewright.report.compilation import CompilationReport
from tilewright.report.figure import facts, folded, heading, html_table, note, page
from tilewright.report.graph_view import graph_section
from tilewright.report.limits import TimedKernel, roofline_section, times_section
from tilewright.report.memory_over_time import TimedStep, run_section
from tilewright.report.workers import RecordedRun
from tilewright.results import Table
from tilewright.steps import MemoryInfo, StepInfo


@dataclass(frozen=True, slots=True)
class RunTimes:
    """What the kernels of a run take, measured or by estimate, beside what the machine allows.

    `kernels` has one for each step, with the id of its first kernel, or without those whose time is not
    known; `recorded` is one run of them as it went. `flop_per_s` and `bytes_per_s` are the machine's peaks by
    name; `explained` says where they are from.
    """

    kernels: tuple[TimedKernel, ...]
    is_measured: bool
    said: tuple[tuple[str, str], ...] = ()
    flop_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    explained: str = ""
    recorded: RecordedRun | None = None

    @classmethod
    def estimated(cls, steps: Sequence[StepInfo]) -> RunTimes:
        """What the cost model says of the steps, of those of which it says something."""
        kernels = []
        for step in steps:
            times = [k.estimate_ns for k in step.kernels if k.estimate_ns is not None]
            if len(times) == len(step.kernels):
                time_ns = sum(times)
                name = _name(step)
                kernels.append(
                    TimedKernel(step.kernels[0].id, name, time_ns, time_ns, time_ns, None, "estimate")
                )
        return cls(tuple(kernels), is_measured=False)

    def by_id(self) -> dict[str, float]:
        """The time of each step by the id of its first kernel."""
        return {kernel.id: kernel.time_ns for kernel in self.kernels}


def model_page(
    title: str,
    program: Program,
    report: CompilationReport,
    explanation: Explanation,
    steps: Sequence[StepInfo],
    memory: MemoryInfo | None,
    times: RunTimes,
) -> str:
    """One HTML page that needs no network."""
    kernels = [kernel for step in steps for kernel in step.kernels]
    measured_ns = times.by_id() if times.is_measured else None
    summary = report.tables[0].rows
    parts = [facts(times.said or [(name, value) for name, value, *_ in summary])]
    parts += [heading("Graph"), graph_section(program, kernels, explanation.edges, measured_ns)]
    if not times.kernels:
        parts.append(note("The cost model of this target says nothing of single kernels."))
    parts += times_section(times.kernels)
    if times.flop_per_s and times.bytes_per_s:
        parts += roofline_section(times.kernels, times.flop_per_s, times.bytes_per_s, times.explained)
    recorded = times.recorded
    if recorded is not None and len(recorded.steps) != len(steps):
        recorded = None  # what was measured was made anew, and the model by a version that makes other steps
    parts += run_section(_timed_steps(steps, times), memory, recorded)
    parts += _edges_section(explanation)
    parts += [heading("Tables"), *(folded(table.title, [table.rows_html()]) for table in report.tables)]
    return page(title, parts)


def shapes_page(
    title: str, said: str, table: Table, sections: Sequence[tuple[str, CompilationReport, RunTimes]]
) -> str:
    """One HTML page of a model that was compiled for several sets of shapes: `table` lists them, and each has
    a section with its name, times of kernels and tables."""
    parts = [note(f"{said}. {_OF_SHAPES}"), html_table(table.heads, table.rows)]
    for name, report, times in sections:
        tables = [folded(inner.title, [inner.rows_html()]) for inner in report.tables]
        parts.append(folded(name, [*times_section(times.kernels), *tables]))
    return page(title, parts)


_OF_SHAPES = (
    "The graph, and memory over time, are on the page of a single set of shapes: compile with --shapes that "
    "gives one size to each dimension."
)


def _timed_steps(steps: Sequence[StepInfo], times: RunTimes) -> list[TimedStep]:
    by_id = {kernel.id: kernel for kernel in times.kernels}
    timed = []
    for step in steps:
        kernel = by_id.get(step.kernels[0].id)
        bound = "host" if kernel is None and step.kernels[0].is_host else "estimate"
        timed.append(
            TimedStep(_name(step), None, bound)
            if kernel is None
            else TimedStep(f"{kernel.id} {kernel.name}", kernel.time_ns, kernel.bound)
        )
    return timed


def _name(step: StepInfo) -> str:
    """Templates of its kernels, and the nodes they serve."""
    templates = " | ".join(dict.fromkeys(kernel.template for kernel in step.kernels))
    nodes = [name for kernel in step.kernels for name in kernel.nodes]
    return f"{templates} {', '.join(dict.fromkeys(nodes))}".strip()


def _edges_section(explanation: Explanation) -> list[str]:
    counts = explanation.edge_counts()
    if not counts:
        return []
    num_fused = sum(count for count, verdict, *_ in counts if verdict == "fused")
    num_cut = len(explanation.edges) - num_fused
    said = (
        f"{len(explanation.edges):,} edges between nodes: {num_fused:,} fused into one kernel, {num_cut:,} "
        "cut. The reason of each is in the graph, where a box is chosen, and in the table of edges below."
    )
    rows = [(f"{count:,}", verdict, code, why) for count, verdict, code, why in counts]
    heads = ("edges", "verdict", "reason", "why")
    return [heading("Edges: fused or cut"), note(said), html_table(heads, rows, is_words=True)]
