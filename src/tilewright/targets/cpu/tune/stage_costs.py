"""What stages take on this processor: whole models run in a process of their own, with stamps around steps.

So a stage is measured as it really runs: in the same executable, on the same threads, with weights as cold.
The sequential schedule runs beside it in the same rounds. What was seen of a stage is filed under its
kernels, as a site of the tuning database; how they are grouped is the candidate.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Protocol

from tilewright.cost.base import Measurement
from tilewright.errors import BudgetExceeded, ModelRejected, UnsupportedOp, UsageError
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.schedule.base import MeasuredStages, NotMeasured, Stage, merges, single
from tilewright.system.worker_process import NoWorker
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.lower.arrange import Barriers, staged_steps
from tilewright.targets.cpu.lower.lowered import HostOperator, KernelLaunch, LoweredPartition
from tilewright.targets.cpu.tune.bench import ModelBench
from tilewright.targets.cpu.tune.measuring import measuring_pool, packed
from tilewright.tuning.database import TuningDatabase
from tilewright.tuning.observation import (
    Failure,
    FailureReason,
    JsonObject,
    Observation,
    PlanContext,
    candidate_key,
)
from tilewright.tuning.samples import is_faster, typical
from tilewright.tuning.workers import Effort, Failed, Measured, MeasuringPool, PackedCode, Samples

# Without a limit, and with the most time.
_STAGES, _LONG_STAGES = Effort(5, 16, seconds=1.0), Effort(5, 60, seconds=5.0)
_RACE, _LONG_RACE = Effort(9, 60, seconds=2.5), Effort(9, 200, seconds=10.0)
_KEPT_FAILURES = (FailureReason.CRASHED, FailureReason.HUNG, FailureReason.WRONG_VALUES)
_MAX_WEIGHT_BYTES = 1 << 30
"""Two copies of the weights are in the process that measures, and as much is on its way."""


class Generate(Protocol):
    """Makes code of a placed program, with stamps around its steps or without."""

    def __call__(self, program: Program, options: Options, *, stamps: bool) -> CpuCode: ...  # noqa: D102


@dataclass(frozen=True, slots=True, eq=False)
class _Reference:
    """The sequential schedule: with stamps and without; the stages of its steps; what measures beside it."""

    stamped: PackedCode
    plain: PackedCode
    numbers: tuple[int | None, ...]
    bench: ModelBench


@dataclass(slots=True, eq=False)
class CpuStageBench:
    """See `StageBench`. `cache` is the folder of kernels and findings; without one nothing is remembered."""

    partition: Partition
    barriers: Barriers
    context: PlanContext
    lowered: Callable[[Partition], LoweredPartition]
    make: Callable[[Sequence[Stage]], Program]
    generate: Generate
    cache: Path | None
    pool: Callable[[], MeasuringPool] = measuring_pool
    _open_pool: MeasuringPool | None = field(init=False, default=None)
    _folder: tempfile.TemporaryDirectory[str] | None = field(init=False, default=None)
    _reference: _Reference | None = field(init=False, default=None)
    _database: TuningDatabase = field(init=False)
    _kernels: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self._database = TuningDatabase.in_folder(self.cache)

    def remembered(self, stage: Stage) -> float | NotMeasured | None:
        """See `StageBench`."""
        site, candidate = self._filed(stage)
        key = candidate_key(candidate)
        for failure in self._database.failures(self.context, site):
            if failure.candidate_key == key:
                return NotMeasured(str(failure.reason), failure.detail)
        seen = self._database.observations(self.context, site)
        return next((o.ratio for o in seen if o.candidate_key == key), None)

    def failed(self, stage: Stage, failure: NotMeasured) -> None:
        """See `StageBench`. What could not even be tried says nothing of the next time."""
        if failure.reason in _KEPT_FAILURES:
            site, candidate = self._filed(stage)
            kept = Failure(site, candidate, FailureReason(failure.reason), failure.detail, time.time())
            self._database.record(self.context, [kept])

    def measure(self, stages: Sequence[Stage], most_s: float | None) -> MeasuredStages | NotMeasured:
        """See `StageBench`."""
        try:
            reference = self._made_reference()
            if _is_sequential(stages):
                code, numbers, baseline = reference.stamped, reference.numbers, None
            else:
                code, numbers = self._stamped(self.make(stages))
                baseline = reference.stamped
            answer = self._ask(code, baseline, _effort(_STAGES, _LONG_STAGES, most_s))
        except (ModelRejected, UnsupportedOp, UsageError, BudgetExceeded, NoWorker) as error:
            return NotMeasured(str(FailureReason.DECLINED), str(error))
        if isinstance(answer, Failed):
            return NotMeasured(answer.reason, answer.detail)
        stages_ns = _by_stage(answer.candidate, numbers, len(stages))
        beside = answer.candidate if answer.baseline is None else answer.baseline
        alone_ns = _by_stage(beside, reference.numbers, len(self.partition.subgraphs))
        # Where everything was disturbed, the least is the best that is known of what nobody disturbs.
        time_of = min if answer.is_disturbed else typical
        self._record(stages, stages_ns, list(map(typical, alone_ns)))
        return MeasuredStages(
            tuple(map(time_of, stages_ns)),
            tuple(map(time_of, alone_ns)),
            time_of(answer.candidate.whole_ns),
            time_of(beside.whole_ns),
        )

    def race(self, stages: Sequence[Stage], most_s: float | None) -> bool | None:
        """See `StageBench`; without stamps."""
        reference = self._made_reference()
        try:
            code = self._packed(self.make(stages), stamps=False)
            answer = self._ask(code, reference.plain, _effort(_RACE, _LONG_RACE, most_s))
        except (ModelRejected, UnsupportedOp, UsageError, BudgetExceeded, NoWorker):
            return None
        if not isinstance(answer, Measured) or answer.baseline is None:
            return None
        return is_faster(answer.candidate.whole_ns, answer.baseline.whole_ns)

    def close(self) -> None:
        """End the process that measures, and remove what was compiled for it where nothing is cached."""
        if self._open_pool is not None:
            self._open_pool.close()
            self._open_pool = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        self._reference = None

    def _ask(self, code: PackedCode, baseline: PackedCode | None, effort: Effort) -> Measured | Failed:
        return next(self._made_reference().bench.measure([code], baseline, effort))

    def _made_reference(self) -> _Reference:
        if self._reference is None:
            stages = [single(i) for i in range(len(self.partition.subgraphs))]
            program = self.make(stages)
            code = self._generated(program, stamps=False)
            if code.weight_bytes > _MAX_WEIGHT_BYTES:
                raise UsageError(
                    f"the model's constants take {code.weight_bytes} bytes, more than {_MAX_WEIGHT_BYTES}, "
                    "of which the process that measures has several copies."
                )
            plain = packed(code)
            self._open_pool = self._open_pool or self.pool()
            bench = ModelBench.of(code, self._open_pool)
            stamped, numbers = self._stamped(self.make(stages))
            self._reference = _Reference(stamped, plain, numbers, bench)
        return self._reference

    def _stamped(self, program: Program) -> tuple[PackedCode, tuple[int | None, ...]]:
        """Code with stamps, and the number of the stage of each of its steps."""
        lowered = self.lowered(program.partition)
        numbers = tuple(number for number, _ in staged_steps(lowered, program.schedule, self.barriers))
        return self._packed(program, stamps=True), numbers

    def _packed(self, program: Program, *, stamps: bool) -> PackedCode:
        return packed(self._generated(program, stamps=stamps))

    def _generated(self, program: Program, *, stamps: bool) -> CpuCode:
        options = replace(program.options, timeout_s=None)
        if self.cache is None:
            # Schedules share kernels, which are compiled once.
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="tilewright-")
            options = replace(options, no_cache=False, cache_dir=Path(self._folder.name))
        return self.generate(program, options, stamps=stamps)

    def _record(
        self, stages: Sequence[Stage], stages_ns: Sequence[list[float]], alone_ns: Sequence[float]
    ) -> None:
        """Keep what was seen of stages of more than one subgraph."""
        kept: list[Observation] = []
        names: dict[str, str] = {}
        for stage, samples in zip(stages, stages_ns, strict=True):
            ids = [i.subgraph_id for i in stage.instances()]
            baseline_ns = sum(alone_ns[i] for i in ids)
            if len(ids) < 2 or not baseline_ns or not min(samples):
                continue
            site, candidate = self._filed(stage)
            measured = Measurement.of(samples, "a stage of a whole model, beside the sequential one")
            kept.append(Observation(site, candidate, measured, baseline_ns, time.time()))
            names[site] = ", ".join(self.partition.subgraphs[i].nodes[0].name for i in ids)
        if kept:
            self._database.record(self.context, kept, names)

    def _filed(self, stage: Stage) -> tuple[str, JsonObject]:
        """The key of the work of a stage, and how it is grouped: subgraphs by their place in the work."""
        if not self._kernels:
            work = self.lowered(self.partition).work
            self._kernels = tuple(_digest(list(map(_facts, launches))) for launches in work)
        ids = sorted((i.subgraph_id for i in stage.instances()), key=lambda i: (self._kernels[i], i))
        place = {i: number for number, i in enumerate(ids)}
        groups = sorted(
            ([place[i.subgraph_id] for i in group.instances], group.num_cores) for group in stage.groups
        )
        candidate = {
            "strategy": "merge" if merges(stage) else self.barriers,
            "groups": [group for group, _ in groups],
            "num_cores": [num_cores for _, num_cores in groups],
        }
        return f"stage:{_digest([self._kernels[i] for i in ids])}", candidate


def _effort(usual: Effort, longest: Effort, most_s: float | None) -> Effort:
    """An effort that ends in time, as far as there are rounds enough by then."""
    return usual if most_s is None else replace(longest, seconds=max(0.0, min(longest.seconds, most_s)))


def _by_stage(samples: Samples, numbers: Sequence[int | None], num_stages: int) -> list[list[float]]:
    """Times of each stage, one for each round: those of its steps together."""
    times = [[0.0] * len(samples.steps_ns) for _ in range(num_stages)]
    for round_number, steps_ns in enumerate(samples.steps_ns):
        for number, time_ns in zip(numbers, steps_ns, strict=True):
            if number is not None:
                times[number][round_number] += time_ns
    return times


def _is_sequential(stages: Sequence[Stage]) -> bool:
    return all(len(list(stage.instances())) == 1 for stage in stages) and [
        i.subgraph_id for stage in stages for i in stage.instances()
    ] == list(range(len(stages)))


def _facts(launch: KernelLaunch | HostOperator) -> tuple[str, str, int]:
    """What a kernel is: its product, a digest of its code, and in how many chunks it runs."""
    if isinstance(launch, HostOperator):
        return "host", launch.node.op_type, 1
    return launch.kernel.signature, launch.kernel.symbol, launch.kernel.num_chunks


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
