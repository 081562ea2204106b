"""`tilewright map`: one operator on a described machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from tilewright.cli.flags import add_verb
from tilewright.cli.output import JSON_OPTION, print_json, print_table, progress, say
from tilewright.errors import InfeasibleMapping, UsageError

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.mapping.base import MappingSolution, Objective, Rules
    from tilewright.mapping.problem import Problem


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "map", map_, panel)


def map_(
    work: list[str] = typer.Argument(
        None,
        metavar="[LAYER]...",
        help="Layers: R_P_C_K_stride such as 3_14_256_256_1, or dims such as K=64,C=3,P=112,Q=112,R=7,S=7.",
    ),
    target: str = typer.Option(
        "simba-cosa-repo",
        "--target",
        "-t",
        help="A machine: a preset, or a YAML file.",
    ),
    mapper: str = typer.Option(
        "exact", "--mapper", help="How to search: cosa, cosa-paper, exact, hybrid, random."
    ),
    objective: str = typer.Option("latency", "--objective", help="What to minimise: latency, energy, edp."),
    budget: str | None = typer.Option(None, "--budget", help="For each layer: 10s, 5000trials."),
    evaluate: Path | None = typer.Option(
        None, "--evaluate", help="Count given mappings instead: a JSON file of cases."
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
    as_json: bool = JSON_OPTION,
) -> None:
    """Find an operator's loops for each level of a machine's memory, their cost and what none can beat.

    Example: `tilewright map 3_14_256_256_1 -t simba-cosa-repo --objective energy`.
    """
    from tilewright.hardware.presets import find_machine
    from tilewright.mapping.base import Rules

    machine = find_machine(target)
    rules = Rules(link_transfers, skip_pixels, double_buffered)
    if evaluate is not None:
        if work:
            raise UsageError("--evaluate counts the mappings of its file; leave out the layers.")
        _evaluate(evaluate, machine, rules, as_json)
        return
    if not work:
        raise UsageError("nothing to map; give a layer such as 3_14_256_256_1, or --evaluate FILE.")
    problems = [_problem(text) for text in work]
    with progress(f"mapping {len(problems)} layers") as update:
        solutions = solve_each(problems, machine, mapper, checked_objective(objective), rules, budget, update)
    if as_json:
        layers = [layer_to_json(p, s) for p, s in zip(problems, solutions, strict=True)]
        facts = {"machine": machine.name, "mapper": mapper, "objective": objective}
        print_json("map", {**facts, "layers": layers})
        return
    _print(problems, solutions, machine)


def checked_objective(name: str) -> Objective:
    """An objective by its name.

    Raises:
        UsageError: there is none of that name.
    """
    from tilewright.mapping.base import Objective

    known = get_args(Objective)
    if name not in known:
        raise UsageError(f"objective {name!r}: expected {', '.join(known)}.")
    return name  # type: ignore[return-value]  # it is one of them


def solve_each(
    problems: Sequence[Problem],
    machine: Machine,
    mapper: str,
    objective: Objective,
    rules: Rules,
    budget: str | None,
    update: Any,
) -> list[MappingSolution]:
    """A mapping for every problem; equal ones are solved once.

    Raises:
        InfeasibleMapping: a problem has none on this machine.
    """
    from tilewright.mapping import MAPPERS
    from tilewright.mapping.base import MappingProblem
    from tilewright.mapping.bound import check_smallest_tiles
    from tilewright.planning import Budget, Infeasible

    effort = Budget() if budget is None else Budget.parse(budget)
    solver = MAPPERS.get(mapper)
    found: dict[tuple[Any, ...], MappingSolution] = {}
    solutions: list[MappingSolution] = []
    for number, problem in enumerate(problems):
        update(f"mapping {problem.name}", number, len(problems))
        key = (problem.dims, problem.operands)
        if key not in found:
            check_smallest_tiles(problem, machine)
            answer = solver.solve(MappingProblem(problem, machine, objective, rules), effort)
            if isinstance(answer, Infeasible):
                raise InfeasibleMapping(f"layer {problem.name} on {machine.name}: {answer}")
            found[key] = answer
        solutions.append(found[key])
    return solutions


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


def _problem(text: str) -> Problem:
    from tilewright.mapping.problem import dims, layer

    return dims(text) if "=" in text else layer(text)


def _evaluate(path: Path, machine: Machine, rules: Rules, as_json: bool) -> None:
    from tilewright.cost.nest_analysis import evaluate
    from tilewright.mapping.cases import cost_to_json, load_cases

    answers: list[dict[str, Any]] = []
    with progress(f"evaluating {path.name}") as update:
        cases = load_cases(path)
        for number, case in enumerate(cases):
            update(case.id, number, len(cases))
            try:
                cost = evaluate(case.problem, machine, case.mapping, rules)
            except (InfeasibleMapping, UsageError) as error:
                answers.append({"id": case.id, "error": str(error), "summary": None, "levels": {}})
                continue
            answers.append({"id": case.id, "error": None, **cost_to_json(case.problem, cost)})
    if as_json:
        print_json(
            "map-evaluate",
            {"machine": machine.name, "link_transfers": rules.link_transfers, "cases": answers},
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


def _print(problems: Sequence[Problem], solutions: Sequence[MappingSolution], machine: Machine) -> None:
    print_table(
        ("layer", "cycles", "at least", "energy", "at least", "gap", "used", "padding", "time"),
        [
            (
                problem.name,
                f"{s.cost.cycles:,}",
                f"{s.bound_cycles:,}",
                f"{s.cost.energy_pj / 1e6:,.2f} µJ",
                f"{s.bound_energy_pj / 1e6:,.2f} µJ",
                f"{100 * s.quality.gap:.1f} %",
                f"{100 * s.cost.utilization:.0f} %",
                f"{100 * s.mapping.padding(problem):.0f} %",
                f"{s.seconds:.2f} s",
            )
            for problem, s in zip(problems, solutions, strict=True)
        ],
        title=f"{machine.name}, by {solutions[0].provenance.planner}",
        right=tuple(range(1, 9)),
    )
    if len(problems) == 1:
        _print_nest(solutions[0])


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
