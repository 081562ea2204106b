"""`tw.compile` of a model at given shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.api.models import Model
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body, CompiledFacts, TensorInfo
from tilewright.compiler import Compilation, compile_graph
from tilewright.content_pool import ContentPool
from tilewright.explain import origins_of, with_loaded_nodes
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.steps import CostInfo
from tilewright.system.forks import ForkSafeLock
from tilewright.targets.base import Executable, ReleasingCode, SharingCode, SimulatedCode
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.program import Program
    from tilewright.targets.stored import StoredCode


def compile_static(
    model: Model,
    options: Options,
    pool: ContentPool | None = None,
    progress: Progress | None = None,
    *,
    releases: bool = False,
) -> CompiledModel:
    """What `tw.compile` gives of a model of given shapes; with a pool, others share its constants.

    `releases`: no other object has the graph, so constants that the loaded code has need not be kept.
    """
    compilation = compile_graph(model.graph, options, progress)
    if pool is not None and not (releases and isinstance(compilation.code, ReleasingCode)):
        for value in compilation.program.graph.initializers:
            value.data = None if value.data is None else pool.array(value.data)
    return compiled_model(model, options, compilation, pool, releases=releases)


def compiled_model(
    model: Model,
    options: Options,
    compilation: Compilation,
    pool: ContentPool | None = None,
    *,
    releases: bool = False,
) -> CompiledModel:
    """What `tw.compile` gives of a compilation; others that are loaded share the constants of a pool.

    `releases` is as for `compile_static`.
    """
    code, program, target = compilation.code, compilation.program, compilation.planned.target
    origins = origins_of(model.graph, program.graph, compilation.passes)
    facts = CompiledFacts(
        target=options.target,
        tool_version=__version__,
        model_sha256=model.sha256,
        options=options,
        inputs=tuple(TensorInfo.of(v) for v in program.graph.inputs),
        outputs=tuple(TensorInfo.of(v) for v in program.graph.outputs),
        steps=compilation.steps,
        memory=code.memory_info,
        origins=with_loaded_nodes(origins, model.listed, model.graph),
        cost=CostInfo.of(
            program.schedule.quality,
            compilation.planned.backend.costs.source,
            code.cost if isinstance(code, SimulatedCode) else None,
        ),
        machine=target.machine if options.target.is_machine else None,
        metadata=model.metadata,
        edges=model.edges,
    )
    store, load = target.code_store, code.load
    if pool is not None and isinstance(code, SharingCode):
        load = functools.partial(code.load_sharing, pool=pool)
    body = Body(lambda: program, lambda: () if store is None else store.pack(code), load)
    if releases and isinstance(code, ReleasingCode):
        body = _HeldOnce(body, code, pool).body()
    return CompiledModel(
        facts,
        body,
        remarks=program.remarks,
        phase_s=compilation.phase_s,
        num_threads=options.num_threads,
        tuning=compilation.tuning,
    )


class _HeldOnce:
    """A body whose large constants are in memory once: with the loaded code, until a caller asks for the
    program."""

    def __init__(self, whole: Body, code: ReleasingCode, pool: ContentPool | None) -> None:
        self._whole, self._code, self._pool = whole, code, pool
        self._lock = ForkSafeLock()
        self._is_seen = False
        self._restore: Callable[[], None] | None = None

    def body(self) -> Body:
        """The parts."""
        return Body(self._program, self._stored, self._load)

    def _program(self) -> Program:
        with self._lock:
            self._is_seen = True
            return self._whole_program()

    def _stored(self) -> tuple[StoredCode, ...]:
        with self._lock:
            self._whole_program()
            return self._whole.stored()

    def _load(self, num_threads: int | None) -> Executable:
        with self._lock:
            if self._is_seen:
                return self._whole.load(num_threads)
            self._give_back()
            executable, self._restore = self._code.load_releasing(num_threads, self._pool)
            return executable

    def _whole_program(self) -> Program:
        """The program with all of its constants."""
        self._give_back()
        program = self._whole.program()
        program.graph.require_unchanged()
        return program

    def _give_back(self) -> None:
        if self._restore is not None:
            self._restore()
            self._restore = None
