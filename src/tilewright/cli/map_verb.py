"""`tilewright map`: one operator on a described machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from tilewright.cli.flags import SHAPES, add_verb
from tilewright.cli.map_sweep import run_sweep
from tilewright.cli.map_work import Asked, solve_each, totals
from tilewright.cli.output import JSON_OPTION, print_json, print_table, progress, say
from tilewright.errors import InfeasibleMapping, UsageError

if TYPE_CHECKING:
    from tilewright.cost.objective import Objective
    from tilewright.cost.options import CostOptions
    from tilewright.hardware.machine import Machine
    from tilewright.loops.problem import Problem
    from tilewright.mapping.base import MappingSolution
    from tilewright.mapping.cases import Case


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
    target: str = typer.Option(
        "simba-cosa-repo",
        "--target",
        "-t",
        help="A machine: a preset, or a YAML file, also one of Timeloop's architectures.",
    ),
    more: list[Path] = typer.Option(
        None,
        "--with",
        metavar="FILE",
        help="More of a Timeloop architecture: constraints or a mapping (what passes by a memory), an ERT "
        "(energies). May be repeated.",
    ),
    mapper: str = typer.Option(
        "exact", "--mapper", help="How to search: cosa, cosa-paper, exact, hybrid, random."
    ),
    objective: str = typer.Option("latency", "--objective", help="What to minimise: latency, energy, edp."),
    budget: str | None = typer.Option(
        None,
        "--budget",
        help="For each layer: a time such as 10s; of hybrid and random also how many mappings they look at, "
        "such as 5000trials.",
    ),
    evaluate: Path | None = typer.Option(
        None,
        "--evaluate",
        help="Count given mappings instead: a JSON file of cases, or a Timeloop mapping of a problem LAYER.",
    ),
    export_timeloop: Path | None = typer.Option(
        None,
        "--export-timeloop",
        metavar="DIR",
        help="Also write arch.yaml, problem.yaml and map.yaml for timeloop-model; of several layers into a "
        "folder each.",
    ),
    link_transfers: bool = typer.Option(
        False,
        "--link-transfers/--no-link-transfers",
        help="Whether neighbours of an array may pass words on to each other.",
    ),
    skip_pixels: bool = typer.Option(
        False, "--skip-pixels", help="Do not count pixels that a stride jumps over (Timeloop counts them)."
    ),
    double_buffered: bool = typer.Option(
        False, "--double-buffered", help="Half of every buffer holds the tile in use, half the next one."
    ),
    noc: bool = typer.Option(
        False, "--noc", help="Also simulate the mappings on the machine's network, cycle by cycle."
    ),
    shapes: str | None = SHAPES,
    sweep: list[str] = typer.Option(
        None,
        "--sweep",
        help="Map onto variants of the machine: levels.GlobalBuffer.capacity_bytes=64KiB,128KiB. Each "
        "combination is mapped if there are several.",
    ),
    plot: Path | None = typer.Option(
        None, "--plot", help="With --sweep: draw time against energy, as an HTML file."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Find an operator's loops for each level of a machine's memory, their cost and what none can beat.

    Of a model, every sum of products is mapped, equal ones once; the other operators are counted as streams.
    Example: `tilewright map 3_14_256_256_1 -t simba-cosa-repo --objective energy`.
    """
    from tilewright.cli.map_gpu import launch_on, launch_to_json, mapped_onto, print_launch
    from tilewright.cli.map_noc import noc_to_json, on_network, print_noc
    from tilewright.cli.map_timeloop import cases_of, export, machine_of
    from tilewright.cost.options import CostOptions

    _check_flags(context)
    machine, onto = mapped_onto(machine_of(target, more or (), evaluate, work or ()))
    if export_timeloop is not None and machine.threads is not None:
        raise UsageError(
            f"--export-timeloop: Timeloop's files cannot say what blocks of threads on {machine.name} share; "
            "give a machine without threads."
        )
    if noc and machine.threads is not None:
        raise UsageError(
            f"--noc: blocks of threads on {machine.name} have no mesh of elements to simulate; give a "
            "machine without threads."
        )
    cost_options = CostOptions(link_transfers, skip_pixels, double_buffered)
    if evaluate is not None:
        cases = cases_of(evaluate, work or (), machine)
        if export_timeloop is not None:
            export(export_timeloop, machine, ((case.problem, case.mapping) for case in cases))
        _evaluate(cases, evaluate, machine, cost_options, noc, as_json)
        return
    if sweep:
        run_sweep(
            sweep,
            work or (),
            machine,
            mapper,
            checked_objective(objective),
            cost_options,
            budget,
            shapes,
            plot,
            as_json,
        )
        return
    if not work:
        raise UsageError("nothing to map; give a layer such as 3_14_256_256_1, or --evaluate FILE.")
    asked = Asked.of(work, shapes)
    problems = asked.problems
    with progress(f"mapping {len(problems)} layers") as update:
        solutions = solve_each(
            problems, machine, mapper, checked_objective(objective), cost_options, budget, update
        )
    if export_timeloop is not None:
        distinct = {id(s): (item.problem, s) for item, s in zip(asked.mapped, solutions, strict=True)}
        export(export_timeloop, machine, ((problem, s.mapping) for problem, s in distinct.values()))
    mappings = [s.mapping for s in solutions]
    networked = on_network(list(zip(problems, mappings, strict=True)), machine) if noc else []
    launches = [launch_on(p, machine, m, cost_options) for p, m in zip(problems, mappings, strict=True)]
    total = totals(asked, solutions, machine)
    if as_json:
        layers = [
            {**layer_to_json(item.problem, s), "operator": item.operator, "block": launch_to_json(launch)}
            for item, s, launch in zip(asked.mapped, solutions, launches, strict=True)
        ]
        for one, result in zip(layers, networked, strict=False):
            one["noc"] = noc_to_json(result)
        facts = {
            "machine": machine.name,
            "mapped_onto": onto,
            "mapper": mapper,
            "objective": objective,
        }
        streamed = [
            {
                "name": layer.node,
                "operator": layer.op_type,
                "cycles": cost.cycles,
                "energy_pJ": cost.energy_pj,
            }
            for layer, cost in zip(asked.streamed, asked.streams(machine), strict=True)
        ]
        print_json("map", {**facts, "layers": layers, "streamed": streamed, "total": total})
        return
    _print(asked, solutions, machine, total)
    if noc:
        print_noc([problem.name for problem in problems], networked, machine)
    for launch in launches if len(launches) == 1 else ():
        if launch is not None:
            print_launch(launch)
    if onto:
        say(f"mapped onto {onto}")


