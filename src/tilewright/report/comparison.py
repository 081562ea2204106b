"""Do two ways to run a model agree, at its outputs and between its kernels?"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.arrays import Array
from tilewright.compiler import plan_optimised
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.extract import extract
from tilewright.ir.graph import Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.partition.base import EdgeDecision, make_subgraph
from tilewright.program import Program
from tilewright.results import Result, about, in_json
from tilewright.targets import find_target
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.compiled_facts import CompiledFacts


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two tensors agree if no element differs by more than `atol` + `rtol` x the largest magnitude.

    Of float16 and bfloat16, unless `rtol` is 0, it is at least two units in the last place: engines that keep
    what passes between operators in float32 differ by up to 1.4 from those that round it as the model says.
    """

    rtol: float = 1e-4
    atol: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"{name} {value:g}: give a number that is not negative.")


@dataclass(frozen=True, slots=True)
class TensorDifference(Result):
    """How one tensor differs. `max_difference` is infinite where shapes or the places of NaN differ."""

    name: str
    shape: tuple[int, ...]
    max_difference: float = field(metadata=about(nullable=True))
    scale: float
    allowed: float

    @in_json
    def ok(self) -> bool:
        """Whether the difference is allowed."""
        return self.max_difference <= self.allowed

    @classmethod
    def of(cls, name: str, a: Array, b: Array, tolerance: Tolerance) -> TensorDifference:
        """Compare a tensor with the same one from elsewhere, which gives the scale.

        >>> TensorDifference.of("y", np.array([1.0, 2.0]), np.array([1.0, 2.5]), Tolerance(rtol=0.1)).ok
        False
        """
        shape = tuple(int(d) for d in a.shape)
        if a.shape != b.shape:
            return cls(name, shape, float("inf"), 0.0, tolerance.atol)
        if a.dtype.kind not in "fiubVc" or b.dtype.kind not in "fiubVc":
            differs = bool((a != b).any())
            return cls(name, shape, float("inf") if differs else 0.0, 0.0, 0.0)
        wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
        left, right = a.astype(wide), b.astype(wide)
        finite = np.abs(right[np.isfinite(right)])
        scale = float(finite.max()) if finite.size else 0.0
        differs_at = ~((left == right) | (np.isnan(left) & np.isnan(right)))
        worst = float(np.abs(left[differs_at] - right[differs_at]).max()) if differs_at.any() else 0.0
        if not np.isfinite(worst):
            worst = float("inf")
        rtol = max(tolerance.rtol, _two_units(a), _two_units(b)) if tolerance.rtol else 0.0
        return cls(name, shape, worst, scale, tolerance.atol + rtol * scale)


def _two_units(array: Array) -> float:
    """Two units in the last place of a half type, relative to the value; 0 for wider types."""
    return {"float16": 2**-9, "bfloat16": 2**-6}.get(array.dtype.name, 0.0)


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """Every value that passes between kernels, in the order in which they are made.

    `changed` names kernels that differ from the model's own: where a result was only a look into another
    tensor, or was computed in its place, handing it out takes another kernel.
    """

    tensors: tuple[TensorDifference, ...]
    num_kernels: int
    changed: tuple[str, ...]


def compare_layers(
    program: Program,
    facts: CompiledFacts,
    feed: Mapping[str, Array],
    tolerance: Tolerance,
    *,
    only: Collection[int] | None = None,
) -> LayerComparison:
    """Compare what each kernel hands to the next with the interpreter in float64; `only` what leaves these
    subgraphs, by their numbers, and the outputs.

    The partition, its kernels and their order are those of the compiled model; only where results lie
    differs, because they are handed out.

    Raises:
        UsageError: the target generates no code, so there are no kernels to look between.
    """
    tapped = _with_boundaries_as_outputs(program, only)
    target = _target_with_kernels(facts)
    code = target.backend(tapped.graph, tapped.options).generate(tapped)
    ours = {_identity(k) for step in facts.steps for k in step.kernels}
    kernels = [k for step in code.steps for k in step.kernels]
    changed = tuple(", ".join(k.nodes) for k in kernels if k.nodes and _identity(k) not in ours)
    executable = code.load(facts.options.num_threads)
    try:
        got = executable.run(feed)
    finally:
        executable.close()
    names = [v.name for v in tapped.graph.outputs]
    expected = run_graph(program.graph, feed, dtype=DType.FLOAT64, taps=names)
    tensors = tuple(TensorDifference.of(n, got[n], expected[n], tolerance) for n in names)
    return LayerComparison(tensors, sum(len(step.kernels) for step in facts.steps), changed)


