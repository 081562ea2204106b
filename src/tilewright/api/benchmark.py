"""`tw.bench`: models beside others, in one call."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.api.artifacts import asked_of_artifacts, for_models
from tilewright.api.compilation import compile_model
from tilewright.api.inputs import feed_of
from tilewright.api.models import load
from tilewright.api.pages import page_path
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.benchmark import BenchPlan, BoundSplit, Comparison, Contestant, Entrant, compare_engines
from tilewright.benchmark.engines import PEERS, is_installed, peer_precision
from tilewright.benchmark.profile import profile_program
from tilewright.benchmark.session import PERCENTS
from tilewright.compiled import CompiledModel
from tilewright.compiled_facts import TensorInfo
from tilewright.errors import UsageError
from tilewright.extras import extra_of
from tilewright.files import is_artifact, write_output
from tilewright.hardware.probe import num_threads_default
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.options import Hint, Options
from tilewright.planning import Budget
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.results import Table, about
from tilewright.specialise.opened import open_compiled
from tilewright.target_ref import TargetRef
from tilewright.text.formatting import counted, format_bytes, format_ms

SCATTER = 1.3
_PROFILE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How models are measured; those of how they are compiled are `Options`.

    Each engine runs for its share of `duration_s`, at least `num_iterations` times, after `warmup_s`.
    `streams` runs go on at a time, which share the threads; by default one, or as many as there are threads
    where models are compiled for throughput.
    """

    threads: int | None = None
    duration_s: float = 5.0
    num_iterations: int = 1
    warmup_s: float = 0.3
    percents: tuple[float, ...] = PERCENTS
    measures_error: bool = True
    gives_advice: bool = False
    streams: int | None = None

    def plan(self, hint: Hint) -> BenchPlan:
        """How long to measure, and how many runs at a time."""
        threads = num_threads_default() if self.threads is None else self.threads
        streams = threads if hint == "throughput" else 1
        return BenchPlan(
            threads,
            self.duration_s,
            self.num_iterations,
            self.warmup_s,
            self.percents,
            streams if self.streams is None else self.streams,
        )


@dataclass(frozen=True, slots=True)
class BenchResult(Comparison):
    """Latency of engines measured in turns."""

    options: Mapping[str, Any]
    bound: BoundSplit | None = field(metadata=about("Of the first model; null without advice."))
    advice: tuple[str, ...] = field(
        metadata=about("What to know before believing the figures, and what bounds them.")
    )
    model_sha256: str = field(metadata=about(hidden=True))
    target: str = field(metadata=about(hidden=True))

    def tables(self) -> Sequence[Table]:
        """A row for each contestant; how it compares with the first where there are several."""
        first = self.contestants[0]
        runs = 0 if first.timing is None else len(first.timing.runs_ms)
        streams = "" if self.num_streams == 1 else f"{self.num_streams} streams on "
        title = (
            f"{self.model}: {streams}{counted(self.num_threads, 'thread')}, "
            f"{counted(self.num_rounds, 'round')} in turns, {counted(runs, 'run')}"
        )
        figures = (*(("queries/s",) if streams else ()), *(f"p{p:g}" for p in first.percents))
        heads = ("engine", "accuracy", *figures, "error", "memory")
        rows = [_row(contestant, first, bool(streams)) for contestant in self.contestants]
        if len(rows) > 1:
            heads = (*heads, "its time over the first's", "verdict")
        else:
            rows = [row[: len(heads)] for row in rows]
        behind = len(figures) + 2  # the columns behind those of the percentiles
        less = (behind + 1, 1, behind, *range(behind - 2, 2, -1))
        return (Table(heads, tuple(rows), title, tuple(range(2, len(figures) + 4)), less),)

    @checked
    def save_page(self, path: str | os.PathLike[str]) -> Path:
        """Write distributions of latency, percentiles and rounds as one HTML page.

        Raises:
            UsageError: the name does not end in .html, or the file cannot be written.
        """
        from tilewright.benchmark.latency_page import latency_page

        page = page_path(os.fspath(path))
        write_output(page, latency_page(self, self.tables(), (*self.lines(), *self.advice)).encode())
        return page

    def lines(self) -> Sequence[str]:
        """Engines that run another model, and the machine's state."""
        first, others = self.contestants[0], [c for c in self.contestants if c.is_other_model]
        told = (
            f"{other.label} is another model than {first.label}: its time is of other work"
            + ("." if other.max_error is None else f", its error against the outputs of {first.label}.")
            for other in others
        )
        return (*told, str(self.machine))


