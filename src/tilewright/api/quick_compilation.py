"""`tw.compile` of a model that answers before it is compiled."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.api.models import Model
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import CompiledFacts, TensorInfo
from tilewright.first_answer import QuickCompiledModel
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.version import __version__


def quick_model(
    model: Model, options: Options, compile_whole: Callable[[Progress], CompiledModel]
) -> QuickCompiledModel:
    """A model of given shapes that runs by the reference until `compile_whole` has compiled it."""
    facts = CompiledFacts(
        target=options.target,
        tool_version=__version__,
        model_sha256=model.sha256,
        options=options,
        inputs=tuple(TensorInfo.of(v) for v in model.graph.inputs),
        outputs=tuple(TensorInfo.of(v) for v in model.graph.outputs),
        metadata=model.metadata,
        edges=model.edges,
    )
    return QuickCompiledModel(facts, model.graph, compile_whole)
