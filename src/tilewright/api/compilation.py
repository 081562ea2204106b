"""`tw.compile`: a model becomes something that runs."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from tilewright.api.models import Model, Shapes, as_model
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body, CompiledFacts, TensorInfo
from tilewright.compiler import Compilation, compile_graph
from tilewright.content_pool import ContentPool
from tilewright.errors import UsageError
from tilewright.explain import origins_of, with_loaded_nodes
from tilewright.files import is_artifact
from tilewright.frontend.onnx import PreparedModel, Source
from tilewright.options import Options, options_of, parse_open_shapes
from tilewright.progress import Progress
from tilewright.steps import CostInfo
from tilewright.targets import is_machine
from tilewright.targets.base import SharingCode, SimulatedCode
from tilewright.version import __version__


@checked
def compile_model(
    model: Model | Source,
    target: str | None = None,
    *,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> CompiledModel:
    """Compile a model for a target.

    `settings` are fields of `Options` (`hint="latency"`, `budget="60s"`, `threads=2`, ...); `options` gives
    all of them at once. A model whose shapes are open is compiled for those that `shapes` list now, and for
    others when a run brings them: it is an `OpenCompiledModel`. `progress` is called with what is being done,
    how much of it is done, and how much there is.

    Raises:
        ModelRejected: the file is malformed, inconsistent or unsafe to read.
        UnsupportedOp: an operator that the target does not run.
        UsageError: an unknown setting or one that makes no sense.
        BudgetExceeded: a limit on time or memory would be passed.
    """
    model, options = compilation_request(model, target, shapes, options, settings)
    if isinstance(model.source, PreparedModel):
        from tilewright.api.open_compilation import compile_open

        return compile_open(model, model.source, options, progress)
    return compile_static(model, options, progress=progress)


def compile_static(
    model: Model, options: Options, pool: ContentPool | None = None, progress: Progress | None = None
) -> CompiledModel:
    """What `tw.compile` gives of a model of given shapes; with a pool, others share its constants."""
    compilation = compile_graph(model.graph, options, progress)
    if pool is not None:
        for value in compilation.program.graph.initializers:
            value.data = None if value.data is None else pool.array(value.data)
    return compiled_model(model, options, compilation, pool)


def compilation_request(
    model: Model | Source,
    target: str | None,
    shapes: Shapes | str | None,
    options: Options | None,
    settings: dict[str, Any],
) -> tuple[Model, Options]:
    """The model loaded, and the options that it is to be compiled with."""
    if isinstance(shapes, str):
        shapes = parse_open_shapes(shapes)
    if options is None:
        options = options_of(settings)
    elif settings:
        raise UsageError(f"{next(iter(settings))}: give it in options, or no options.")
    if options.trust:
        raise UsageError("--trust is for artifacts, whose code was made before; leave it out for a model.")
    options = options.resolved()
    model = as_model(model, shapes or options.shapes)
    return model, dataclasses.replace(options, target=target or options.target, shapes=dict(model.shapes))


def artifact_path(model: Path, output: Path | None) -> Path:
    """Where to write the artifact of a model, beside it if nothing is said.

    Raises:
        UsageError: the model is an artifact, or nothing can be written there.
    """
    if model.is_dir():
        raise UsageError(f"{model}: is a folder; give the ONNX file in it.")
    if is_artifact(model):
        raise UsageError(f"{model}: is compiled already; give the ONNX file.")
    path = output or model.with_suffix(".tw")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give a file name with -o.")
    if output is not None and not path.parent.is_dir():
        raise UsageError(f"{path}: its folder {str(path.parent)!r} does not exist; create it, or change -o.")
    return path


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
