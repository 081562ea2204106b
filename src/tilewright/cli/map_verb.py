"""`tilewright map`: one operator on a described machine."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import FILES, SHAPES, add_verb, flag, is_given
from tilewright.cli.output import JSON_OPTION, print_document, print_result, progress, say
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.families import MAPPERS
from tilewright.options import PLANS, SUBJECT


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "map", map_, panel)


def map_(
    context: typer.Context,
    work: list[str] = typer.Argument(
        None,
        metavar="[LAYER]...",
        help="Layers: R_P_C_K_stride such as 3_14_256_256_1, dims such as K=64,C=3,P=112,Q=112,R=7,S=7; a "
        "model such as net.onnx, or a node of it as net.onnx:NODE; a Timeloop problem such as layer.yaml.",
    ),
    target: str = flag(
        "target",
        default="simba-cosa-repo",
        about="A machine: a name from `tilewright targets`, a YAML file, or an architecture of Timeloop.",
    ),
    more: list[Path] = typer.Option(
        None,
        "--with",
        metavar="FILE",
        help="More files of a Timeloop architecture: constraints or a mapping (what bypasses a memory), "
        "an ERT (energies). Repeatable.",
        rich_help_panel=SUBJECT,
    ),
    mapper: str = typer.Option(
        "exact",
        "--mapper",
        help=f"How to search: {', '.join(MAPPERS.built_in_names())}; see `tilewright planners`.",
        rich_help_panel=PLANS,
    ),
    objective: str = typer.Option(
        "latency", "--objective", help="What to minimise: latency, energy, edp.", rich_help_panel=PLANS
    ),
    budget: str | None = typer.Option(
        None,
        "--budget",
        help="For each layer: a time, 10s if left out; for the mappers hybrid and random also a number of "
        "mappings, such as 5000trials.",
        rich_help_panel=PLANS,
    ),
    evaluate: Path | None = typer.Option(
        None,
        "--evaluate",
        help="Instead of searching, evaluate given mappings: a JSON file of cases, or a Timeloop mapping "
        "for a problem LAYER.",
        rich_help_panel=PLANS,
    ),
    export_timeloop: Path | None = typer.Option(
        None,
        "--export-timeloop",
        metavar="DIR",
        help="Also write arch.yaml, problem.yaml and map.yaml for timeloop-model; several layers get a "
        "folder each.",
        rich_help_panel=FILES,
    ),
    constrain: list[str] = typer.Option(
        None,
        "--constrain",
        metavar="TEXT",
        help="What every mapping must satisfy: weight-stationary, output-stationary@GlobalBuffer, "
        "row-stationary@GlobalBuffer, DRAM.spatial.C=8, DRAM.spatial=C,K, GlobalBuffer.tile.P=14, "
        "DRAM.order=K,C,*, DRAM.without=R. Repeatable; only for the mapper exact.",
        rich_help_panel=PLANS,
    ),
    ignore_constraints: bool = typer.Option(
        False,
        "--ignore-constraints",
        help="Ignore constraints on loops in Timeloop's files; otherwise those that the mapper cannot keep "
        "are refused.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    link_transfers: bool = typer.Option(
        False,
        "--link-transfers/--no-link-transfers",
        help="Whether neighbouring instances of an array may pass words to each other.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    skip_pixels: bool = typer.Option(
        False,
        "--skip-pixels",
        help="Do not count pixels that a stride jumps over (Timeloop counts them).",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    double_buffered: bool = typer.Option(
        False,
        "--double-buffered",
        help="Half of every buffer holds the tile in use, half the next one.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    elide_first_fills: bool = typer.Option(
        False,
        "--elide-first-fills",
        help="Like Timeloop 4, count no fill of an output to which nothing has been added yet.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    multicast_per_axis: bool = typer.Option(
        False,
        "--multicast-per-axis",
        help="Let one access serve instances along one axis of an array alone, as Timeloop 4 counts meshes.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    noc: bool = typer.Option(
        False,
        "--noc",
        help="Also simulate the mappings on the machine's network, cycle by cycle.",
        rich_help_panel=PLANS,
    ),
    fuse: bool = typer.Option(
        False,
        "--fuse",
        help="In a model, tile chains of operators jointly, so that what passes between them stays on chip. "
        "The objective may then also be traffic, the default.",
        rich_help_panel=PLANS,
    ),
    verify: bool = flag(
        "verify", about="Also check mappings that are only compared, or given; answers are always checked."
    ),
    shapes: str | None = SHAPES,
    sweep: list[str] = typer.Option(
        None,
        "--sweep",
        help="Map onto variants of the machine: levels.GlobalBuffer.capacity_bytes=64KiB,128KiB. Repeatable; "
        "every combination is mapped.",
        rich_help_panel=PLANS,
    ),
    workers: str | None = typer.Option(
        None,
        "--workers",
        metavar="N|ray",
        help="With --sweep: how many processes map, or a Ray cluster: ray, or ray://HOST:10001.",
        rich_help_panel=PLANS,
    ),
    journal: Path | None = typer.Option(
        None,
        "--journal",
        metavar="FILE",
        help="With --sweep: append every answer to a file of JSON lines; answers that it already holds are "
        "not searched again.",
        rich_help_panel=FILES,
    ),
    plot: Path | None = typer.Option(
        None,
        "--plot",
        "--report",
        metavar="FILE",
        help="Draw the mappings as an HTML page; with --sweep also latency, energy, area and their Pareto "
        "front.",
        rich_help_panel=FILES,
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Find an operator's loops for each level of a machine's memory, with cost and a lower bound.

    In a model, every sum of products is mapped, equal ones once; other operators are counted as streams.
    Example: `tilewright map 3_14_256_256_1 -t simba-cosa-repo --objective energy`.
    """
    from tilewright.api.mapping import MapRequest, answer
    from tilewright.mapping.results import MapEvaluation
    from tilewright.mapping.sweep.results import MapSweep

    _check_flags(context)
    if fuse:
        given = objective if is_given(context, "objective") else "traffic"
        _print_chains(work or [], target, given, budget, shapes, verify=verify, as_json=as_json)
        return
    request = MapRequest(
        work=tuple(work or ()),
        machine=target,
        machine_files=tuple(more or ()),
        mapper=mapper,
        objective=objective,  # type: ignore[arg-type]  # checked there
        budget=budget,
        link_transfers=link_transfers,
        skips_pixels=skip_pixels,
        double_buffered=double_buffered,
        elides_first_fills=elide_first_fills,
        multicasts_per_axis=multicast_per_axis,
        shapes=shapes,
        noc=noc,
        sweep=tuple(sweep or ()),
        workers=workers,
        journal=journal,
        plot=plot,
        evaluate=evaluate,
        export_timeloop=export_timeloop,
        constraints=tuple(constrain or ()),
        ignore_constraints=ignore_constraints,
        verify=verify,
    )
    with progress("mapping") as update:
        result = answer(request, update)
    all_illegal = isinstance(result, MapEvaluation) and all(case.cost is None for case in result.cases)
    if as_json:
        kind = {MapSweep: "map-sweep", MapEvaluation: "map-evaluate"}.get(type(result), "map")
        print_document(kind, result)
    else:
        print_result(result)
    if plot is not None and not as_json:
        say(f"drawn in {plot}")
    if all_illegal:
        raise typer.Exit(InfeasibleMapping.exit_code)