def _row(contestant: Contestant, first: Contestant, has_streams: bool) -> tuple[str, ...]:
    name = contestant.label
    if contestant.version and contestant.label == contestant.engine:
        name = f"{contestant.engine} {contestant.version}"
    timing, ratio = contestant.timing, contestant.ratio
    if timing is None:
        missing = ("-",) * (len(contestant.percents) + has_streams)
        return (name, contestant.accuracy, *missing, "-", "-", "-", "failed")
    times = [format_ms(timing.percentile_ms(p)) for p in contestant.percents]
    if has_streams:
        times.insert(0, f"{contestant.queries_per_s or 0:,.1f}")
    error = "" if contestant.max_error is None else f"{contestant.max_error:.1e}"
    against = verdict = ""
    if ratio is not None:
        against = f"{ratio.median:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"
        is_open = ratio.verdict in ("tie", "inconclusive")
        verdict = str(ratio.verdict) if is_open else f"{first.label} is {ratio.verdict}"
    return (name, contestant.accuracy, *times, error, format_bytes(contestant.peak_bytes), against, verdict)


@checked
def bench(
    model: CompiledModel | str | Path,
    *others: CompiledModel | str | Path,
    feed: Mapping[str, Array] | str | Path | None = None,
    duration: float | str | None = None,
    threads: int | None = None,
    measure: BenchOptions | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> BenchResult:
    """Measure compiled models, models and peers in turns; the first is compared with each of the others.

    `others` are compiled models, files (an ONNX model or an artifact), or `onnxruntime` and `openvino`,
    which need the first to be an ONNX file. A `feed` are arrays
    or an .npz file; without one inputs are random. `duration` is in seconds, or
    a text such as `5s`; it and `threads` go before what `measure` says. The error of each is against the
    first model in float64. Peers compute in float32, and in bfloat16 those that can where the first model is
    at accuracy `fast`.

    Raises:
        UsageError: a peer without an ONNX file, or settings that make no sense.
    """
    measure, options = measure or BenchOptions(), options or Options()
    if duration is not None:
        seconds = Budget.parse(duration).deadline_s if isinstance(duration, str) else duration
        if seconds is None:
            raise UsageError(f"duration {duration!r}: give a time such as 5s.")
        measure = dataclasses.replace(measure, duration_s=seconds)
    measure = measure if threads is None else dataclasses.replace(measure, threads=threads)
    plan = measure.plan(options.hint)
    if plan.num_streams > 1:
        options = dataclasses.replace(options, threads=plan.threads_of_a_run)
    update = progress or (lambda *_: None)
    everyone = (model, *others)
    _check_peers(everyone)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-bench-")))
        entrants, subject = _Workshop(folder, options, update).entrants(everyone)
        arrays = feed_of(feed, subject.inputs, options.seed)
        expected = None
        if measure.measures_error:
            update("computing the reference in float64", 0, 0)
            expected = expected_outputs(subject.graph, arrays, subject.outputs)
        comparison = compare_engines(
            entrants,
            arrays,
            plan,
            model=str(model),
            shapes=options.fixed_shapes,
            expected=expected,
            progress=update,
        )
        split = None
        timing = comparison.contestants[0].timing
        is_alone = plan.num_streams == 1  # limits are those of a run that has the machine to itself
        if measure.gives_advice and is_alone and timing is not None and subject.target.is_cpu:
            profile = profile_program(
                subject.program, arrays, num_threads=plan.num_threads, duration_s=_PROFILE_S, progress=update
            )
            split = BoundSplit.of(profile, 1e6 * timing.median_ms)
    return BenchResult(
        **{f.name: getattr(comparison, f.name) for f in dataclasses.fields(comparison)},
        options={"shapes": options.fixed_shapes, "threads": plan.num_threads, "seed": options.seed},
        bound=split,
        advice=tuple(_advice(comparison, split)),
        model_sha256=subject.sha256,
        target=str(subject.target),
    )


def expected_outputs(graph: Graph, feed: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    """Outputs of a graph in float64, in the order of `names`."""
    results = run_graph(graph, feed, dtype=DType.FLOAT64)
    return [results[name] for name in names]


def _check_peers(everyone: Sequence[CompiledModel | str | Path]) -> None:
    if _is_peer(everyone[0]):
        raise UsageError(f"{everyone[0]}: runs beside a model; give that first.")
    peers = [str(name) for name in everyone if _is_peer(name)]
    for name in peers:
        if isinstance(everyone[0], CompiledModel) or is_artifact(Path(everyone[0])):
            given = "a compiled model" if isinstance(everyone[0], CompiledModel) else str(everyone[0])
            raise UsageError(f"{given}: {name} needs the ONNX file first; give artifacts after it.")
        if not is_installed(name):
            raise UsageError(f"{name}: is not installed: {extra_of(name).command}.")
    if len(set(peers)) != len(peers):
        raise UsageError(f"{', '.join(peers)}: name each engine once.")


def _is_peer(model: CompiledModel | str | Path) -> bool:
    return isinstance(model, str) and model in PEERS


def _advice(comparison: Comparison, split: BoundSplit | None) -> list[str]:
    """What to know before believing the figures, and what bounds them."""
    lines = list(comparison.machine.warnings())
    timing = comparison.contestants[0].timing
    if timing is None:
        return lines
    if timing.percentile_ms(90) > SCATTER * timing.median_ms:
        lines.append("times scatter by more than 30 %: a longer --duration gives tighter intervals.")
    if split is not None:
        lines.append(split.advice)
    return lines


@dataclass(frozen=True, slots=True, eq=False)
class _Subject:
    """The first model: `graph` is what the reference runs, `program` what was compiled."""

    graph: Graph
    program: Program
    inputs: Sequence[TensorInfo]
    outputs: tuple[str, ...]
    output_types: tuple[tuple[str, tuple[int, ...]], ...]
    sha256: str
    target: TargetRef
    accuracy: str

    @classmethod
    def of(cls, compiled: CompiledModel, graph: Graph | None = None) -> _Subject:
        """A compiled model; `graph` is that of its file, where what passes changed is measured too."""
        program = compiled.program
        return cls(
            graph or program.graph,
            program,
            compiled.get_inputs(),
            tuple(o.name for o in compiled.get_outputs()),
            tuple((o.type, o.shape) for o in compiled.get_outputs()),
            compiled.model_sha256,
            compiled.facts.target,
            compiled.options.accuracy,
        )


def _beside(first: _Subject, first_entrant: Entrant, other: _Subject, entrant: Entrant) -> Entrant:
    """An entrant beside the first, which says whether both are the same model.

    Raises:
        UsageError: it takes other inputs.
    """
    ours, theirs = ({i.name: str(i) for i in subject.inputs} for subject in (first, other))
    differing = next((name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)), None)
    if differing is not None:
        none = f"no input {differing!r}"
        raise UsageError(
            f"{entrant.label} takes {theirs.get(differing, none)}, {first_entrant.label} takes "
            f"{ours.get(differing, none)}: all run on the same inputs; bench each of them alone."
        )
    return dataclasses.replace(
        entrant,
        is_other_model=other.sha256 != first.sha256,
        has_like_outputs=other.output_types == first.output_types,
    )


class _Workshop:
    """Makes an artifact of every model."""

    def __init__(self, folder: Path, options: Options, update: Progress) -> None:
        self._folder = folder
        self._options = options
        self._update = update
        self._asked: frozenset[str] = frozenset()
        self._for_models = options

    def entrants(
        self, everyone: Sequence[CompiledModel | str | Path]
    ) -> tuple[tuple[Entrant, ...], _Subject]:
        """All contestants, and what the first of them is."""
        models = [model for model in everyone if not _is_peer(model)]
        files = [Path(model) for model in models if not isinstance(model, CompiledModel)]
        self._asked = asked_of_artifacts(self._options, files)
        self._for_models = for_models(self._options, files)
        made = [self._entrant(number, model) for number, model in enumerate(models)]
        for entrant, what in made:
            what.target.require_measurable(entrant.label)
        made = [(dataclasses.replace(one, accuracy=what.accuracy), what) for one, what in made]
        (first, subject), *rest = made
        made = [made[0], *((_beside(subject, first, what, one), what) for one, what in rest)]
        if len(models) == 1:
            made[0] = (dataclasses.replace(first, label="tilewright"), subject)
        file = first.model if isinstance(models[0], CompiledModel) else Path(models[0])
        peers = (
            Entrant(str(peer), str(peer), file, accuracy=peer_precision(str(peer), subject.accuracy))
            for peer in everyone
            if _is_peer(peer)
        )
        return (*(entrant for entrant, _ in made), *peers), subject

    def _entrant(self, number: int, model: CompiledModel | str | Path) -> tuple[Entrant, _Subject]:
        label, path = f"{number + 1}: ", self._folder / f"{number}.tw"
        if isinstance(model, CompiledModel):
            return Entrant(label + model.target, "tilewright", model.save(path)), _Subject.of(model)
        file = Path(model)
        if is_artifact(file):
            opened = open_compiled(file, self._options, self._asked)
            # What was generated again, or is used on the user's word, is not done so in each process anew.
            is_as_opened = not (opened.remarks or self._options.trust or self._options.isa)
            made = file if is_as_opened else opened.save(path)
            return Entrant(label + file.name, "tilewright", made), _Subject.of(opened)
        loaded = load(file, shapes=self._options.fixed_shapes)
        compiled = compile_model(loaded, options=self._for_models, progress=self._update)
        spent_s = sum(compiled.phase_s.values())
        entrant = Entrant(label + file.name, "tilewright", compiled.save(path), spent_s)
        return entrant, _Subject.of(compiled, loaded.graph)