_WITHOUT_EFFECT = {
    "evaluate": ("mapper", "objective", "budget", "shapes", "sweep", "plot"),
    "sweep": ("export_timeloop", "noc"),
}
"""Flags that ask for what nothing does beside another one."""


def _check_flags(context: typer.Context) -> None:
    """Refuse flags that would be passed over.

    Raises:
        UsageError: two flags that do not go together; names both.
    """
    # A list that was not given is empty, not None.
    given = {name for name, value in context.params.items() if value and _is_given(context, name)}
    for main, others in _WITHOUT_EFFECT.items():
        for other in others:
            if main in given and other in given:
                raise UsageError(f"{_flag(other)} has no effect beside {_flag(main)}; leave one of them out.")
    if "plot" in given and "sweep" not in given:
        raise UsageError("--plot draws what --sweep finds; give --sweep, too.")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def checked_objective(name: str) -> Objective:
    """An objective by its name.

    Raises:
        UsageError: there is none of that name.
    """
    from tilewright.cost.objective import Objective

    known = get_args(Objective)
    if name not in known:
        raise UsageError(f"objective {name!r}: expected {', '.join(known)}.")
    return name  # type: ignore[return-value]  # it is one of them


def layer_to_json(problem: Problem, solution: MappingSolution) -> dict[str, Any]:
    """One layer of the report."""
    from tilewright.mapping.cases import cost_to_json, mapping_to_json, problem_to_json

    cost = solution.cost
    return {
        "name": problem.name,
        **problem_to_json(problem),
        "mapping": mapping_to_json(solution.mapping),
        "cycles": cost.cycles,
        "compute_cycles": cost.compute_cycles,
        "energy_pJ": cost.energy_pj,
        "edp_pJ_cycles": cost.edp,
        "utilization": cost.utilization,
        "padding": solution.mapping.padding(problem),
        "bound_cycles": solution.bound_cycles,
        "bound_energy_pJ": solution.bound_energy_pj,
        "gap": None if solution.quality.bound <= 0 else solution.quality.gap,
        "status": str(solution.quality.status),
        "seconds": solution.seconds,
        "planner": solution.provenance.planner,
        "note": solution.provenance.note,
        "levels": cost_to_json(problem, cost)["levels"],
    }


