"""`tw.map_chain`: operators of a model tiled jointly, so that what passes between them stays on chip."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tilewright.api.models import Model, as_model
from tilewright.arguments import checked
from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import read_text
from tilewright.hardware.presets import find_machine, machine_path
from tilewright.planning import Budget
from tilewright.progress import Progress

if TYPE_CHECKING:
    from onnx import ModelProto

    from tilewright.ir.graph import Graph, Node
    from tilewright.mapping.chains.results import (
        ChainFigures,
        ChainPart,
        ChainsResult,
        ChainTotal,
        MappedChain,
    )

_DEFAULT_DEADLINE_S = 10.0


@checked
def map_chain(
    model: str | Path | Model | ModelProto,
    machine: Machine | str | Path = "simba-cosa-repo",
    *,
    nodes: Sequence[str] | None = None,
    objective: Literal["traffic", "latency", "energy"] = "traffic",
    recomputed: float = 1.0,
    budget: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> ChainsResult:
    """Tile chains of operators jointly, so that what passes between them stays on chip.

    `nodes` names the operators of one chain in order; left out, every chain of the model is tiled, and the
    whole model adds up. `objective` is `traffic`, words past the machine's outermost level, or `latency` or
    `energy`: then steps are mapped onto the levels further in. A value between operators stays on chip whole,
    in rows, or only while a step lasts; what is not retained is computed again, at most `recomputed` times
    the chain's multiply-accumulates. `budget` is a time, of each joint tiling that is searched, of mapping
    its steps, and of each operator alone (10s if left out). `verify`: also check joint tilings that are only
    compared, and those whose check takes long.

    Raises:
        UsageError: there is no chain, no node of a name, or a node that comes twice or too early.
        MachineError: no level on chip can hold what passes between operators.
        InfeasibleMapping: an operator does not fit the machine.
    """
    from tilewright.compiler import plan
    from tilewright.mapping.chains.results import ChainsResult, MappedChain, figures_of, part_of
    from tilewright.mapping.chains.runs import runs_of
    from tilewright.mapping.chains.solve import ChainSolver
    from tilewright.options import Options

    if not recomputed >= 0:
        raise UsageError(f"recomputed {recomputed}: expected a share of the multiply-accumulates, 0 or more.")
    deadline_s = _DEFAULT_DEADLINE_S if budget is None else Budget.parse(budget).deadline_s
    if deadline_s is None:
        raise UsageError(f"budget {budget!r}: expected a time such as 10s.")
    described = machine if isinstance(machine, Machine) else _found(os.fspath(machine))
    solver = ChainSolver(described, objective, recomputed=recomputed, deadline_s=deadline_s, verify=verify)
    loaded = as_model(model, shapes)
    # Attention stays several operators, whose scores may pass between them on chip.
    graph = plan(loaded.graph, Options(disabled_passes=("recognise-attention",))).program.graph
    runs = runs_of(graph) if nodes is None else [_named(graph, nodes)]
    if not runs:
        raise UsageError(f"{loaded.name}: no sums of products in a row; nothing to tile jointly.")
    leaving = frozenset(graph.outputs)
    update = progress or (lambda *_: None)
    chains = []
    for number, run in enumerate(runs):
        update(f"tiling {run[0].name}", number, len(runs))
        chains.append(MappedChain.of(solver.solve(run, leaving)))
    others: tuple[ChainPart, ...] = ()
    total = None
    if nodes is None:
        update("mapping the rest", len(runs), len(runs))
        in_chains = {node for run in runs for node in run}
        alone = [solver.alone((node,), leaving) for node in graph.nodes if node not in in_chains]
        others = tuple(part_of(segment) for segment, _ in alone)
        total = _total(
            chains, figures_of([segment for segment, _ in alone]), sum(least for _, least in alone)
        )
    return ChainsResult(
        model=loaded.name,
        machine=described.name,
        level=solver.level.name,
        objective=solver.objective,
        recomputed=recomputed,
        budget_s=deadline_s,
        chains=tuple(chains),
        others=others,
        total=total,
        description=solver.view,
    )


def _found(name: str) -> Machine:
    """The machine of a name or a file, which may be one of Timeloop's architectures."""
    from tilewright.mapping.timeloop import load_architecture, sections_of

    if name.endswith((".yaml", ".yml")) and sections_of(read_text(machine_path(name))):
        return load_architecture(name)
    return find_machine(name)


def _total(chains: Sequence[MappedChain], others: ChainFigures, bound_others: float) -> ChainTotal:
    """The chains with the operators that are in none of them."""
    from tilewright.mapping.chains.results import ChainTotal

    fused = separate = others
    for chain in chains:
        fused, separate = fused.plus(chain.figures), separate.plus(chain.separate)
    bound = bound_others + sum(chain.bound_searched for chain in chains)
    return ChainTotal(fused, separate, bound, others, bound_others)


def _named(graph: Graph, names: Sequence[str]) -> tuple[Node, ...]:
    """The nodes of these names, in this order, which must be the graph's."""
    known = {node.name: node for node in graph.nodes}
    place = {node.name: place for place, node in enumerate(graph.nodes)}
    for name in names:
        if name not in known:
            listed = ", ".join(list(known)[:8])
            raise UsageError(
                f"node {name!r}: there is none; the model has {listed}{' ...' if len(known) > 8 else ''}."
            )
    for before, name in pairwise(names):
        if place[name] <= place[before]:
            raise UsageError(
                f"node {name!r}: comes after {before!r}, but not in the model; name each node once, in the "
                "order in which they run."
            )
    if not names:
        raise UsageError("nodes: there are none; name the operators of a chain, or leave nodes out.")
    return tuple(known[name] for name in names)