def _print_chains(
    work: list[str],
    target: str,
    objective: str,
    budget: str | None,
    shapes: str | None,
    *,
    verify: bool,
    as_json: bool,
) -> None:
    """Tile the chains of the model that is given, and print what comes of it."""
    from tilewright.api.chains import map_chain
    from tilewright.options import parse_shapes

    if len(work) != 1:
        raise UsageError(f"--fuse tiles the chains of one model; {len(work)} are given.")
    if not work[0].endswith(".onnx"):
        raise UsageError(f"{work[0]}: --fuse tiles the chains of a model; give an ONNX file.")
    with progress("tiling") as update:
        result = map_chain(
            work[0],
            target,
            objective=objective,  # type: ignore[arg-type]  # checked there
            budget=budget,
            shapes=None if shapes is None else parse_shapes(shapes),
            verify=verify,
            progress=update,
        )
    if as_json:
        print_document("map-chains", result)
    else:
        print_result(result)


_WITHOUT_EFFECT = {
    "fuse": (
        "more",
        "mapper",
        "evaluate",
        "export_timeloop",
        "constrain",
        "ignore_constraints",
        "link_transfers",
        "skip_pixels",
        "double_buffered",
        "elide_first_fills",
        "multicast_per_axis",
        "noc",
        "sweep",
        "plot",
        "workers",
        "journal",
    ),
    "evaluate": (
        "mapper",
        "objective",
        "budget",
        "shapes",
        "sweep",
        "plot",
        "workers",
        "journal",
        "constrain",
    ),
    "sweep": ("export_timeloop", "noc", "verify"),
}
"""Flags that ask for what nothing does beside another one."""


def _check_flags(context: typer.Context) -> None:
    """Refuse flags that would be passed over.

    Raises:
        UsageError: two flags that do not go together; names both.
    """
    # A list that was not given is empty, not None.
    given = {name for name, value in context.params.items() if value and is_given(context, name)}
    for main, others in _WITHOUT_EFFECT.items():
        for other in others:
            if main in given and other in given:
                raise UsageError(f"{_flag(other)} has no effect beside {_flag(main)}; leave one of them out.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
