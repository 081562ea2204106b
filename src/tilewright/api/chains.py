"""`tw.map_chain`: operators of a model tiled jointly, so that what passes between them stays on chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tilewright.api.models import Model, as_model
from tilewright.arguments import checked
from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import find_machine
from tilewright.planning import Budget
from tilewright.progress import Progress

if TYPE_CHECKING:
    from onnx import ModelProto

    from tilewright.ir.graph import Graph, Node
    from tilewright.mapping.chains.results import ChainsResult, ChainTotal, MappedChain
    from tilewright.mapping.chains.solve import ChainSolver

_DEFAULT_DEADLINE_S = 10.0


@checked
def map_chain(
    model: str | Path | Model | ModelProto,
    machine: Machine | str = "simba-cosa-repo",
    *,
    nodes: Sequence[str] | None = None,
    objective: Literal["traffic", "latency", "energy"] = "traffic",
    recomputed: float = 1.0,
    budget: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> ChainsResult:
    """Tile chains of operators jointly, so that what passes between them stays on chip.

    `nodes` names the operators of one chain in order; left out, every chain of the model is tiled, and the
    whole model adds up. `objective` is `traffic`, words past the machine's outermost level, or `latency` or
    `energy`: then steps are mapped onto the levels further in. A value between operators stays on chip whole,
    in rows, or only while a step lasts; what is not retained is computed again, at most `recomputed` times
    the chain's multiply-accumulates. `budget` is a time, of each joint tiling that is searched, of mapping
    its steps, and of each operator alone (10s if left out).

    Raises:
        UsageError: there is no chain, or no node of a name.
        MachineError: no level on chip can hold what passes between operators.
        InfeasibleMapping: an operator does not fit the machine.
    """
    from tilewright.compiler import plan
    from tilewright.mapping.chains.results import ChainsResult, MappedChain
    from tilewright.mapping.chains.runs import runs_of
    from tilewright.mapping.chains.solve import ChainSolver
    from tilewright.options import Options

    if recomputed < 0:
        raise UsageError(f"recomputed {recomputed}: expected a share of the multiply-accumulates, 0 or more.")
    described = machine if isinstance(machine, Machine) else find_machine(machine)
    loaded = as_model(model, shapes)
    # Attention stays several operators, whose scores may pass between them on chip.
    graph = plan(loaded.graph, Options(disabled_passes=("recognise-attention",))).program.graph
    runs = runs_of(graph) if nodes is None else [_named(graph, nodes)]
    if not runs:
        raise UsageError(f"{loaded.name}: no sums of products in a row; nothing to tile jointly.")
    deadline_s = _DEFAULT_DEADLINE_S if budget is None else Budget.parse(budget).deadline_s
    if deadline_s is None:
        raise UsageError(f"budget {budget!r}: expected a time such as 10s.")
    solver = ChainSolver(described, objective, recomputed=recomputed, deadline_s=deadline_s)
    leaving = frozenset(graph.outputs)
    update = progress or (lambda *_: None)
    chains = []
    for number, run in enumerate(runs):
        update(f"tiling {run[0].name}", number, len(runs))
        chains.append(MappedChain(solver.solve(run, leaving)))
    total = None
    if nodes is None:
        update("mapping the rest", len(runs), len(runs))
        total = _total(graph, runs, solver, chains)
    return ChainsResult(
        loaded.name, described.name, solver.level.name, solver.objective, tuple(chains), total, solver.view
    )


def _total(
    graph: Graph, runs: Sequence[Sequence[Node]], solver: ChainSolver, chains: Sequence[MappedChain]
) -> ChainTotal:
    """The chains with the operators that are in none of them."""
    from tilewright.mapping.chains.results import ChainTotal, figures_of

    in_chains = {node for run in runs for node in run}
    rest = figures_of([solver.alone(node) for node in graph.nodes if node not in in_chains])
    fused = separate = rest
    for chain in chains:
        fused, separate = fused.plus(chain.figures), separate.plus(chain.separate)
    return ChainTotal(fused, separate)


def _named(graph: Graph, names: Sequence[str]) -> tuple[Node, ...]:
    """The nodes of these names, in this order."""
    known = {node.name: node for node in graph.nodes}
    for name in names:
        if name not in known:
            listed = ", ".join(list(known)[:8])
            raise UsageError(
                f"node {name!r}: there is none; the model has {listed}{' ...' if len(known) > 8 else ''}."
            )
    return tuple(known[name] for name in names)
