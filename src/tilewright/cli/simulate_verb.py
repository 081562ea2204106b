"""`tilewright simulate`: a whole network on a described accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import typer

from tilewright.api.simulation_request import SimulationRequest
from tilewright.cli.flags import Flags
from tilewright.cli.interrupts import end_kept
from tilewright.cli.output import progress, say, show
from tilewright.errors import UsageError
from tilewright.requests import FILES, PLANS, flag_of


def simulate(
    flags: Flags[SimulationRequest],
    models: list[Path] = typer.Argument(
        metavar="MODEL",
        help="An ONNX file, or an artifact that `tilewright compile` wrote; several with --sweep.",
    ),
    sweep: list[str] = typer.Option(
        [],
        "--sweep",
        help="Plan every model for every combination of these, repeatable: target=v100,a100 (machines), "
        "batch=1,16, levels.GB.capacity_bytes=1MiB,2MiB (a number of the machine).",
        rich_help_panel=PLANS,
    ),
    trace: Path | None = typer.Option(
        None, "--trace", help="Write a trace of every unit for Perfetto, as .json.", rich_help_panel=FILES
    ),
    page: Path | None = typer.Option(
        None,
        "--html",
        "--report",
        help="Write an HTML page that shows what buffers hold and what units do over time; with --sweep "
        "time, energy and area against each other.",
        rich_help_panel=FILES,
    ),
    output: Path | None = typer.Option(
        None,
        "--output",
        "-o",
        help="Of a graph of the graph-scheduling contest: the solution file to write.",
        rich_help_panel=FILES,
    ),
) -> None:
    """Plan a network for an accelerator with software-managed buffers, and simulate one batch.

    A `.json` file is a graph of the MLSys 2026 graph-scheduling contest, which `--recipe joint` schedules.

    Example: `tilewright simulate resnet50.onnx -t stcp920 --compare`.
    """
    from tilewright.api.simulation import answer

    if sweep:
        if output is not None or trace is not None:
            flag = "--output" if output is not None else "--trace"
            raise UsageError(f"{flag} has no effect beside --sweep; leave one of them out.")
        _sweep(models, sweep, flags, page)
        return
    if len(models) > 1:
        raise UsageError(f"{models[1]}: one model is simulated at a time; give --sweep for several.")
    (model,) = models
    if model.suffix.lower() == ".json":
        _check_flags(flags, {"--trace": trace, "--html": page})
        _schedule(model, flags.values["recipe"], flags.values["budget"], output)
        return
    if output is not None:
        raise UsageError(
            "--output writes the solution of a contest's graph, a .json file; see --trace and --html."
        )
    request = flags.request(model=model)
    with progress(f"simulating {model.name}") as update:
        result = answer(request, update)
    if trace is not None:
        result.save_trace(trace)
    if page is not None:
        result.save_page(page)
    if show("simulate", result):
        if page is not None:
            say(f"buffers over time in {page}")
        if trace is not None:
            say(f"timeline in {trace}: open it in ui.perfetto.dev")
    _end_if_interrupted(result.is_interrupted)


def _sweep(models: list[Path], sweep: list[str], flags: Flags[SimulationRequest], page: Path | None) -> None:
    """Plan several models for several machines."""
    from tilewright.api.plan_sweep import simulate_sweep

    settings = {name: flags.values[name] for name in flags.asked}
    with progress("planning") as update:
        result = simulate_sweep(models, sweep=sweep, progress=update, **settings)
    if page is not None:
        result.save_page(page)
    if show("simulate-sweep", result) and page is not None:
        say(f"time, energy and area in {page}")
    if result.is_interrupted:
        end_kept("this is what was planned until then")


def _end_if_interrupted(is_interrupted: bool) -> None:
    """An interrupt ends the search with the best plan so far; the exit code says it."""
    if is_interrupted:
        end_kept("this is the best plan that the search had until then")


def _check_flags(flags: Flags[SimulationRequest], files: Mapping[str, Path | None]) -> None:
    """Refuse flags that a graph of the contest would pass over.

    Raises:
        UsageError: there is one; names it.
    """
    given = [name for name, path in files.items() if path is not None]
    asked = flags.asked - {"recipe", "budget"}
    given += [flag_of(SimulationRequest, f.name) for f in fields(SimulationRequest) if f.name in asked]
    if given:
        raise UsageError(f"{given[0]} has no effect on a graph of the contest; leave it out.")


def _schedule(problem: Path, recipe: str | None, budget: str | None, output: Path | None) -> None:
    """Schedule a graph of the contest."""
    from tilewright.api.contest import schedule_graph

    if recipe not in (None, "joint"):
        raise UsageError(f"recipe {recipe!r}: a contest's graph is scheduled by --recipe joint.")
    with progress(f"scheduling {problem.name}") as update:
        result = schedule_graph(problem, budget=budget, progress=update)
    if output is not None:
        result.save(output)
    if show("schedule", result) and output is not None:
        say(f"solution in {output}")
    _end_if_interrupted(result.is_interrupted)
