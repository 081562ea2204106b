"""`tw.simulate`: a whole network on a described accelerator, planned, simulated, reported."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.api.batches import BatchedModel, Batches, Run, batch_text, latency_limit_s, runs, wanted_batch
from tilewright.api.models import Model
from tilewright.api.simulation_request import DEFAULT_MACHINE, GRID, JOINT, SimulationRequest
from tilewright.arguments import checked, require_fields
from tilewright.compiler import Planned, plan_optimised
from tilewright.cost.base import UNITS, Objective
from tilewright.errors import NumericMismatch, UsageError
from tilewright.files import write_output
from tilewright.frontend.onnx import Source
from tilewright.joint.launched.decisions import Decision
from tilewright.mapping.sweep.answered import TaskSettings
from tilewright.options import Options
from tilewright.planning import Bound, Meter
from tilewright.progress import PhaseClock, Progress, ending_with
from tilewright.results import Result, Table, about, in_json
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.base import SimulatedCode, SimulatingTarget
from tilewright.targets.simulated import MappedCosts, NetworkPlan, SimulatedNetwork
from tilewright.text.formatting import counted, format_bytes
from tilewright.text.printable import json_text

_MOST_LAYERS = 5  # of those that take most energy, for people

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.ir.graph import Graph
    from tilewright.planning.portfolio import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRecipe(SimulatedNetwork):
    """A plan of a network and what it costs one cluster; every figure is an estimate."""

    recipe: str
    throughput_per_s: float = field(metadata=about("Of all clusters."))


@dataclass(frozen=True, slots=True)
class TriedRecipe:
    """A plan that was tried; null where it cannot be made, or is seen to be slower before it is simulated."""

    recipe: str
    time_s: float | None = field(metadata=about("Null where another objective than time was asked for."))
    cost: float | None = field(metadata=about("In the objective's unit."))
    why: str = field(metadata=about("Why there is no plan; empty where there is one."))
    planners: Recipe | None = field(metadata=about(hidden=True))


@dataclass(frozen=True, slots=True)
class TriedBatch:
    """Throughput of all clusters with so many samples for each."""

    batch: int
    throughput_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class SimulationResult(SimulatedRecipe, Result):
    """A network on a described accelerator."""

    machine: str
    network: str
    samples_per_cluster: int
    batches: tuple[TriedBatch, ...]
    runs: tuple[Run, ...]
    objective: Objective
    objective_unit: str
    tried: tuple[TriedRecipe, ...] = field(
        metadata=about("Of the portfolio and the search; empty for other recipes.")
    )
    num_simulated: int = field(metadata=about("How many plans that differ were simulated for them."))
    num_untried: int = field(metadata=about("How many recipes of the portfolio the budget did not last for."))
    is_interrupted: bool = field(
        metadata=about("Whether the user ended the search; this was the best plan until then.")
    )
    decisions: tuple[Decision, ...] = field(
        metadata=about("Of a joint plan: its blocks beside the next best alternatives that were priced.")
    )
    compared: Mapping[str, SimulatedRecipe]
    values_checked: bool = field(
        metadata=about(
            "Whether the plan's values were computed and equal the network's: in the file's types, whatever "
            "they are lowered to. What lowering rounds is no part of it."
        )
    )
    bounds: tuple[Bound, ...] | None = field(
        metadata=about("Lower bounds of a joint plan's cost, each of a space of plans.", optional=True)
    )
    optimal_among: str | None = field(
        metadata=about("The space in which a joint plan is proven to be the best.", optional=True)
    )
    is_grid: bool = field(metadata=about(hidden=True))
    mappings: MappedCosts | None = field(
        metadata=about("Sums of products beside their mappings, level by level.", optional=True)
    )
    num_clusters: int = field(metadata=about(hidden=True))
    code: SimulatedCode = field(metadata=about(hidden=True))

    @in_json
    def plan(self) -> NetworkPlan:
        """All that one cluster does for a batch: enough to generate code from, and to check it."""
        return self.code.plan()

    def tables(self) -> Sequence[Table]:
        """Batches and runs where several were asked for; the plan, its cost, and what it is compared with."""
        tables = [self._plan_table(), self._cost_table()]
        if self.runs:
            heads = ("samples", "direct/s", "padded/s", "in buckets/s", "buckets", "best")
            rows = tuple(run.row() for run in self.runs)
            tables.insert(0, Table(heads, rows, "", (0, 1, 2, 3), (4,)))
        if self.batches:
            rows = tuple((str(b.batch), f"{b.throughput_per_s:,.0f}") for b in self.batches)
            tables.insert(0, Table(("samples a cluster", "samples/s"), rows, right=(0, 1)))
        if self.is_grid:
            tables.insert(0, self._grid_table())
        if self.compared:
            rows = tuple(
                (
                    name,
                    f"{other.time_s * 1e3:.3f}",
                    f"{other.throughput_per_s:,.0f}",
                    f"{other.time_s / self.time_s:.2f}",
                )
                for name, other in self.compared.items()
            )
            tables.append(Table(("compared", "ms", "samples/s", "times"), rows, right=(1, 2, 3)))
        if self.mappings is not None:
            tables += _mapped_tables(self.mappings)
        return tables

    def _grid_table(self) -> Table:
        """The least cost of each scheduler with each partitioner, whatever the memory planner and mapper."""
        cheapest: dict[tuple[str, str], float | None] = {}
        for tried in self.tried:
            if tried.planners is not None:
                split = "split-sums, " if tried.planners.splits_sums else ""
                key = f"{split}{tried.planners.schedule}", tried.planners.partition
                costs = [c for c in (cheapest.get(key), tried.cost) if c is not None]
                cheapest[key] = min(costs, default=None)
        partitions = tuple(dict.fromkeys(partition for _, partition in cheapest))

        def cell(schedule: str, partition: str) -> str:
            cost = cheapest.get((schedule, partition))
            return "-" if cost is None else f"{cost:,.0f}"

        rows = tuple(
            (schedule, *(cell(schedule, partition) for partition in partitions))
            for schedule in dict.fromkeys(schedule for schedule, _ in cheapest)
        )
        title = f"schedulers with partitioners: {self.objective} in {self.objective_unit}"
        return Table(("", *partitions), rows, title, tuple(range(1, len(partitions) + 1)))

    def lines(self) -> Sequence[str]:
        """What was tried and checked."""
        lines = []
        if self.tried:
            untried = f"; the budget left {self.num_untried} untried" if self.num_untried else ""
            plans = counted(self.num_simulated, "different plan")
            lines.append(f"{counted(len(self.tried), 'recipe')} tried, {plans} simulated{untried}")
        if self.is_grid:
            whys = {tried.recipe: tried.why for tried in self.tried if tried.cost is None}
            lines += [f"no plan of {recipe}: {why}" for recipe, why in whys.items()]
        if self.optimal_among is not None:
            lines.append(f"optimal among {self.optimal_among}")
        for bound in self.bounds or ():
            if str(bound.space) != self.optimal_among:
                least = f"{bound.value:,.0f} {self.objective_unit}"
                lines.append(f"at least {least}: {bound.space}")
        if self.values_checked:
            lowered = any(kept.file != kept.stored for kept in self.element_types)
            types = ", in the file's types, without the rounding of those they are kept as" if lowered else ""
            lines.append(f"values: computed buffer by buffer, equal to the network's{types}")
        return lines

    def save_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write what every unit does when, as a Chrome trace, which Perfetto shows."""
        from tilewright.report.simulation import chrome_trace

        return _written(path, json_text(json.dumps(chrome_trace(self.code.timeline()))))

    def save_page(self, path: str | os.PathLike[str]) -> Path:
        """Draw what buffers hold and what units do over time, as an HTML file."""
        from tilewright.report.decisions import decision_parts, planner_parts
        from tilewright.report.simulation import cost_rows
        from tilewright.report.timeline import run_page

        plan = f"{self.recipe}, {self._samples()}"
        said = [("plan", plan), *(row for row in cost_rows(self) if row[0] != "busy")]  # units say it
        program = self.code.program
        tried = [(t.planners, t.cost) for t in self.tried if t.planners is not None and t.cost is not None]
        more = decision_parts(program.graph, self.decisions)
        more += planner_parts(program.recipe, tried, self.objective_unit)
        return _written(path, run_page(self.code.timeline(), self, said, more))

    def _samples(self) -> str:
        """What each cluster does at a time."""
        samples = counted(self.samples_per_cluster, "sample")
        return f"{samples} for each of {counted(self.num_clusters, 'cluster')}"

    def _plan_table(self) -> Table:
        rows = tuple(
            (
                str(number),
                str(len(s.nodes)),
                (" x ".join(f"{factor} on axis {dim}" for dim, factor in s.cuts) or "1")
                + (", rows kept" if s.keeps_rows else ""),
                " ".join("x".join(map(str, shape)) for shape in s.instance_shapes),
                "x".join(map(str, s.binding)),
            )
            for number, s in enumerate(self.subgraphs)
        )
        heads = ("subgraph", "operators", "instances", "an instance makes", "cores")
        title = f"{self._samples()}, {self.recipe}"
        return Table(heads, rows, title, (1,))

    def _cost_table(self) -> Table:
        from tilewright.report.simulation import cost_rows

        time, *rest = cost_rows(self)
        buffers = ", ".join(f"{count} in {level}" for level, count in self.buffers.items())
        layers = sorted(self.energy_by_layer_j.items(), key=lambda item: -item[1])[:_MOST_LAYERS]
        most = ", ".join(f"{name} {100 * j / (self.energy_j or 1.0):.0f} %" for name, j in layers)
        place = next((i for i, row in enumerate(rest, 1) if row[0] == "of it"), 0)
        rows = (
            (time[0], f"{time[1]}, {self.throughput_per_s:,.0f} samples/s"),
            *rest[:place],
            *((("most by", most),) if place else ()),
            *rest[place:],
            ("types", self._types_text()),
            ("buffers", f"{buffers}; {format_bytes(self.spilled_bytes)} spilled"),
        )
        if self.resident_bytes:
            kept = f"{format_bytes(self.resident_bytes)} stay on the chip from batch to batch"
            rows = (*rows, ("weights", kept))
        return Table(("", ""), rows)

    def _types_text(self) -> str:
        units = (f"{unit} in {', '.join(dtypes)}" for unit, dtypes in self.computed_in.items())
        return "; ".join((", ".join(map(str, self.element_types)), *units))

    def __repr__(self) -> str:
        return (
            f"SimulationResult({self.machine!r}, {self.network!r}, {self.time_s * 1e3:.3f} ms, "
            f"at least {self.lower_bound_s * 1e3:.3f} ms, {self.throughput_per_s:,.0f} samples/s)"
        )


