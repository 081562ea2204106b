"""`tw.tune`: the kernels of a model, chosen by measuring them in the running model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tilewright.api.compilation import artifact_path, compilation_request
from tilewright.api.models import Model, Shapes
from tilewright.api.static_compilation import compiled_model
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.compiler import compile_graph
from tilewright.errors import UnsupportedOp, UsageError
from tilewright.frontend.onnx import Source
from tilewright.options import Options
from tilewright.planning import UNLIMITED, Budget
from tilewright.progress import Progress
from tilewright.results import Result, Table, about
from tilewright.steps import SearchName, TuningInfo, TuningSettings
from tilewright.system.ray_cluster import check_address
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.tuning.runners import split_command

DEFAULT_BUDGET = Budget(UNLIMITED, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TuneRequest:
    """What `tw.tune` is asked: a model, how to compile it, and for how long to measure (`options.budget`).

    The search goes on where the last one for this model ended; `afresh` measures all again. `output` is where
    the artifact is written, too. `search` says what is varied: the forms of subgraphs, in parts first
    (`reformer`), as wholes (`evolutionary`), or without complex operators that share a kernel
    (`conventional`), or only how products are computed (`flat`). Without it that is `reformer`. `workers` is
    the address of a Ray cluster whose machines measure, `runners` are commands that start processes that do:
    machines like this one, or for an instruction set of `options.isa` that this one lacks, those with it.
    """

    model: Model
    options: Options
    afresh: bool = False
    output: Path | None = None
    search: SearchName | None = None
    workers: str = ""
    runners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers and self.runners:
            raise UsageError("--workers and --runner: machines are those of a cluster, or named; give one.")
        if self.workers:
            check_address(self.workers)
        for command in self.runners:
            split_command(command)
        if len(self.options.isas) > 1:
            raise UsageError(f"--isa {self.options.isa}: tune for one instruction set at a time.")
        if not find_target(self.options.target).is_measurable:
            raise UsageError(f"target {self.options.target}: nothing can be measured there; tune for cpu.")
        if self.output is not None:
            artifact_path(Path(self.model.name), self.output)
        if self.options.budget is None:
            object.__setattr__(self, "options", dataclasses.replace(self.options, budget=DEFAULT_BUDGET))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TuneResult(Result):
    """A model with the kernels that are the fastest here, and how they were found.

    The JSON has the keys of `tuning` beside that of `artifact`.
    """

    model: CompiledModel = field(metadata=about(hidden=True))
    tuning: TuningInfo = field(metadata=about(hidden=True))
    artifact: Path | None = field(metadata=about("Where the artifact was written, if it was asked for."))

    def tables(self) -> Sequence[Table]:
        """A row for each kind of subgraph, the slowest first."""
        return self.tuning.tables()

    def lines(self) -> Sequence[str]:
        """What measuring brought."""
        return self.tuning.lines()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.tuning.to_json(), **Result.to_json(self)}

    def __repr__(self) -> str:
        return f"TuneResult({self.model!r}, {self.tuning.outcome})"


@checked
def tune_model(
    model: Model | Source,
    target: str | TargetRef | None = None,
    *,
    afresh: bool = False,
    search: SearchName | None = None,
    workers: str = "",
    runners: Sequence[str] = (),
    output: Path | None = None,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TuneResult:
    """Compile a model with the kernels that are the fastest here: measure for `budget`, 60 s if not given.

    The search goes on where the last one for this model ended; `afresh` measures all again. What it finds is
    kept: later compilations of the model use it. `search` says what is varied: the forms of subgraphs, in
    parts first (`reformer`), as wholes (`evolutionary`), or without complex operators that share a kernel
    (`conventional`), or only how products are computed (`flat`); without it that is `reformer`. `workers` is
    the address of a Ray cluster, `ray` or `ray://host:port`, whose machines measure, and `runners` are
    commands that start processes that do, such as `ssh board tilewright worker`: machines that are like this
    one or, where `isa` names an instruction set that this one lacks, that run it. The model that is given
    then does not run here. `output` is where the artifact is written, too; the rest is as for `compile`.

    Raises:
        UsageError: a target without anything to measure, no machine that measures; as `compile`.
        UnsupportedOp: a model that does not run on random inputs; as `compile`.
    """
    if isinstance(model, str | os.PathLike):
        artifact_path(Path(model), output)  # before it takes time to load
    model, options = compilation_request(model, target, shapes, options, settings)
    return answer(
        TuneRequest(
            model=model,
            options=options,
            afresh=afresh,
            output=output,
            search=search,
            workers=workers,
            runners=(runners,) if isinstance(runners, str) else tuple(runners),
        ),
        progress,
    )


def answer(request: TuneRequest, progress: Progress | None = None) -> TuneResult:
    """What a request asks for; as `tw.tune`."""
    from tilewright.embed import emitting_target  # what generates code takes a while to load

    model, options = request.model, request.options
    source: Literal["afresh", "anew"] = "afresh" if request.afresh else "anew"
    settings = TuningSettings(source, request.search, request.workers, request.runners)
    compilation = compile_graph(
        model.graph, options, progress, tuning=settings, target=emitting_target(options)
    )
    compiled = compiled_model(model, options, compilation)
    if compiled.tuning is None:
        raise UnsupportedOp(f"{model.name}: does not run on random inputs, so that nothing can be measured.")
    written = None if request.output is None else compiled.save(request.output)
    return TuneResult(compiled, compiled.tuning, written)
