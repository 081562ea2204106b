"""`tilewright simulate`: a whole network on a described accelerator."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import FILES, MANNER_FLAGS, MODEL, SHAPES, add_verb, flag, is_given
from tilewright.cli.output import JSON_OPTION, print_document, print_result, progress, say
from tilewright.errors import UsageError
from tilewright.families import FAMILIES
from tilewright.options import PLANS, SUBJECT


def _names(family: str) -> str:
    """The members of a family, for the help of a flag that takes one with its options."""
    return f"{', '.join(FAMILIES[family].built_in_names())}; see `tilewright planners`"


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "simulate", simulate, panel)


def simulate(
    context: typer.Context,
    model: Path = MODEL,
    target: str = flag(
        "target", default="stcp920", about="A machine: a name from `tilewright targets`, or a YAML file."
    ),
    dtype: str | None = typer.Option(
        None,
        "--dtype",
        help="Type that floating-point numbers are converted to: float32, float16, bfloat16, int16, int8; "
        "default: types that the machine multiplies stay, others become the widest that it multiplies.",
        rich_help_panel=SUBJECT,
    ),
    recipe: str | None = typer.Option(
        None,
        "--recipe",
        help="How to plan: best (of a portfolio; the default), search (improves that plan), grid (every "
        "partitioner with every scheduler), joint (blocks of all these plans, and on from there), "
        "graphturbo, tvm, astitch, variant-1 to variant-4. All but graphturbo and variant-4 may end in "
        "-overlapped.",
        rich_help_panel=PLANS,
    ),
    partition: str | None = flag(
        "partition",
        default=None,
        about=f"Instead of a recipe: how to group operators: {_names('partition')}.",
        is_expert=True,
    ),
    schedule: str | None = flag(
        "schedule",
        default=None,
        about=f"Instead of a recipe: how to order the groups: {_names('schedule')}.",
    ),
    memory: str | None = flag(
        "memory",
        default=None,
        about=f"Instead of a recipe: how to place values in memory: {_names('memory')}.",
    ),
    budget: str | None = typer.Option(
        None,
        "--budget",
        help="How many recipes of the portfolio to try, or for how long, the paper's own first: "
        "20trials, 60s. With --recipe search: how many plans beyond the portfolio (default: 170trials), "
        "or the time for both.",
        rich_help_panel=PLANS,
    ),
    objective: str = typer.Option(
        "latency",
        "--objective",
        help="What to minimise: latency, energy, or their product edp.",
        rich_help_panel=PLANS,
    ),
    shapes: str | None = SHAPES,
    batch: str | None = typer.Option(
        None,
        "--batch",
        help="Samples for each cluster, along the open first axis of inputs (0 in --shapes); auto: the "
        "power of two with the most samples per second; several numbers (6,12,24): the fastest way to "
        "run each of them. With auto or several numbers, the tables and --check, --trace, --html and "
        "--compare show the best batch.",
        rich_help_panel=PLANS,
    ),
    max_latency_ms: float | None = typer.Option(
        None,
        "--max-latency",
        help="With --batch auto or several numbers: leave out batches and runs that take longer than "
        "this, in milliseconds.",
        rich_help_panel=PLANS,
    ),
    mapper: str | None = typer.Option(
        None,
        "--mapper",
        help="Mapper that tiles layers whose operands do not fit the cores' buffers and are read repeatedly: "
        "exact (the default), cosa, paper.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    compare: bool = typer.Option(False, "--compare", help="Simulate the paper's baselines as well."),
    trace: Path | None = typer.Option(
        None,
        "--trace",
        help="Write a trace of every unit for Perfetto, as .json.",
        rich_help_panel=FILES,
    ),
    page: Path | None = typer.Option(
        None,
        "--html",
        "--report",
        help="Write an HTML page that shows what buffers hold and what units do over time.",
        rich_help_panel=FILES,
    ),
    check: bool = typer.Option(
        False,
        "--check",
        help="Compute the values of the plan buffer by buffer, and compare them with the network's.",
    ),
    joint_tilings: bool = typer.Option(
        False,
        "--joint-tilings",
        help="Say of each subgraph what the best joint tiling of its operators would move past main memory.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    output: Path | None = typer.Option(
        None,
        "--output",
        "-o",
        help="Of a graph of the graph-scheduling contest: the solution file to write.",
        rich_help_panel=FILES,
    ),
    mappings: bool = typer.Option(
        False,
        "--mappings",
        help="Hold the plan's sums of products against their mappings alone, level by level.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Plan a network for an accelerator with software-managed buffers, and simulate one batch.

    A `.json` file is a graph of the MLSys 2026 graph-scheduling contest, which `--recipe joint` schedules.

    Example: `tilewright simulate resnet50.onnx -t stcp920 --compare`.
    """
    if model.suffix.lower() == ".json":
        _check_flags(context)
        _schedule(model, recipe, budget, output, as_json=as_json)
        return
    from tilewright.api.simulation import SimulationRequest, answer

    if output is not None:
        raise UsageError(
            "--output writes the solution of a contest's graph, a .json file; see --trace and --html."
        )
    request = SimulationRequest(
        model=model,
        target=target,
        dtype=dtype,
        recipe=recipe,
        partition=partition,
        schedule=schedule,
        memory=memory,
        budget=budget,
        objective=objective,  # type: ignore[arg-type]  # checked there
        batch=batch,
        shapes=shapes,
        max_latency_ms=max_latency_ms,
        mapper=mapper,
        compare=compare,
        check=check,
        joint_tilings=joint_tilings,
        mappings=mappings,
    )
    with progress(f"simulating {model.name}") as update:
        result = answer(request, update)
    if trace is not None:
        result.save_trace(trace)
    if page is not None:
        result.save_page(page)
    if as_json:
        print_document("simulate", result)
        return
    print_result(result)
    if page is not None:
        say(f"buffers over time in {page}")
    if trace is not None:
        say(f"timeline in {trace}: open it in ui.perfetto.dev")


_OF_CONTEST = ("model", "recipe", "budget", "output", "as_json", *MANNER_FLAGS)


def _check_flags(context: typer.Context) -> None:
    """Refuse flags that a graph of the contest would pass over.

    Raises:
        UsageError: there is one; names it.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _OF_CONTEST and is_given(context, name):
            raise UsageError(f"{parameter.opts[0]} has no effect on a graph of the contest; leave it out.")


def _schedule(
    problem: Path, recipe: str | None, budget: str | None, output: Path | None, *, as_json: bool
) -> None:
    """Schedule a graph of the contest."""
    from tilewright.api.contest import schedule_graph

    if recipe not in (None, "joint"):
        raise UsageError(f"recipe {recipe!r}: a contest's graph is scheduled by --recipe joint.")
    with progress(f"scheduling {problem.name}") as update:
        result = schedule_graph(problem, budget=budget, progress=update)
    if output is not None:
        result.save(output)
    if as_json:
        print_document("schedule", result)
        return
    print_result(result)
    if output is not None:
        say(f"solution in {output}")
