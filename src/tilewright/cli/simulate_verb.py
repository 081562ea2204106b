"""`tilewright simulate`: a whole network on a described accelerator, planned, simulated, reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli.flags import MODEL, SHAPES, add_verb
from tilewright.cli.output import JSON_OPTION, format_bytes, print_json, print_table, progress, say
from tilewright.cli.simulate_batches import Batches, batched_model, parsed_batch, parsed_latency
from tilewright.cli.simulated import Simulated
from tilewright.errors import NumericMismatch, UsageError
from tilewright.families import FAMILIES
from tilewright.printable import json_text

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.ir.graph import Graph
    from tilewright.options import Options
    from tilewright.targets.npu.batches import Run
    from tilewright.targets.npu.plan import SimulatedPlan


def _names(family: str) -> str:
    """The members of a family, for the help of a flag that takes one with its options."""
    return f"{', '.join(FAMILIES[family].built_in_names())}; see `tilewright planners`"


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "simulate", simulate, panel)


def simulate(
    model: Path = MODEL,
    target: str = typer.Option("stcp920", "--target", "-t", help="A machine: a preset, or a YAML file."),
    recipe: str | None = typer.Option(
        None,
        "--recipe",
        help="How to plan: best (of a portfolio; the default), search (from there on), graphturbo, tvm, "
        "astitch, variant-1 to variant-4.",
    ),
    partition: str | None = typer.Option(
        None, "--partition", help=f"Instead of a recipe: how to group operators: {_names('partition')}."
    ),
    schedule: str | None = typer.Option(
        None,
        "--schedule",
        help=f"Instead of a recipe: how to order the groups: {_names('schedule')}.",
    ),
    memory: str | None = typer.Option(
        None,
        "--memory",
        help=f"Instead of a recipe: how to place values in memory: {_names('memory')}.",
    ),
    budget: str | None = typer.Option(
        None,
        "--budget",
        help="With --recipe search: how long, beyond the portfolio: 300trials, 60s; default: 170trials.",
    ),
    shapes: str | None = SHAPES,
    batch: str | None = typer.Option(
        None,
        "--batch",
        help="Samples for each cluster, the open first axis of inputs (0 in --shapes); auto: the power of "
        "two with the most samples per second; several numbers (6,12,24): how to run each of them. With auto "
        "and several, the plan that is shown, and that --check, --trace, --html and --compare are about, is "
        "the best batch's.",
    ),
    max_latency_ms: float | None = typer.Option(
        None,
        "--max-latency",
        help="With --batch auto or several: no batch and no run that takes longer, in milliseconds.",
    ),
    compare: bool = typer.Option(False, "--compare", help="Simulate the paper's baselines as well."),
    trace: Path | None = typer.Option(
        None, "--trace", help="Write what every unit does when, as a Chrome trace (for Perfetto)."
    ),
    page: Path | None = typer.Option(
        None,
        "--html",
        help="Draw how full the buffers are over time, and how busy units are, as an HTML file.",
    ),
    check: bool = typer.Option(
        False,
        "--check",
        help="Compute the plan's values buffer by buffer and hold them against the network's.",
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Plan a network for an accelerator with buffers that software fills, and simulate one batch.

    Example: `tilewright simulate resnet50.onnx -t stcp920 --compare`.
    """
    from dataclasses import replace

    from tilewright.compiler import plan_optimised
    from tilewright.options import AUTO, Options
    from tilewright.planning import Budget
    from tilewright.progress import PhaseClock
    from tilewright.report.simulation import buffer_page, chrome_trace
    from tilewright.targets import machine_of
    from tilewright.targets.npu.batches import runs
    from tilewright.targets.npu.recipes import NAMED
    from tilewright.targets.npu.search import DEFAULT_BUDGET

    named = {"partition": partition, "schedule": schedule, "memory": memory}
    by_name = {key: name for key, name in named.items() if name is not None}
    if by_name and recipe is not None:
        raise UsageError(
            f"--recipe {recipe}: says how to cut, order and spill; leave it out, or --partition, --schedule "
            "and --memory."
        )
    if budget is not None and recipe != "search":
        chosen = {"recipe": recipe, "partition": partition, "schedule": schedule, "memory": memory}
        flags = ", ".join(f"--{flag} {name}" for flag, name in chosen.items() if name is not None)
        raise UsageError(
            f"--budget {budget}: nothing is searched{f' with {flags}' if flags else ''}; leave it out, or "
            "take --recipe search instead."
        )
    recipe = "best" if recipe is None else recipe
    if recipe not in ("best", "search", *NAMED):
        raise UsageError(f"recipe {recipe!r}: expected best, search, {', '.join(NAMED)}.")
    effort = DEFAULT_BUDGET if budget is None else Budget.parse(budget)
    wanted = parsed_batch(batch)
    max_latency_s = parsed_latency(max_latency_ms, wanted)
    machine = machine_of(target)
    asked = Options(target=target, budget=effort if recipe == "search" else None)
    if recipe in NAMED:
        asked = NAMED[recipe].options(target)
    elif by_name:
        asked = replace(asked, partition=partition or AUTO, schedule=schedule or AUTO, memory=memory or AUTO)
    known = recipe if recipe in NAMED else ""
    source = batched_model(model, shapes, batch)
    with progress(f"simulating {model.name}") as update:

        def solve(graph: Graph, options: Options = asked, name: str = known) -> Simulated:
            return Simulated.of(plan_optimised(graph, options, PhaseClock(None, update)), name)

        throughputs: list[tuple[int, float]] = []
        found: tuple[Run, ...] = ()
        if wanted is None or isinstance(wanted, int):
            graph = source.graph(wanted)
        else:
            batches = Batches(source, machine, solve, update)
            throughputs = batches.throughputs(max_latency_s)
            most = max(throughputs, key=lambda row: row[1])[0]
            found = () if wanted == "auto" else runs(wanted, most, batches.seconds, max_latency_s)
            graph = batches.graph(most)
        planned = solve(graph)
        others = {}
        if compare:
            for number, (name, other) in enumerate(NAMED.items()):
                update(name, number, len(NAMED))
                others[name] = solve(graph, other.options(target), name)
        if check:
            update("computing values", 0, 1)
            _check(planned.plan)
    if trace is not None:
        trace.write_text(json_text(json.dumps(chrome_trace(planned.plan))), "utf-8")
    if page is not None:
        page.write_text(buffer_page(planned.plan, machine), "utf-8")
    samples = wanted if isinstance(wanted, int) else source.samples(graph)
    if as_json:
        print_json(
            "simulate",
            {
                "machine": machine.name,
                "network": graph.name,
                "samples_per_cluster": samples,
                **_facts(planned, machine, samples),
                "batches": [{"batch": n, "throughput_per_s": per_s} for n, per_s in throughputs],
                "runs": [
                    {
                        "samples": run.samples,
                        "buckets": run.parts,
                        "direct_s": run.direct_s,
                        "padded_s": run.padded_s,
                        "in_buckets_s": run.in_buckets_s,
                        "best": run.best,
                        "throughput_per_s": run.samples * machine.num_clusters / run.best_s,
                    }
                    for run in found
                ],
                "tried": [
                    {"recipe": a.what, "time_s": None if a.cost is None else a.cost * 1e-9}
                    for a in planned.attempts
                ],
                "num_simulated": planned.num_simulated,
                "compared": {name: _facts(other, machine, samples) for name, other in others.items()},
                "values_checked": check,
            },
        )
        return
    if throughputs:
        print_table(
            ("samples a cluster", "samples/s"),
            [(str(n), f"{per_s:,.0f}") for n, per_s in throughputs],
            right=(0, 1),
        )
    if found:
        _print_runs(found, machine)
    _print(planned, machine, samples, others)
    if planned.attempts:
        say(f"{len(planned.attempts)} recipes tried, {planned.num_simulated} different plans")
    if check:
        say("values: computed piece by piece, equal to the network's")
    if page is not None:
        say(f"buffers over time in {page}")
    if trace is not None:
        say(f"timeline in {trace}: open it in ui.perfetto.dev")


