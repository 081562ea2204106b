"""`tilewright simulate`: a whole network on a described accelerator."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import FILES, MODEL, SHAPES, add_verb, flag
from tilewright.cli.output import JSON_OPTION, print_document, print_result, progress, say
from tilewright.families import FAMILIES
from tilewright.options import PLANS, SUBJECT


def _names(family: str) -> str:
    """The members of a family, for the help of a flag that takes one with its options."""
    return f"{', '.join(FAMILIES[family].built_in_names())}; see `tilewright planners`"


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "simulate", simulate, panel)


def simulate(
    model: Path = MODEL,
    target: str = flag(
        "target", default="stcp920", about="A machine, see `tilewright targets`: a name, or a YAML file."
    ),
    dtype: str | None = typer.Option(
        None,
        "--dtype",
        help="What floating-point numbers are lowered to: float32, float16, bfloat16, int16, int8; default: "
        "what the machine multiplies, the widest in place of other types.",
        rich_help_panel=SUBJECT,
    ),
    recipe: str | None = typer.Option(
        None,
        "--recipe",
        help="How to plan: best (of a portfolio; the default), search (from there on), graphturbo, tvm, "
        "astitch, variant-1 to variant-4; with -overlapped behind all but graphturbo and variant-4.",
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
        help="How many recipes of the portfolio to try, or for how long: 20trials, 60s; the paper's own "
        "first. With --recipe search: how many plans beyond the portfolio (default: 170trials), or for how "
        "long both.",
        rich_help_panel=PLANS,
    ),
    objective: str = typer.Option(
        "latency",
        "--objective",
        help="What the best plan has least of: latency, energy, or their product edp.",
        rich_help_panel=PLANS,
    ),
    shapes: str | None = SHAPES,
    batch: str | None = typer.Option(
        None,
        "--batch",
        help="Samples for each cluster, the open first axis of inputs (0 in --shapes); auto: the power of "
        "two with the most samples per second; several numbers (6,12,24): how to run each of them. With auto "
        "and several, the plan that is shown, and that --check, --trace, --html and --compare are about, is "
        "the best batch's.",
        rich_help_panel=PLANS,
    ),
    max_latency_ms: float | None = typer.Option(
        None,
        "--max-latency",
        help="With --batch auto or several: no batch and no run that takes longer, in milliseconds.",
        rich_help_panel=PLANS,
    ),
    mapper: str | None = typer.Option(
        None,
        "--mapper",
        help="Who tiles layers whose operands do not fit the cores' buffers and are read again: exact (the "
        "default), cosa, paper.",
        hidden=True,
        rich_help_panel=PLANS,
    ),
    compare: bool = typer.Option(False, "--compare", help="Simulate the paper's baselines as well."),
    trace: Path | None = typer.Option(
        None,
        "--trace",
        help="Write what every unit does when, as a Chrome trace (for Perfetto).",
        rich_help_panel=FILES,
    ),
    page: Path | None = typer.Option(
        None,
        "--html",
        "--report",
        help="Draw what the buffers hold and what the units do, over time, as an HTML file.",
        rich_help_panel=FILES,
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
    from tilewright.api.simulation import SimulationRequest, answer

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