def compare_alone(
    program: Program, facts: CompiledFacts, subgraph_id: int, feed: Mapping[str, Array], tolerance: Tolerance
) -> tuple[TensorDifference, ...]:
    """The results of a subgraph that is compiled and run alone, on operands from the interpreter.

    Raises:
        UsageError: the target generates no code.
    """
    target = _target_with_kernels(facts)
    subgraph = program.partition.subgraphs[subgraph_id]
    graph, _ = extract(subgraph.nodes, subgraph.outputs)
    names = [v.name for v in graph.inputs]
    exact = run_graph(program.graph, feed, dtype=DType.FLOAT64, taps=names)
    operands = {v.name: exact[v.name].astype(v.dtype.numpy) for v in graph.inputs}
    planned = plan_optimised(graph, program.options, target=target)
    executable = planned.backend.generate(planned.program).load(facts.options.num_threads)
    try:
        got = executable.run(operands)
    finally:
        executable.close()
    expected = run_graph(graph, operands, dtype=DType.FLOAT64)
    return tuple(TensorDifference.of(v.name, got[v.name], expected[v.name], tolerance) for v in graph.outputs)


def _target_with_kernels(facts: CompiledFacts) -> Target:
    target = find_target(facts.target, facts.machine)
    if target.code_store is None:
        raise UsageError(f"{facts.target}: has no kernels to look between; choose --target cpu.")
    return target


def _identity(kernel: Any) -> tuple[object, ...]:
    return (kernel.template, kernel.nodes, kernel.macs)


def _with_boundaries_as_outputs(program: Program, only: Collection[int] | None = None) -> Program:
    """The same program over a copied graph, whose outputs are all values that leave a subgraph, or those that
    leave `only` some.
    """
    old = program.graph
    graph = old.clone()
    copies: dict[Node, Node] = dict(zip(old.nodes, graph.nodes, strict=True))
    values = {v.name: v for v in graph.values()}
    order = [program.partition.subgraphs[i.subgraph_id] for i in program.schedule.instances()]
    boundary: dict[Value, None] = {}
    for subgraph in dict.fromkeys(order):
        if only is None or subgraph.id in only:
            boundary.update({values[v.name]: None for v in subgraph.outputs})
    boundary.update(dict.fromkeys(graph.outputs))
    graph.outputs = list(boundary)
    subgraphs = [
        dataclasses.replace(make_subgraph(s.id, [copies[n] for n in s.nodes], graph), form=s.form)
        for s in program.partition.subgraphs
    ]
    decisions = [
        EdgeDecision(copies[d.producer], copies[d.consumer], values[d.value.name], d.reason)
        for d in program.partition.decisions
    ]
    partition = dataclasses.replace(
        program.partition, graph=graph, subgraphs=tuple(subgraphs), decisions=tuple(decisions)
    )
    schedule = dataclasses.replace(program.schedule, partition=partition)
    options = dataclasses.replace(program.options, max_memory_bytes=None, frozen=False)
    return Program(graph, partition, schedule, options)


def first_difference(tensors: Sequence[TensorDifference]) -> TensorDifference | None:
    """The first tensor that differs by more than allowed."""
    return next((t for t in tensors if not t.ok), None)