def _print_runs(found: Sequence[Run], machine: Machine) -> None:
    """Samples per second of all clusters, by how a number of samples is run."""
    from tilewright.targets.npu.batches import shown

    def rate(samples: int, seconds: float | None) -> str:
        return "-" if seconds is None else f"{samples * machine.num_clusters / seconds:,.0f}"

    print_table(
        ("samples", "direct/s", "padded/s", "in buckets/s", "buckets", "best"),
        [
            (
                str(run.samples),
                *(rate(run.samples, s) for s in (run.direct_s, run.padded_s, run.in_buckets_s)),
                shown(run.parts),
                run.best,
            )
            for run in found
        ],
        right=(0, 1, 2, 3),
    )


def _check(planned: SimulatedPlan) -> None:
    """Hold the plan's values against the network's.

    Raises:
        NumericMismatch: one differs.
    """
    from tilewright.report.comparison import Tolerance, first_difference
    from tilewright.report.simulation import compare_plan

    worst = first_difference(compare_plan(planned.scopes, Tolerance()))
    if worst is not None:
        raise NumericMismatch(
            f"output {worst.name!r} of the plan differs from the network's by up to "
            f"{worst.max_difference:.3g}, where {worst.allowed:.3g} is allowed."
        )


def _facts(simulated: Simulated, machine: Machine, samples: int) -> dict[str, Any]:
    """What a plan is and costs, as documents say it."""
    from dataclasses import asdict

    planned = simulated.plan
    found = planned.simulation
    first = {n.subgraph_id: n.id for n in reversed(planned.instances.nodes) if n.kind == "instance"}
    subgraphs = [
        {
            "nodes": [node.name for node in subgraph.nodes],
            "split_dim": split.cuts[0][0] if split.cuts else None,
            "factor": split.num_instances,
            "cuts": split.cuts,
            "output_shapes": [list(v.shape) for v in subgraph.outputs],
            "instance_shapes": [
                [stop - start for start, stop in region]
                for region in planned.instances.nodes[first[subgraph.id]].outputs.values()
            ],
            "binding": list(planned.bindings.bindings[first[subgraph.id]]),
        }
        for subgraph, split in zip(planned.partition.subgraphs, planned.instances.splits, strict=True)
    ]
    energy_j = found.energy_j * machine.num_clusters
    return {
        "recipe": simulated.name,
        "subgraphs": subgraphs,
        "order": [str(planned.instances.nodes[place]) for place in planned.order],
        "buffers": {str(scope): count for scope, count in planned.scopes.num_buffers.items()},
        "spilled_bytes": planned.scopes.spilled_bytes,
        "time_s": found.time_s,
        "throughput_per_s": samples * machine.num_clusters / found.time_s,
        "energy_j": energy_j,
        "energy_by_j": {k: v * 1e-12 * machine.num_clusters for k, v in found.energy_pj.items()},
        "energy_source": machine.energy_source or "the citations of the machine's numbers",
        "bytes": asdict(found.traffic),
        "utilization": found.utilization,
        "lower_bound_s": found.lower_bound_s,
        "bound_by": found.bound_by,
        "gap": found.gap,
        "provenance": "estimated",
    }