def _evaluate(
    cases: Sequence[Case], path: Path, machine: Machine, cost_options: CostOptions, noc: bool, as_json: bool
) -> None:
    from tilewright.cli.map_gpu import evaluated
    from tilewright.cli.map_noc import noc_to_json, on_network, print_noc
    from tilewright.mapping.cases import cost_to_json

    answers: list[dict[str, Any]] = []
    legal: list[Case] = []
    with progress(f"evaluating {path.name}") as update:
        for number, case in enumerate(cases):
            update(case.id, number, len(cases))
            try:
                cost = evaluated(case.problem, machine, case.mapping, cost_options)
            except (InfeasibleMapping, UsageError) as error:
                answers.append({"id": case.id, "error": str(error), "summary": None, "levels": {}})
                continue
            answers.append({"id": case.id, "error": None, **cost_to_json(case.problem, cost)})
            legal.append(case)
    networked = on_network([(case.problem, case.mapping) for case in legal], machine) if noc else []
    counted = [answer for answer in answers if answer["error"] is None]
    for answer, result in zip(counted, networked, strict=False):
        answer["noc"] = noc_to_json(result)
    if as_json:
        print_json(
            "map-evaluate",
            {"machine": machine.name, "link_transfers": cost_options.link_transfers, "cases": answers},
        )
        return
    print_table(
        ("case", "cycles", "energy", "utilisation", ""),
        [
            (answer["id"], "-", "-", "-", answer["error"])
            if answer["summary"] is None
            else (
                answer["id"],
                f"{answer['summary']['cycles']:,}",
                f"{answer['summary']['energy_uJ']:,.2f} µJ",
                f"{100 * answer['summary']['utilization']:.1f} %",
                "",
            )
            for answer in answers
        ],
        right=(1, 2, 3),
    )
    if noc:
        print_noc([case.id for case in legal], networked, machine)


def _print(
    asked: Asked, solutions: Sequence[MappingSolution], machine: Machine, total: dict[str, Any]
) -> None:
    rows: dict[int, list[Any]] = {}
    counts = Counter(map(id, solutions))
    for item, s in zip(asked.mapped, solutions, strict=True):
        rows.setdefault(
            id(s),
            [
                item.problem.name,
                f"{counts[id(s)]}",
                f"{s.cost.cycles:,}",
                f"{s.bound_cycles:,}",
                f"{s.cost.energy_pj / 1e6:,.2f} µJ",
                f"{s.bound_energy_pj / 1e6:,.2f} µJ",
                f"{100 * s.quality.gap:.1f} %",
                f"{100 * s.cost.utilization:.0f} %",
                f"{100 * s.mapping.padding(item.problem):.0f} %",
                f"{s.seconds:.2f} s",
            ],
        )
    print_table(
        ("layer", "times", "cycles", "at least", "energy", "at least", "gap", "used", "padding", "time"),
        list(rows.values()),
        title=f"{machine.name}, by {solutions[0].provenance.planner}",
        right=tuple(range(1, 10)),
    )
    if len(solutions) == 1:
        _print_nest(solutions[0])
        return
    say(
        f"all {len(solutions)}: {total['cycles']:,} cycles, at least {total['bound_cycles']:,}; "
        f"{total['energy_pJ'] / 1e6:,.2f} µJ, at least {total['bound_energy_pJ'] / 1e6:,.2f} µJ"
    )
    if asked.streamed:
        say(
            f"{len(asked.streamed)} other operators, unfused and streamed once: at least "
            f"{total['streamed_cycles']:,} cycles, {total['streamed_energy_pJ'] / 1e6:,.2f} µJ more"
        )


def _print_nest(solution: MappingSolution) -> None:
    """The loops as nested lines, the outermost first."""
    depth = 0
    for loops in solution.mapping.levels:
        say(f"{'  ' * depth}{loops.level}:")
        for loop in loops.temporal:
            if loop.factor > 1:
                depth += 1
                say(f"{'  ' * depth}for {loop.dim} in {loop.factor}")
        spatial = [loop for loop in loops.spatial if loop.factor > 1]
        if spatial:
            depth += 1
            side = ", ".join(f"{loop.dim} in {loop.factor}" for loop in spatial)
            say(f"{'  ' * depth}side by side {side}")
