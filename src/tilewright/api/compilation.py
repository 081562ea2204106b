"""`tw.compile` and `tw.tune`: a model becomes something that runs."""

from __future__ import annotations

import dataclasses
from typing import Any

from tilewright.api.models import Model, Shapes, as_model
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import Body, CompiledFacts, TensorInfo
from tilewright.compiler import Compilation, Tuning, compile_graph
from tilewright.errors import UsageError
from tilewright.explain import origins_of, with_loaded_nodes
from tilewright.frontend.onnx import Source
from tilewright.options import Options, parse_shapes
from tilewright.planning import UNLIMITED, Budget
from tilewright.progress import Progress
from tilewright.steps import CostInfo
from tilewright.suggestions import likely
from tilewright.targets import find_target, is_machine
from tilewright.targets.base import SimulatedCode
from tilewright.version import __version__

DEFAULT_TUNING_BUDGET = Budget(UNLIMITED, 60.0)


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
    all of them at once. `progress` is called with what is being done, how much of it is done, and how much
    there is.

    Raises:
        ModelRejected: the file is malformed, inconsistent or unsafe to read.
        UnsupportedOp: an operator that the target does not run.
        UsageError: an unknown setting or one that makes no sense.
        BudgetExceeded: a limit on time or memory would be passed.
    """
    model, options = compilation_request(model, target, shapes, options, settings)
    return _compiled_model(model, options, compile_graph(model.graph, options, progress))


@checked
def tune_model(
    model: Model | Source,
    target: str | None = None,
    *,
    afresh: bool = False,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> CompiledModel:
    """Compile a model with the kernels that are the fastest here: measure for `budget`, 60 s if not given.

    The search goes on where the last one for this model ended; `afresh` measures all again. What it finds is
    in the result's `tuning`, and kept: later compilations of the model use it. The rest is as for `compile`.

    Raises:
        UsageError: a target without anything to measure; as `compile`.
    """
    model, options = compilation_request(model, target, shapes, options, settings)
    if not find_target(options.target).is_measurable:
        raise UsageError(f"target {options.target}: nothing can be measured there; tune for cpu.")
    if options.budget is None:
        options = dataclasses.replace(options, budget=DEFAULT_TUNING_BUDGET)
    tuning: Tuning = "afresh" if afresh else "anew"
    return _compiled_model(model, options, compile_graph(model.graph, options, progress, tuning=tuning))


def compilation_request(
    model: Model | Source,
    target: str | None,
    shapes: Shapes | str | None,
    options: Options | None,
    settings: dict[str, Any],
) -> tuple[Model, Options]:
    """The model loaded, and the options that it is to be compiled with."""
    if isinstance(shapes, str):
        shapes = parse_shapes(shapes)
    if options is None:
        options = _options(settings)
    elif settings:
        raise UsageError(f"{next(iter(settings))}: give it in options, or no options.")
    options = options.resolved()
    model = as_model(model, shapes or options.shapes)
    return model, dataclasses.replace(options, target=target or options.target, shapes=dict(model.shapes))


def _compiled_model(model: Model, options: Options, compilation: Compilation) -> CompiledModel:
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
    )
    store = target.code_store
    body = Body(lambda: program, lambda: None if store is None else store.pack(code), code.load)
    return CompiledModel(
        facts,
        body,
        remarks=program.remarks,
        phase_s=compilation.phase_s,
        num_threads=options.num_threads,
        tuning=compilation.tuning,
    )


def _options(settings: dict[str, Any]) -> Options:
    known = [f.name for f in dataclasses.fields(Options)]
    for name in settings:
        if name not in known:
            guess = likely(name, known)
            hint = f"{guess}?" if guess else f"known: {', '.join(known)}."
            raise UsageError(f"unknown setting {name!r}: {hint}")
    return Options(**settings)