def _print(simulated: Simulated, machine: Machine, samples: int, others: dict[str, Simulated]) -> None:
    found = simulated.plan.simulation
    facts = _facts(simulated, machine, samples)
    print_table(
        ("subgraph", "operators", "instances", "an instance makes", "cores"),
        [
            (
                str(number),
                str(len(s["nodes"])),
                " x ".join(f"{factor} on axis {dim}" for dim, factor in s["cuts"]) or "1",
                " ".join("x".join(map(str, shape)) for shape in s["instance_shapes"]),
                "x".join(map(str, s["binding"])),
            )
            for number, s in enumerate(facts["subgraphs"])
        ],
        title=f"{samples} samples for each of {machine.num_clusters} clusters, {simulated.name}",
        right=(1,),
    )
    traffic = found.traffic
    buffers = ", ".join(f"{count} in {scope}" for scope, count in facts["buffers"].items())
    print_table(
        ("", ""),
        [
            ("time", f"{found.time_s * 1e3:.3f} ms, {facts['throughput_per_s']:,.0f} samples/s"),
            (
                "at least",
                f"{found.lower_bound_s * 1e3:.3f} ms ({found.bound_by}): {100 * found.gap:.0f} % above",
            ),
            (
                "energy",
                f"{facts['energy_j'] * 1e3:.1f} mJ, estimated ({facts['energy_source'].split(';')[0][:60]})",
            ),
            ("buffers", f"{buffers}; {format_bytes(facts['spilled_bytes'])} spilled"),
            (
                "main memory",
                f"{format_bytes(traffic.main_read)} read, {format_bytes(traffic.main_written)} written",
            ),
            ("busy", ", ".join(f"{unit} {100 * share:.0f} %" for unit, share in found.utilization.items())),
        ],
    )
    if others:
        print_table(
            ("compared", "ms", "samples/s", "times"),
            [
                (
                    name,
                    f"{other.plan.simulation.time_s * 1e3:.3f}",
                    f"{samples * machine.num_clusters / other.plan.simulation.time_s:,.0f}",
                    f"{other.plan.simulation.time_s / found.time_s:.2f}",
                )
                for name, other in others.items()
            ],
            right=(1, 2, 3),
        )
