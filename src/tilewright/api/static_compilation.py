"""`tw.compile` of a model at given shapes."""

from __future__ import annotations

import functools

from tilewright.api.models import Model
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body, CompiledFacts, TensorInfo
from tilewright.compiler import Compilation, compile_graph
from tilewright.content_pool import ContentPool
from tilewright.explain import origins_of, with_loaded_nodes
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.steps import CostInfo
from tilewright.targets import is_machine
from tilewright.targets.base import SharingCode, SimulatedCode
from tilewright.version import __version__


def compile_static(
    model: Model, options: Options, pool: ContentPool | None = None, progress: Progress | None = None
) -> CompiledModel:
    """What `tw.compile` gives of a model of given shapes; with a pool, others share its constants."""
    compilation = compile_graph(model.graph, options, progress)
    if pool is not None:
        for value in compilation.program.graph.initializers:
            value.data = None if value.data is None else pool.array(value.data)
    return compiled_model(model, options, compilation, pool)


def compiled_model(
    model: Model, options: Options, compilation: Compilation, pool: ContentPool | None = None
) -> CompiledModel:
    """What `tw.compile` gives of a compilation; others that are loaded share the constants of a pool."""
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
        machine=target.machine if is_machine(options.target) else None,
        metadata=model.metadata,
    )
    store, load = target.code_store, code.load
    if pool is not None and isinstance(code, SharingCode):
        load = functools.partial(code.load_sharing, pool=pool)
    body = Body(lambda: program, lambda: () if store is None else store.pack(code), load)
    return CompiledModel(
        facts,
        body,
        remarks=program.remarks,
        phase_s=compilation.phase_s,
        num_threads=options.num_threads,
        tuning=compilation.tuning,
    )
