"""`tilewright bench`: how fast, beside whom."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli import common
from tilewright.cli.flags import INPUTS, CompileFlags, add_verb, checked_threads
from tilewright.cli.output import (
    JSON_OPTION,
    format_bytes,
    format_ms,
    hint,
    print_json,
    print_table,
    progress,
    say,
)
from tilewright.errors import BudgetExceeded, UsageError

if TYPE_CHECKING:
    from tilewright.api import Model
    from tilewright.benchmark import BoundSplit, Comparison, Contestant, Entrant
    from tilewright.compiled import CompiledModel, TensorInfo
    from tilewright.ir.graph import Graph
    from tilewright.program import Program

SCATTER = 1.3
_PROFILE_S = 0.5


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "bench", bench, panel)


def bench(
    flags: CompileFlags,
    models: list[Path] = typer.Argument(
        metavar="A [B]...", help="ONNX models or artifacts; the first is compared with each of the others."
    ),
    versus: str = typer.Option("", "--vs", help="Peers to run beside it: onnxruntime,openvino."),
    duration: float = typer.Option(10.0, "--duration", help="Seconds to measure, all engines together."),
    iters: int = typer.Option(1, "--iters", help="Least number of runs of each engine."),
    warmup: float = typer.Option(0.3, "--warmup", help="Seconds to run each engine before measuring."),
    percentile: str = typer.Option("50,90,99", "--percentile", help="Percentiles of latency to show."),
    inputs: Path | None = INPUTS,
    error: bool = typer.Option(True, help="Measure each engine's error against the reference in float64."),
    advice: bool = typer.Option(True, help="Measure A's kernels and this machine, and say what binds A."),
    fail_if_slower: bool = typer.Option(
        False, "--fail-if-slower", help="Exit code 5 if A is slower than any."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure latency, in turns with other engines and artifacts, and say which is faster.

    Example: `tilewright bench model.onnx --vs onnxruntime --threads 2`.
    """
    from tilewright.benchmark import BoundSplit, Plan, Verdict, compare_engines
    from tilewright.benchmark.api import expected_outputs
    from tilewright.benchmark.profile import profile_program

    options = flags.options()
    percents = _percents(percentile)
    plan = Plan(checked_threads(options.threads), duration, iters, warmup)
    peers = _peers(versus)
    first = models[0]
    if peers and common.is_artifact(first):
        raise UsageError(f"{first}: peers need the ONNX file; give that first, and the artifact second.")
    if options.target != "cpu":
        raise UsageError(f"bench measures the cpu target; leave out --target {options.target}.")
    with progress(f"loading {first.name}") as update, contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-bench-")))
        workshop = _Workshop(folder, options, update)
        entrants, subject = workshop.entrants(models, peers)
        feed = common.inputs_or_random(inputs, subject.inputs, options.seed)
        expected = None
        if error:
            update("computing the reference in float64")
            expected = expected_outputs(subject.graph, feed, subject.outputs)
        comparison = compare_engines(
            entrants,
            feed,
            plan,
            model=str(first),
            shapes=options.shapes,
            expected=expected,
            progress=update,
        )
        split = None
        timing = comparison.contestants[0].timing
        if advice and timing is not None and subject.target == "cpu":
            found = profile_program(
                subject.program, feed, num_threads=plan.num_threads, duration_s=_PROFILE_S, progress=update
            )
            split = BoundSplit.of(found, 1e6 * timing.median_ms)
    lines = _advice(comparison, split)
    if as_json:
        document = {
            **common.model_facts(subject.sha256, subject.target),
            **comparison.to_json(),
            "options": {"shapes": dict(options.shapes), "threads": plan.num_threads, "seed": options.seed},
            "bound": None if split is None else split.to_json(),
            "advice": lines,
        }
        for entry, contestant in zip(document["contestants"], comparison.contestants, strict=True):
            entry["percentiles_ms"] = _percentiles(contestant, percents)
        print_json("bench", document)
    else:
        _print(comparison, percents)
        for line in lines:
            hint(line)
    failed = next((c.error for c in comparison.contestants if c.error), None)
    if failed is not None:
        raise UsageError(failed)
    slower = [
        c.label
        for c in comparison.contestants[1:]
        if (ratio := comparison.ratio(c.label)) is not None and ratio.verdict is Verdict.SLOWER
    ]
    if fail_if_slower and slower:
        raise BudgetExceeded(f"{first}: slower than {', '.join(slower)}; `tilewright explain` says why.")


def _percents(text: str) -> tuple[float, ...]:
    try:
        percents = tuple(float(part) for part in text.split(","))
    except ValueError:
        percents = ()
    if not percents or not all(0 <= p <= 100 for p in percents):
        raise UsageError(f"percentile {text!r}: give numbers from 0 to 100, such as 50,90,99.")
    return percents