@checked
def simulate(
    model: Model | Source,
    target: str | Path | TargetRef = DEFAULT_MACHINE,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> SimulationResult:
    """Plan a network for an accelerator with buffers that software fills, and simulate a batch.

    `settings` are fields of `SimulationRequest`. Every figure of the result is an estimate from the machine's
    numbers.

    Raises:
        UsageError: a target that is no described machine, or a setting that makes no sense.
        MachineError: a machine that has no buffers of cores, or no rate for what it has to do.
        InfeasibleMapping: the network does not fit the machine.
        NumericMismatch: with `check`, values differ from the network's.
    """
    require_fields(SimulationRequest, settings)
    return answer(SimulationRequest(model=model, target=target, **settings), progress)


def answer(request: SimulationRequest, progress: Progress | None = None) -> SimulationResult:
    """What a request asks for; as `tw.simulate`."""
    return Simulation(request, progress or (lambda *_: None)).result()


class Simulation:
    """One request on its way to its result; a `machine` stands for the one that the target names."""

    def __init__(
        self, request: SimulationRequest, progress: Progress, machine: Machine | None = None
    ) -> None:
        assert isinstance(request.target, TargetRef), "what the request makes of a text"
        target = find_target(request.target, machine)
        if not isinstance(target, SimulatingTarget):
            raise UsageError("simulate: takes a machine (stcp920, a YAML file), not a target that runs.")
        self.request, self.progress, self.target, self.machine = request, progress, target, machine
        self.named = target.named_plans(request.target)
        self.options = request.options(self.named)
        self.num_clusters = target.machine.num_clusters
        self.model = BatchedModel.of(
            request.model, request.fixed_shapes, "" if request.batch is None else batch_text(request.batch)
        )

    def result(self) -> SimulationResult:
        """Everything that is asked for."""
        request, model = self.request, self.model
        wanted = wanted_batch(request.batch)
        throughputs: list[tuple[int, float]] = []
        asked_runs: tuple[Run, ...] = ()
        is_single = wanted is None or isinstance(wanted, int)
        if wanted is None or isinstance(wanted, int):
            graph = model.graph(wanted)
        else:
            limit_s = latency_limit_s(request.max_latency_ms, wanted)
            batches = Batches(model, self.target, lambda g: self.plan(g).code.cost.time_s, self.progress)
            throughputs = batches.throughputs(limit_s)
            most = max(throughputs, key=lambda row: row[1])[0]
            asked_runs = (
                () if wanted == "auto" else runs(wanted, most, batches.seconds, limit_s, self.num_clusters)
            )
            graph = batches.graph(most)
        samples = wanted if isinstance(wanted, int) else model.samples(graph)
        chosen = self.plan(graph, is_interruptible=is_single)
        if chosen.is_interrupted:
            request = replace(request, compare=False, mappings=False, check=False)
        compared = {}
        for number, (name, options) in enumerate(self.named.items() if request.compare else ()):
            self.progress(name, number, len(self.named))
            compared[name] = SimulatedRecipe(
                **self.plan(graph, options, name).figures(samples, self.num_clusters)
            )
        mappings = None
        if request.mappings:
            self.progress("mapping sums of products alone", 0, 1)
            mappings = chosen.code.mapped_costs()
        if request.check:
            self.progress("computing values", 0, 1)
            _check(chosen.code)
        is_time = request.objective == "latency"
        planned, quality = chosen.planned, chosen.planned.program.schedule.quality
        return SimulationResult(
            **chosen.figures(samples, self.num_clusters),
            machine=self.target.machine.name,
            network=graph.name,
            samples_per_cluster=samples,
            batches=tuple(TriedBatch(n, per_s) for n, per_s in throughputs),
            runs=asked_runs,
            tried=tuple(
                TriedRecipe(
                    a.what,
                    a.cost * 1e-9 if a.cost is not None and is_time else None,
                    a.cost,
                    a.error,
                    a.recipe,
                )
                for a in planned.attempts
            ),
            objective=request.objective,
            objective_unit=UNITS[request.objective],
            num_simulated=planned.num_simulated,
            num_untried=planned.num_untried,
            is_interrupted=chosen.is_interrupted,
            decisions=planned.decisions,
            compared=compared,
            values_checked=request.check,
            bounds=quality.bounds if request.recipe == JOINT else None,
            optimal_among=quality.among if request.recipe == JOINT else None,
            is_grid=request.recipe == GRID,
            mappings=mappings,
            num_clusters=self.num_clusters,
            code=chosen.code,
        )

    def plan(
        self, graph: Graph, options: Options | None = None, name: str = "", *, is_interruptible: bool = False
    ) -> SimulatedPlanning:
        """The plan that options ask for, under a name or that of its recipe; `is_interruptible`: an interrupt
        ends the search for a better one."""
        meter = self.request.portfolio.start(is_interruptible=is_interruptible)
        with ending_with(meter):
            return self._planned(graph, options, name, meter)

    def _planned(self, graph: Graph, options: Options | None, name: str, meter: Meter) -> SimulatedPlanning:
        asked = options or self.options
        if options is None and self.request.recipe in self.named:
            name = str(self.request.recipe)
        clock = PhaseClock(None, self.progress)
        prices = None
        if self.request.workers is not None:
            prices = TaskSettings(self.request.workers, self.request.journal)
        target = find_target(asked.target, self.machine)
        planned = plan_optimised(graph, asked, clock, target=target, portfolio=meter, prices=prices)
        code = planned.backend.generate(planned.program)
        assert isinstance(code, SimulatedCode), "that is what simulating targets make"
        priced = [a for a in planned.attempts if a.cost is not None]
        best = min(priced, key=lambda a: a.cost or 0.0, default=None)
        name = name or (str(planned.program.recipe) if best is None else best.what)
        return SimulatedPlanning(name, code, planned, meter.is_interrupted)


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPlanning:
    """A simulated plan, how it is called, and what it was compared with."""

    name: str
    code: SimulatedCode
    planned: Planned
    is_interrupted: bool

    def figures(self, samples: int, num_clusters: int) -> dict[str, Any]:
        """The fields of `SimulatedRecipe`."""
        network = self.code.network()
        return {
            **{f.name: getattr(network, f.name) for f in dataclasses.fields(network)},
            "recipe": self.name,
            "throughput_per_s": samples * num_clusters / network.time_s,
        }


def _check(code: SimulatedCode) -> None:
    """Hold the plan's values against the network's.

    Raises:
        NumericMismatch: one differs.
    """
    from tilewright.report.comparison import Tolerance, first_difference
    from tilewright.report.simulation import compare_values

    worst = first_difference(compare_values(code, Tolerance()))
    if worst is not None:
        raise NumericMismatch(
            f"output {worst.name!r} of the plan differs from the network's by up to "
            f"{worst.max_difference:.3g}, where {worst.allowed:.3g} is allowed."
        )


def _mapped_tables(costs: MappedCosts) -> tuple[Table, Table]:
    """Levels and units, simulated beside mapped; then what makes the difference."""

    def energy(value_j: float | None) -> str:
        return "" if value_j is None else f"{value_j * 1e6:,.2f}"

    def time(value_s: float | None) -> str:
        return "" if value_s is None else f"{value_s * 1e6:,.2f}"

    rows = [
        (x.level, energy(x.mapped_j), energy(x.simulated_j), time(x.mapped_s), time(x.simulated_s))
        for x in costs.levels
    ]
    total = costs.mapped_j, costs.simulated_j, costs.mapped_s, costs.simulated_s
    rows.append(("all", energy(total[0]), energy(total[1]), time(total[2]), time(total[3])))
    title = f"{costs.num_products} sums of products, {costs.num_whole} of them run their whole mapping"
    heads = ("level", "mapped uJ", "simulated uJ", "mapped us", "simulated us")
    why = tuple((x.what, energy(x.energy_j), time(x.time_s)) for x in costs.differences)
    return (
        Table(heads, tuple(rows), title, (1, 2, 3, 4)),
        Table(("what a mapping alone does not have", "uJ", "us"), why, "", (1, 2)),
    )


def _written(path: str | os.PathLike[str], text: str) -> Path:
    written = Path(path)
    write_output(written, text.encode())
    return written
