"""The CPU target: a program becomes kernels, a memory plan, one main, and an executable."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.errors import BudgetExceeded, InternalError, UnsupportedOp
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe
from tilewright.memory import MEMORY_PLANNERS, check_memory
from tilewright.memory.base import MemoryPlan, MemoryProblem
from tilewright.planning import Infeasible
from tilewright.program import Program
from tilewright.targets.base import Support
from tilewright.targets.cpu.cache import ObjectCache
from tilewright.targets.cpu.codegen import CompileJob, compile_objects
from tilewright.targets.cpu.executable import CpuExecutable, HostStep, TensorSpec, bytes_at
from tilewright.targets.cpu.isa import Isa, host_isa, isa_by_name, require_host
from tilewright.targets.cpu.lower import HostOperator, KernelLaunch, LoweredModel, lower_schedule
from tilewright.targets.cpu.pool import AlignedBuffer
from tilewright.targets.cpu.runtime import ArgRef, HostCall, Launch, MainCode, Stage, build_main, link_main
from tilewright.targets.cpu.runtime import Step as MainStep
from tilewright.targets.cpu.storage import (
    FIRST_CALLER_BASE,
    Placement,
    Weights,
    caller_homes,
    memory_problem,
)

Array = np.ndarray[Any, Any]
Progress = Callable[[str, int, int], None]  # what, done, total

_UNSUPPORTED_TYPES = frozenset({DType.STRING, DType.COMPLEX64, DType.COMPLEX128})


@dataclass(frozen=True, slots=True, eq=False)
class CpuCode:
    """Everything generated for a model, before it is loaded: what an artifact stores."""

    isa: Isa
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    passthrough: Mapping[str, Array | str]
    lowered: LoweredModel
    main: MainCode
    kernel_objects: tuple[bytes, ...]
    weights: Weights
    host_steps: tuple[HostStep, ...]
    memory: MemoryPlan
    memory_problem: MemoryProblem
    scratch_bytes: int

    def load(self, num_threads: int | None, cache: ObjectCache | None = None) -> CpuExecutable:
        """Make it runnable in this process."""
        weights = AlignedBuffer(max(64, self.weights.size_bytes))
        self.weights.fill(bytes_at(weights.address, weights.size_bytes))
        return CpuExecutable(
            inputs=self.inputs,
            outputs=self.outputs,
            passthrough=self.passthrough,
            main=self.main,
            library=link_main(self.main, self.kernel_objects, self.isa, cache=cache),
            weights=weights,
            arena_bytes=max(64, self.memory.peak_bytes),
            scratch_bytes=self.scratch_bytes,
            host_steps=self.host_steps,
            num_threads=num_threads,
        )


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """Generated code on the processor of this machine."""

    name: ClassVar[str] = "cpu"

    def supports(self, node: Node) -> Support:
        """Operators without nests run on the host, and say so."""
        for value in (*node.operands(), *node.results()):
            if value.dtype in _UNSUPPORTED_TYPES:
                return Support.no(
                    f"{value.name!r} holds {value.dtype} values, which only the interpreter runs"
                )
        description = describe(node)
        if isinstance(description, Opaque):
            return Support.yes(f"runs on the host: {description.reason}")
        return Support.yes()

    def compile(self, program: Program) -> CpuExecutable:
        """Generate, load and return the executable."""
        options = program.options
        cache = None if options.no_cache else ObjectCache(options.cache_dir)
        return self.generate(program, cache=cache).load(options.threads, cache)

    def generate(
        self,
        program: Program,
        *,
        cache: ObjectCache | None = None,
        profile: bool = False,
        progress: Progress | None = None,
    ) -> CpuCode:
        """Lower, place and compile a program.

        Raises:
            UnsupportedOp: a node that this target declines.
            BudgetExceeded: the arena would be larger than `options.max_memory_bytes`.
        """
        graph, options = program.graph, program.options
        for node in graph.nodes:
            support = self.supports(node)
            if not support:
                raise UnsupportedOp(f"{node.op_type} {node.name!r}: {support.reason}.")
        isa = require_host(isa_by_name(options.isa) if options.isa else host_isa())
        lowered = lower_schedule(program.schedule, isa)
        problem, names = memory_problem(lowered, graph, options.max_memory_bytes)
        plan = MEMORY_PLANNERS.get(options.memory).solve(problem, options.search_budget)
        if isinstance(plan, Infeasible):
            raise BudgetExceeded(str(plan))
        violations = check_memory(problem, plan)
        if violations:
            raise InternalError(f"the memory plan is wrong: {violations[0]}")
        bases = {v: FIRST_CALLER_BASE + i for i, v in enumerate(graph.inputs)}
        for position, value in enumerate(graph.outputs):
            bases.setdefault(value, FIRST_CALLER_BASE + len(graph.inputs) + position)
        weights = Weights()
        placement = Placement(lowered, bases, plan.offsets, names, caller_homes(lowered, graph), weights)
        steps, host_steps = _main_steps(lowered, placement)
        main = build_main(steps, isa, profile=profile)
        kernels = {k.kernel.symbol: k.kernel for s in lowered.steps if isinstance(s, tuple) for k in s}
        jobs = [CompileJob(k.text, k.needs_optimizer) for k in kernels.values()]
        objects = compile_objects(jobs, isa, cache=cache, num_processes=os.cpu_count() or 1)
        return CpuCode(
            isa=isa,
            inputs=tuple(TensorSpec.of(v) for v in graph.inputs),
            outputs=tuple(TensorSpec.of(v) for v in graph.outputs),
            passthrough=_passthrough(graph),
            lowered=lowered,
            main=main,
            kernel_objects=tuple(objects),
            weights=weights,
            host_steps=tuple(host_steps),
            memory=plan,
            memory_problem=problem,
            scratch_bytes=max((k.scratch_bytes for k in kernels.values()), default=0),
        )


def _main_steps(lowered: LoweredModel, placement: Placement) -> tuple[list[MainStep], list[HostStep]]:
    steps: list[MainStep] = []
    host_steps: list[HostStep] = []
    for step in lowered.steps:
        if isinstance(step, HostOperator):
            steps.append(HostCall(len(host_steps)))
            host_steps.append(_host_step(step.node, placement))
            continue
        launches = tuple(_launch(launch, placement) for launch in step)
        steps.append(launches[0] if len(launches) == 1 else Stage(launches))
    return steps, host_steps


def _launch(launch: KernelLaunch, placement: Placement) -> Launch:
    args = tuple(placement.reference(storage) for storage in launch.args)
    return Launch(launch.kernel.symbol, launch.kernel.num_chunks, args)


def _host_step(node: Node, placement: Placement) -> HostStep:
    def references(values: tuple[Value | None, ...]) -> tuple[ArgRef | None, ...]:
        return tuple(None if v is None else placement.reference(v) for v in values)

    return HostStep(node, references(node.inputs), references(node.outputs))


def _passthrough(graph: Graph) -> dict[str, Array | str]:
    """Outputs that are an initializer, an input, or a repeated output, which no kernel writes."""
    inputs = set(graph.inputs)
    result: dict[str, Array | str] = {}
    for value in graph.outputs:
        if value in inputs:
            result[value.name] = value.name
        elif value.data is not None:
            result[value.name] = value.data
    return result
