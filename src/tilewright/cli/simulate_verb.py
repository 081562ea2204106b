"""`tilewright simulate`: a whole network on a described accelerator, planned, simulated, reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli.flags import MODEL, SHAPES, add_verb, parsed_shapes
from tilewright.cli.output import JSON_OPTION, format_bytes, print_json, print_table, progress, say
from tilewright.errors import NumericMismatch, UsageError

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.ir.graph import Graph
    from tilewright.targets.npu.plan import Planned


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "simulate", simulate, panel)


def simulate(
    model: Path = MODEL,
    target: str = typer.Option("stcp920", "--target", "-t", help="A machine: a preset, or a YAML file."),
    recipe: str = typer.Option(
        "best",
        "--recipe",
        help="How to plan: best (of a portfolio), graphturbo, tvm, astitch, variant-1 to variant-4.",
    ),
    shapes: str | None = SHAPES,
    batch: str | None = typer.Option(
        None,
        "--batch",
        help="Samples for each cluster, the first axis of every input; auto: the power of two with the most "
        "samples per second.",
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
        False, "--check", help="Compute the plan's values piece by piece and hold them against the network's."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Plan a network for an accelerator with buffers that software fills, and simulate one batch.

    Example: `tilewright simulate resnet50.onnx -t stcp920 --compare`.
    """
    from tilewright.hardware.presets import find_machine
    from tilewright.report.simulation import buffer_page, chrome_trace
    from tilewright.targets.npu.plan import Planner
    from tilewright.targets.npu.portfolio import NAMED, best_plan

    if recipe != "best" and recipe not in NAMED:
        raise UsageError(f"recipe {recipe!r}: expected best, {', '.join(NAMED)}.")
    machine = find_machine(target)
    tried: Sequence[tuple[str, float | None]] = ()
    with progress(f"simulating {model.name}") as update:
        batches: list[tuple[int, float]] = []
        if batch == "auto":
            batches = _batches(model, shapes, machine, update)
            graph = _graph(model, shapes, max(batches, key=lambda found: found[1])[0])
        else:
            graph = _graph(model, shapes, _batch(batch))
        planner = Planner(graph, machine)
        if recipe == "best":
            best = best_plan(planner, update)
            planned, tried = best.planned, best.tried
        else:
            planned = planner.plan(NAMED[recipe])
        others = {}
        if compare:
            for number, (name, other) in enumerate(NAMED.items()):
                update(name, number, len(NAMED))
                others[name] = planner.plan(other)
        if check:
            update("computing values", 0, 1)
            _check(planned)
    if trace is not None:
        trace.write_text(json.dumps(chrome_trace(planned)), "utf-8")
    if page is not None:
        page.write_text(buffer_page(planned, machine), "utf-8")
    samples = _samples(graph)
    if as_json:
        print_json(
            "simulate",
            {
                "machine": machine.name,
                "network": graph.name,
                "samples_per_cluster": samples,
                **_facts(planned, machine, samples),
                "batches": [{"batch": n, "throughput_per_s": per_s} for n, per_s in batches],
                "tried": [{"recipe": name, "time_s": time_s} for name, time_s in tried],
                "compared": {name: _facts(other, machine, samples) for name, other in others.items()},
                "values_checked": check,
            },
        )
        return
    if batches:
        print_table(
            ("samples a cluster", "samples/s"),
            [(str(n), f"{per_s:,.0f}") for n, per_s in batches],
            right=(0, 1),
        )
    _print(planned, machine, samples, others)
    if check:
        say("values: computed piece by piece, equal to the network's")
    if page is not None:
        say(f"buffers over time in {page}")
    if trace is not None:
        say(f"timeline in {trace}: open it in ui.perfetto.dev")


_MOST_SAMPLES = 256


def _batch(text: str | None) -> int | None:
    """The number of samples.

    Raises:
        UsageError: the text is no number above 0.
    """
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise UsageError(f"--batch {text}: expected auto or a number of samples, at least 1.")
    return int(text)


def _batches(path: Path, shapes: str | None, machine: Machine, update: Any) -> list[tuple[int, float]]:
    """Samples per second of all clusters for powers of two, until two in a row are slower than the best.

    Raises:
        TilewrightError: not even one sample can be planned.
    """
    from tilewright.errors import InfeasibleMapping
    from tilewright.targets.npu.plan import plan

    found: list[tuple[int, float]] = []
    samples = 1
    while samples <= _MOST_SAMPLES:
        update(f"{samples} samples for each cluster", samples.bit_length() - 1, _MOST_SAMPLES.bit_length())
        try:
            planned = plan(_graph(path, shapes, samples), machine)
        except InfeasibleMapping:
            if not found:
                raise
            break
        found.append((samples, samples * machine.num_clusters / planned.simulation.time_s))
        best = max(per_s for _, per_s in found)
        if len(found) > 2 and max(per_s for _, per_s in found[-2:]) < best:
            break
        samples *= 2
    return found


def _graph(path: Path, shapes: str | None, batch: int | None) -> Graph:
    """The network after the usual passes, with its batch."""
    import tilewright as tw
    from tilewright.compiler import plan
    from tilewright.options import Options

    fixed = dict(parsed_shapes(shapes))
    if batch is not None:
        fixed |= {name: shape for name, shape in _batched(path, batch).items() if name not in fixed}
    return plan(tw.load(path, shapes=fixed).graph, Options()).program.graph


def _batched(path: Path, batch: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's inputs with another first axis.

    Raises:
        UsageError: an input has none, or other axes that are not fixed.
    """
    import onnx

    found = {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        dims = value.type.tensor_type.shape.dim
        rest = [d.dim_value for d in dims[1:]]
        if not dims or any(extent < 1 for extent in rest):
            raise UsageError(
                f"{path}: input {value.name!r} has axes that --batch does not fix; give --shapes."
            )
        found[value.name] = (batch, *rest)
    return found


def _samples(graph: Graph) -> int:
    """The first axis of the first input: what one cluster does at a time."""
    return next((v.shape[0] for v in graph.inputs if v.shape), 1)


def _check(planned: Planned) -> None:
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


def _facts(planned: Planned, machine: Machine, samples: int) -> dict[str, Any]:
    """What a plan is and costs, as documents say it."""
    from dataclasses import asdict

    from tilewright.schedule.instances import WHOLE, splits_of

    found = planned.simulation
    splits = [WHOLE] * len(planned.partition.subgraphs)
    if planned.recipe.splits:
        splits = list(splits_of(planned.partition))
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
        for subgraph, split in zip(planned.partition.subgraphs, splits, strict=True)
    ]
    energy_j = found.energy_j * machine.num_clusters
    return {
        "recipe": planned.recipe.name,
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


def _print(planned: Planned, machine: Machine, samples: int, others: dict[str, Planned]) -> None:
    found = planned.simulation
    facts = _facts(planned, machine, samples)
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
        title=f"{samples} samples for each of {machine.num_clusters} clusters, {planned.recipe.name}",
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
                    f"{other.simulation.time_s * 1e3:.3f}",
                    f"{samples * machine.num_clusters / other.simulation.time_s:,.0f}",
                    f"{other.simulation.time_s / found.time_s:.2f}",
                )
                for name, other in others.items()
            ],
            right=(1, 2, 3),
        )