def _peers(text: str) -> tuple[str, ...]:
    from tilewright.benchmark.engines import PEERS, is_installed

    peers = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in peers:
        if name not in PEERS:
            raise UsageError(f"--vs {name}: unknown engine; known are {', '.join(PEERS)}.")
        if not is_installed(name):
            raise UsageError(f"--vs {name}: is not installed: pip install 'tilewright[peers]'.")
    if len(set(peers)) != len(peers):
        raise UsageError(f"--vs {text}: name each engine once.")
    return peers


@dataclass(frozen=True, slots=True, eq=False)
class _Subject:
    """The first model: `graph` is what the reference runs, `program` what was compiled."""

    graph: Graph
    program: Program
    inputs: Sequence[TensorInfo]
    outputs: tuple[str, ...]
    sha256: str
    target: str

    @classmethod
    def of_model(cls, model: Model, program: Program) -> _Subject:
        return cls(
            model.graph,
            program,
            model.summary().inputs,
            tuple(o.name for o in model.graph.outputs),
            model.sha256,
            "cpu",
        )

    @classmethod
    def of_artifact(cls, compiled: CompiledModel) -> _Subject:
        outputs = tuple(o.name for o in compiled.get_outputs())
        program, digest = compiled.program, compiled.model_sha256
        return cls(program.graph, program, compiled.get_inputs(), outputs, digest, compiled.target)


class _Workshop:
    """Makes an artifact of every model, with the options of the command line."""

    def __init__(self, folder: Path, options: Any, update: Any) -> None:
        self._folder = folder
        self._options = options
        self._update = update

    def entrants(self, paths: Sequence[Path], peers: Sequence[str]) -> tuple[tuple[Entrant, ...], _Subject]:
        """All who take part, and what the first of them is."""
        from tilewright.benchmark import Entrant

        labels = ["tilewright"] if len(paths) == 1 else [f"{i + 1}: {p.name}" for i, p in enumerate(paths)]
        found: list[Entrant] = []
        subject: _Subject | None = None
        for number, (path, label) in enumerate(zip(paths, labels, strict=True)):
            entrant, one = self._entrant(path, label, number)
            found.append(entrant)
            subject = subject or one
        assert subject is not None
        return (*found, *(Entrant(peer, peer, paths[0]) for peer in peers)), subject

    def _entrant(self, path: Path, label: str, number: int) -> tuple[Entrant, _Subject]:
        import tilewright as tw
        from tilewright.benchmark import Entrant

        if common.is_artifact(path):
            opened = tw.open(path)
            return Entrant(label, "tilewright", path), _Subject.of_artifact(opened)
        loaded = tw.load(path, shapes=self._options.shapes)
        compiled = tw.compile(loaded, options=self._options, progress=self._update)
        artifact = compiled.save(self._folder / f"{number}.tw")
        spent_s = sum(compiled.phase_s.values())
        return Entrant(label, "tilewright", artifact, spent_s), _Subject.of_model(loaded, compiled.program)


def _percentiles(contestant: Contestant, percents: Sequence[float]) -> dict[str, float] | None:
    timing = contestant.timing
    return None if timing is None else {f"{p:g}": timing.percentile_ms(p) for p in percents}


def _print(comparison: Comparison, percents: Sequence[float]) -> None:
    rows: list[tuple[str, ...]] = []
    for contestant in comparison.contestants:
        name = contestant.label
        if contestant.version and contestant.label == contestant.engine:
            name = f"{contestant.engine} {contestant.version}"
        if contestant.timing is None:
            rows.append((name, *("-" for _ in percents), "-", "-", "-", "failed"))
            continue
        times = (format_ms(contestant.timing.percentile_ms(p)) for p in percents)
        ratio = None if contestant is comparison.contestants[0] else comparison.ratio(contestant.label)
        error = "" if contestant.max_error is None else f"{contestant.max_error:.1e}"
        against = "" if ratio is None else f"{ratio.median:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"
        verdict = "" if ratio is None else f"{comparison.contestants[0].label} is {ratio.verdict}"
        if ratio is not None and ratio.verdict in ("tie", "can't tell"):
            verdict = str(ratio.verdict)
        rows.append((name, *times, error, format_bytes(contestant.peak_bytes), against, verdict))
    first = comparison.contestants[0]
    runs = 0 if first.timing is None else len(first.timing.runs_ms)
    num_threads = comparison.num_threads
    print_table(
        ("engine", *(f"p{p:g}" for p in percents), "error", "memory", "its time over the first's", "verdict"),
        rows,
        title=f"{comparison.model}: {num_threads} thread{'s' if num_threads > 1 else ''}, "
        f"{comparison.num_rounds} rounds in turns, {runs} runs",
        right=tuple(range(1, len(percents) + 3)),
    )
    say(str(comparison.machine))


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
