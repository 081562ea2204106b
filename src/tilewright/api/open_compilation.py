"""`tw.compile` of a model whose shapes are open."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from tilewright.api.models import Model
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import CompiledFacts, tensor_info
from tilewright.content_pool import ContentPool
from tilewright.frontend.onnx import PreparedModel
from tilewright.ir.graph import Graph, Shape
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.specialise.binding import Binding
from tilewright.specialise.model import OpenCompiledModel
from tilewright.version import __version__

CompileShapes = Callable[[Model, Options, "ContentPool | None", "Progress | None"], CompiledModel]
"""A model at given shapes, with others that share its constants."""


def compile_open(
    model: Model,
    prepared: PreparedModel,
    options: Options,
    progress: Progress | None,
    compile_whole: CompileShapes | None = None,
) -> OpenCompiledModel:
    """What `tw.compile` gives of a model whose shapes are open; `compile_whole` gives it at some shapes,
    `compile_static` where it is None."""
    binding = Binding(prepared.inputs, prepared.defaulted, options.shapes)
    outputs = {name: found for name, found in prepared.outputs.items() if found is not None}
    facts = CompiledFacts(
        target=options.target,
        tool_version=__version__,
        model_sha256=model.sha256,
        options=options,
        inputs=tuple(tensor_info(n, d.dtype, binding.shape_of(n)) for n, d in prepared.inputs.items()),
        outputs=tuple(tensor_info(n, d.dtype, d.dims or ()) for n, d in outputs.items()),
        metadata=model.metadata,
        edges=model.edges,
    )

    pool = ContentPool()

    def compile_part(
        graph: Graph, shapes: Mapping[str, Shape], time_left_s: float | None, is_whole: bool
    ) -> CompiledModel:
        chosen = dataclasses.replace(options, shapes=dict(shapes), timeout_s=time_left_s)
        graph.shares_constants = True
        part = dataclasses.replace(model, source=graph, shapes=dict(shapes))

        def compile_now(progress: Progress | None = None) -> CompiledModel:
            from tilewright.api.static_compilation import compile_static

            if is_whole and compile_whole is not None:
                return compile_whole(part, chosen, pool, progress)
            return compile_static(part, chosen, pool, progress, releases=True)

        if options.first_answer == "quick":
            from tilewright.api.quick_compilation import quick_model

            return quick_model(part, chosen, compile_now)
        return compile_now()

    compiled = OpenCompiledModel(prepared, binding, facts, compile_part)
    compiled.prepare(progress)
    return compiled
