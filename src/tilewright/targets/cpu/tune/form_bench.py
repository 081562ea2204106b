"""The bench on which forms are measured: whole models, run by a process that may crash or hang."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import field
from typing import Protocol

from tilewright.errors import TilewrightError
from tilewright.hardware.probe import num_threads_default, resolve_threads
from tilewright.ir.fuse import FusedNodes
from tilewright.partition.form import Form
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import LoweredModel, LoweredPartition
from tilewright.targets.cpu.lower.storage import Arrangements
from tilewright.targets.cpu.repeats import Repeats
from tilewright.targets.cpu.tune.bench import MAX_WEIGHT_BYTES, ModelBench
from tilewright.targets.cpu.tune.form_sites import FormSites
from tilewright.targets.cpu.tune.measuring import packed
from tilewright.tuning.form_plan import KernelTimes, Paired
from tilewright.tuning.workers import Effort, Failed, MeasureResult, PackedCode, Samples

logger = logging.getLogger(__name__)

Forms = Mapping[str, Form]

_MAX_PLANS = 5
_COMPARED = Effort(min_rounds=4, max_rounds=40, seconds=0.3)
_CONFIRMED = Effort(min_rounds=8, max_rounds=200, seconds=0.9)
_RACED = Effort(min_rounds=9, max_rounds=100, seconds=1.2)


class Generator(Protocol):
    """What tuning needs of `CpuTarget`."""

    def generate(  # noqa: D102
        self,
        program: Program,
        *,
        profile: bool = False,
        arrangements: Arrangements | None = None,
        lowering: LoweredPartition | None = None,
    ) -> CpuCode: ...

    def code_here(self, code: CpuCode) -> CpuCode: ...  # noqa: D102


@dataclass(frozen=True, slots=True, eq=False)
class _Built:
    """A plan as code: with stamps, so that each kernel has a time, or without."""

    lowered: LoweredModel
    code: PackedCode


@dataclass(slots=True, eq=False)
class FormModelBench:
    """Measures plans of one model; `fuse` and `repeats` remember what was generated for it before."""

    target: Generator
    plain: CpuCode
    sites: FormSites
    bench: ModelBench
    fuse: FusedNodes = field(default_factory=FusedNodes)
    repeats: Repeats = field(default_factory=Repeats)
    _arrangements: Arrangements = field(default_factory=lambda: Arrangements(MAX_WEIGHT_BYTES))
    _kept: tuple[tuple[object, bool], _Built] | None = None  # the last reference

    @property
    def max_plans(self) -> int:
        """Plans that are compiled before they are measured, on each machine one after another."""
        return _MAX_PLANS * self.bench.pool.num_machines

    def profile(self, plan: Forms) -> KernelTimes | Failed:
        """The times of a plan's kernels."""
        built = self._reference(plan, stamps=True)
        if isinstance(built, Failed):
            return built
        (result,) = self.bench.measure([built.code], None, _COMPARED)
        times = self._paired(result, built, None)
        return times if isinstance(times, Failed) else times.plan

    def compare(
        self, reference: Forms, plans: Sequence[Forms], *, for_long: bool = False
    ) -> Sequence[Paired | Failed]:
        """The times of each plan's kernels, beside those of the reference; from more runs if `for_long`."""
        beside = self._reference(reference, stamps=True)
        if isinstance(beside, Failed):
            return [beside] * len(plans)
        built: list[_Built | Failed] = []

        def made() -> Iterator[PackedCode]:
            for candidate in self._all_built(plans):
                built.append(candidate)
                if isinstance(candidate, _Built):
                    yield candidate.code

        effort = _CONFIRMED if for_long else _COMPARED
        results = iter(list(self.bench.measure(made(), beside.code, effort)))
        return [
            candidate if isinstance(candidate, Failed) else self._paired(next(results), candidate, beside)
            for candidate in built
        ]

    def _all_built(self, plans: Sequence[Forms]) -> Iterator[_Built | Failed]:
        """Plans as code, in order. Where a core is left, the next is made while the last is measured."""
        threads = resolve_threads(self.plain.program.options.num_threads)
        if self.bench.pool.num_machines > 1 or threads >= num_threads_default():
            yield from [self._built(plan, stamps=True) for plan in plans]
            return
        with ThreadPoolExecutor(1) as ahead:
            building = [
                ahead.submit(copy_context().run, self._built, plan, stamps=True) for plan in plans[:1]
            ]
            for plan in plans[1:]:
                candidate = building.pop().result()
                building.append(ahead.submit(copy_context().run, self._built, plan, stamps=True))
                yield candidate
            for last in building:
                yield last.result()

    def race(self, incumbent: Forms, plan: Forms) -> tuple[Sequence[float], Sequence[float]] | Failed:
        """Whole-model times in ns of both, one for each round: the least of a block of runs."""
        before, after = (self._built(forms, stamps=False) for forms in (incumbent, plan))
        for built in (before, after):
            if isinstance(built, Failed):
                return built
        assert isinstance(before, _Built) and isinstance(after, _Built)  # noqa: PT018
        (result,) = self.bench.measure([after.code], before.code, _RACED)
        if isinstance(result, Failed):
            return result
        assert result.baseline is not None
        return result.baseline.whole_ns, result.candidate.whole_ns

    def _paired(self, result: MeasureResult, candidate: _Built, beside: _Built | None) -> Paired | Failed:
        if isinstance(result, Failed):
            return result
        times = self._times(candidate, result.candidate)
        reference = times if beside is None else self._times(beside, result.baseline)
        if times is None or reference is None:
            return Failed("crashed", "it gave times of other steps than its code has")
        return Paired(times, reference)

    def _times(self, built: _Built, samples: Samples | None) -> KernelTimes | None:
        """The times of kernels; None where a machine says others than those of the code's steps."""
        steps_ns = () if samples is None else samples.steps_ns
        if not steps_ns or len(steps_ns[0]) != len(built.lowered.steps):
            return None
        return self.sites.by_site(built.lowered, steps_ns)

    def _reference(self, plan: Forms, *, stamps: bool) -> _Built | Failed:
        """A plan that others run beside: the last one is kept."""
        key = frozenset(plan.items()), stamps
        if self._kept is None or self._kept[0] != key:
            built = self._built(plan, stamps=stamps)
            if isinstance(built, Failed):
                return built
            self._kept = key, built
        return self._kept[1]

    def _built(self, plan: Forms, *, stamps: bool) -> _Built | Failed:
        """A plan as code, or why it cannot be made."""
        try:
            program = self.sites.planned(plan)
            lowering = lower_partition(
                program.partition,
                self.plain.isa,
                accuracy=program.options.accuracy,
                fuse=self.fuse,
                repeats=self.repeats,
            )
            code = self.target.generate(
                program, profile=stamps, arrangements=self._arrangements, lowering=lowering
            )
            return _Built(code.lowered, packed(code))
        except (TilewrightError, ValueError) as error:
            logger.info("a plan cannot be made: %s", error)
            return Failed("declined", " ".join(str(error).split()))
