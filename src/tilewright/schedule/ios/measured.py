"""Stages by measurement: the search plans on estimates, measures what it planned, and plans again.

A stage that was measured costs what it took over its subgraphs one after another; another one what the model
says of it, and somewhat less. When the cheapest schedule has measured stages only, there is no more to ask.
Some simple schedules are measured first. What is cheapest by measured stages alone races the sequential
schedule as a whole, and is taken if it wins.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tilewright.bit_sets import bits
from tilewright.planning import Budget, Meter
from tilewright.progress import checkpoint
from tilewright.schedule.base import MeasuredStages, NotMeasured, Stage, StageBench, single
from tilewright.schedule.ios.costs import Bounds, ModelCosts, StageCosts, stage_of
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.stages import StageChoice

logger = logging.getLogger(__name__)

# Stages that were not measured are believed to take less than their estimates, so that what promises most has
# its turn: as much less as the lower quartile of those that were measured did, within these limits.
_LEAST_CORRECTION, _MOST_CORRECTION = 0.7, 0.95
# What a stage must save of the time of its operators: less is no more than noise.
_LEAST_GAIN = 0.01
# What really runs may take less than a model's bound.
_BOUND_SHARE = 0.9
INTERRUPTED = "interrupted"
"""Why nothing was measured: the user ended the search before."""
_FAILED_RATIO = 1e6  # what a stage that failed costs: nothing is dearer
_NUM_RACED = 2
# Of the time of the search what is kept for the races in the end.
_SHARE_OF_RACES = 0.2
# Of what is left, for one plan, for the rounds of one schedule, and for the last race.
_SHARE_OF_PLAN = 0.25
_SHARE_OF_SCHEDULE = 1 / 16
_SHARE_OF_RACE = 0.8
_LEAST_S = 0.001
_SCHEDULES_PER_EVALUATION = 0.01


@dataclass(slots=True, eq=False)
class MeasuredCosts:
    """Stage costs as far as they are known: see above. A `StageCosts`, which the search asks as any other.

    With `only_measured` other stages save nothing.
    """

    model: ModelCosts
    graph: StageGraph
    alone_ns: tuple[float, ...]
    ratios: dict[Hashable, list[float]] = field(default_factory=dict)
    bounds: Bounds = field(init=False)
    _estimates: dict[Hashable, float] = field(init=False, default_factory=dict)
    only_measured: bool = field(init=False, default=False)
    _correction: float = field(init=False, default=_MOST_CORRECTION)

    def __post_init__(self) -> None:
        by_kind: dict[Hashable, list[float]] = {}
        kinds = [self.signature(_alone(i)) for i in range(self.graph.num_operators)]
        for kind, time_ns in zip(kinds, self.alone_ns, strict=True):
            by_kind.setdefault(kind, []).append(time_ns)
        # Equal operators cost the same.
        self.alone_ns = tuple(sum(by_kind[kind]) / len(by_kind[kind]) for kind in kinds)
        self.bounds = self._bounds()

    def _bounds(self) -> Bounds:
        """The model's, stretched to what each operator took alone, and lower. They prove nothing."""
        model = self.model.bounds
        scales = [_BOUND_SHARE * self._scale(1 << i) for i in range(self.graph.num_operators)]
        return replace(
            model,
            stage_ns=model.stage_ns * min(scales, default=1.0),
            chain_ns=tuple(ns * scale for ns, scale in zip(model.chain_ns, scales, strict=True)),
            areas_ns=tuple(
                tuple(ns * scale for ns, scale in zip(area, scales, strict=True)) for area in model.areas_ns
            ),
        )

    def signature(self, choice: StageChoice) -> Hashable:
        """The model's."""
        return self.model.signature(choice)

    def bound_ns(self, choice: StageChoice) -> float:
        """The model's of a merged kernel, stretched as its operators are."""
        if choice.strategy == "merge":
            return min(self.model.bound_ns(choice) * self._scale(choice.mask), self.cost_ns(choice))
        return self.bounds.stage_bound_ns(self.graph, choice)

    def with_cores(self, choice: StageChoice) -> Iterable[StageChoice]:
        """As the model gives cores out."""
        return self.model.with_cores(choice)

    def cost_ns(self, choice: StageChoice) -> float:
        """What the search is told: measured or estimated, and so much more that stages have to pay."""
        ratio = self.ratio(choice)
        if ratio is None:
            ratio = 1.0 if self.only_measured else self.estimated_ratio(choice) * self._correction
        margin = 0.0 if _is_alone(choice) else _LEAST_GAIN
        return self._alone_ns(choice.mask) * (ratio + margin)

    def taken_ns(self, choice: StageChoice) -> float:
        """What a stage took that was measured."""
        return self._alone_ns(choice.mask) * (self.ratio(choice) or 0.0)

    def ratio(self, choice: StageChoice) -> float | None:
        """What a stage was seen to take over its operators alone."""
        if _is_alone(choice):
            return 1.0
        seen = self.ratios.get(self.signature(choice))
        return None if seen is None else sum(seen) / len(seen)

    def estimated_ratio(self, choice: StageChoice) -> float:
        """The same by the model."""
        key = self.signature(choice)
        if key not in self._estimates:
            alone_ns = sum(self.model.cost_ns(_alone(i)) for i in bits(choice.mask))
            self._estimates[key] = self.model.cost_ns(choice) / alone_ns if alone_ns else 1.0
        return self._estimates[key]

    def note(self, choice: StageChoice, ratio: float) -> None:
        """A measurement of a stage."""
        self.ratios.setdefault(self.signature(choice), []).append(ratio)

    def learn(self, seen: Iterable[StageChoice]) -> None:
        """Correct the model by stages that were measured."""
        factors = sorted(
            ratio / self.estimated_ratio(choice)
            for choice in seen
            if (ratio := self.ratio(choice)) is not None and ratio < _FAILED_RATIO
        )
        if factors:
            lower = factors[(len(factors) - 1) // 4]
            self._correction = min(max(lower, _LEAST_CORRECTION), _MOST_CORRECTION)

    def _alone_ns(self, mask: int) -> float:
        return sum(self.alone_ns[i] for i in bits(mask))

    def _scale(self, mask: int) -> float:
        estimate_ns = sum(self.model.cost_ns(_alone(i)) for i in bits(mask))
        return self._alone_ns(mask) / estimate_ns if estimate_ns else 1.0


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """The stages to run, and how they were found.

    `cost_ns` is the sum of the measured times of the stages, `sequential_ns` that of the operators alone.
    `is_closed`: by these times, and by estimates where there are none, nothing costs less. `won`: the
    schedule beat the sequential one in a race.
    """

    stages: tuple[Stage, ...]
    cost_ns: float
    sequential_ns: float
    num_measured: int
    num_remembered: int
    num_schedules: int
    seconds: float
    is_closed: bool
    won: bool
    was_cut_off: bool
    is_interrupted: bool

    @property
    def text(self) -> str:
        """The outcome in words."""
        each_s = self.seconds / self.num_measured if self.num_measured else 0.0
        words = [
            f"{self.num_measured} stages measured, {each_s:.2g} s each, in {self.num_schedules} schedules",
            f"{self.num_remembered} remembered" if self.num_remembered else "",
            f"stages take {self.cost_ns:g} ns, operators one after another {self.sequential_ns:g} ns",
            "no schedule costs less by measured stages and, of others, estimates"
            if self.is_closed
            else "stages that promise to cost less were not measured",
            "faster in a race" if self.won else "",
        ]
        return "; ".join(word for word in words if word)


Plan = Callable[[StageCosts, Budget], Sequence[StageChoice]]
"""The cheapest stages by some costs, within a budget."""


@dataclass(slots=True, eq=False)
class MeasuredSearch:
    """One search. `seeds` are schedules to measure first."""

    graph: StageGraph
    model: ModelCosts
    bench: StageBench
    plan: Plan
    meter: Meter
    seeds: Sequence[Sequence[StageChoice]] = ()
    clock: Callable[[], float] = time.monotonic
    _costs: MeasuredCosts = field(init=False)
    _schedules: list[tuple[float, tuple[StageChoice, ...]]] = field(init=False, default_factory=list)
    _seen: dict[Hashable, StageChoice] = field(init=False, default_factory=dict)
    _num_remembered: int = field(init=False, default=0)
    _num_runs: int = field(init=False, default=0)
    _num_alone: int = field(init=False, default=0)
    _is_interrupted: bool = field(init=False, default=False)
    _run_s: float = field(init=False, default=0.0)

    def run(self) -> MeasuredAnswer | NotMeasured:
        """The answer, or why nothing can be measured. An interrupt ends it with the best that is known."""
        started_s = self.clock()
        try:
            first = self._measure_sequential()
        except KeyboardInterrupt:
            return NotMeasured(INTERRUPTED, "it was interrupted")
        if isinstance(first, NotMeasured):
            return first
        closed, won = False, False
        best = self._sequential
        try:
            for seed in self.seeds:
                if self._may_go_on():
                    self._measure(tuple(seed))
            closed = self._search()
            best, won = self._raced()
        except KeyboardInterrupt:
            self._is_interrupted = True
            # No race was run to its end: what was measured as a whole and took least is the best known.
            whole, stages = min(self._schedules, default=(1.0, best), key=lambda entry: entry[0])
            best = stages if whole < 1.0 else best
        costs = self._costs
        return MeasuredAnswer(
            tuple(map(stage_of, best)),
            sum(map(costs.taken_ns, best)),
            sum(costs.alone_ns),
            self._num_alone + len(self._seen),
            self._num_remembered,
            self._num_runs,
            self.clock() - started_s,
            closed,
            won,
            self._is_interrupted or self.meter.cut_off,
            self._is_interrupted,
        )

    @property
    def _sequential(self) -> tuple[StageChoice, ...]:
        return tuple(_alone(i) for i in range(self.graph.num_operators))

    def _measure_sequential(self) -> MeasuredStages | NotMeasured:
        answer = self._asked([single(i) for i in range(self.graph.num_operators)])
        if isinstance(answer, MeasuredStages):
            self._costs = MeasuredCosts(self.model, self.graph, answer.alone_ns)
            self._num_alone = len({self.model.signature(choice) for choice in self._sequential})
            self._num_runs = 1
        return answer

    def _search(self) -> bool:
        """Plan and measure by turns; whether nothing is left that promises to cost less."""
        while True:
            checkpoint()
            self._costs.learn(self._seen.values())
            stages = self._planned()
            if not self._unknown(stages):
                return not self.meter.cut_off
            if not self._may_go_on():
                return False
            self._measure(stages)

    def _planned(self) -> tuple[StageChoice, ...]:
        """The cheapest stages by what is known. What an earlier search knew of them is remembered."""
        while True:
            left_s, most = self.meter.left_s, self.meter.budget.max_evaluations
            share = Budget(most, None if left_s is None else max(_SHARE_OF_PLAN * left_s, _LEAST_S))
            stages = tuple(self.plan(self._costs, share))
            num_remembered = sum(map(self._remember, self._unknown(stages)))
            self._num_remembered += num_remembered
            if not num_remembered:
                return stages

    def _remember(self, choice: StageChoice) -> bool:
        remembered = self.bench.remembered(stage_of(choice))
        if remembered is None:
            return False
        self._costs.note(choice, _FAILED_RATIO if isinstance(remembered, NotMeasured) else remembered)
        return True

    def _unknown(self, stages: Iterable[StageChoice]) -> list[StageChoice]:
        return [choice for choice in stages if self._costs.ratio(choice) is None]

    def _may_go_on(self) -> bool:
        """Whether there is time for one more schedule, with what the races need kept."""
        most = max(2.0, self.meter.budget.max_evaluations * _SCHEDULES_PER_EVALUATION)
        left_s, whole_s = self.meter.left_s, self.meter.budget.deadline_s
        if left_s is None or whole_s is None:
            return self._num_runs < most
        if left_s - self._run_s > _SHARE_OF_RACES * whole_s:
            return True
        self.meter.cut_off = True
        return False

    def _measure(self, stages: tuple[StageChoice, ...]) -> None:
        """Measure a schedule. Of one that fails the stage is looked for whose fault it is."""
        started_s = self.clock()
        answer = self._asked([stage_of(choice) for choice in stages])
        self._num_runs += 1
        self._run_s = max(self._run_s, self.clock() - started_s)
        if isinstance(answer, MeasuredStages):
            self._note(stages, answer)
            return
        suspects = self._unknown(stages)
        logger.info("a schedule %s (%s): %d stages are suspects", answer.reason, answer.detail, len(suspects))
        if len(suspects) <= 1:
            # Without a suspect something else is wrong with it than a stage: it is not looked at again.
            for choice in suspects:
                self._costs.note(choice, _FAILED_RATIO)
                self.bench.failed(stage_of(choice), answer)
            return
        half = len(suspects) // 2
        for part in (suspects[:half], suspects[half:]):
            self._measure(tuple(self._without(stages, [c for c in suspects if c not in part])))

    def _asked(self, stages: Sequence[Stage]) -> MeasuredStages | NotMeasured:
        """What the bench says; where that is no number, what it says when it is asked again."""
        for _ in range(2):
            left_s = self.meter.left_s
            answer = self.bench.measure(stages, None if left_s is None else _SHARE_OF_SCHEDULE * left_s)
            if isinstance(answer, NotMeasured) or _has_times(answer):
                return answer
        return NotMeasured("no-times", "it was measured twice, both times with times that are no numbers")

    def _without(
        self, stages: Iterable[StageChoice], left_out: Sequence[StageChoice]
    ) -> Iterator[StageChoice]:
        """The stages, some of them operator by operator."""
        for choice in stages:
            if choice in left_out:
                yield from (_alone(i) for i in bits(choice.mask))
            else:
                yield choice

    def _note(self, stages: tuple[StageChoice, ...], measured: MeasuredStages) -> None:
        self._schedules.append((measured.whole_ns / measured.sequential_ns, stages))
        times: dict[Hashable, list[float]] = {}
        for choice, stage_ns in zip(stages, measured.stages_ns, strict=True):
            if _is_alone(choice):
                continue
            alone_ns = sum(measured.alone_ns[i] for i in bits(choice.mask))
            key = self.model.signature(choice)
            entry = times.setdefault(key, [0.0, 0.0])
            entry[0] += stage_ns
            entry[1] += alone_ns
            self._seen.setdefault(key, choice)
        for key, (stage_ns, alone_ns) in times.items():
            self._costs.note(self._seen[key], stage_ns / alone_ns if alone_ns else 1.0)

    def _raced(self) -> tuple[tuple[StageChoice, ...], bool]:
        """The cheapest by measured stages, and as a whole, race the sequential one: the first that wins."""
        self._costs.only_measured = True
        by_stages = self._planned()
        by_whole = sorted(self._schedules, key=lambda entry: entry[0])
        raced: list[tuple[StageChoice, ...]] = []
        for stages in (by_stages, *(stages for _, stages in by_whole)):
            if stages not in raced and not all(map(_is_alone, stages)) and len(raced) < _NUM_RACED:
                raced.append(stages)
        for number, stages in enumerate(raced):
            left_s = self.meter.left_s
            most_s = None if left_s is None else _SHARE_OF_RACE * left_s / (len(raced) - number)
            if self.bench.race([stage_of(choice) for choice in stages], most_s):
                return stages, True
        return self._sequential, False


def _has_times(measured: MeasuredStages) -> bool:
    times_ns = (*measured.stages_ns, *measured.alone_ns)
    is_whole = all(math.isfinite(t) and t >= 0 for t in times_ns)
    return is_whole and all(math.isfinite(t) and t > 0 for t in (measured.whole_ns, measured.sequential_ns))


def _alone(i: int) -> StageChoice:
    return StageChoice(((i,),), "alone")


def _is_alone(choice: StageChoice) -> bool:
    return choice.strategy == "alone"
