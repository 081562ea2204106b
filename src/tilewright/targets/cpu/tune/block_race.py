"""A race of fused blocks: cuts of a network into kernels run in turns, and each region takes its fastest cut.

Cuts differ in which layers one kernel computes block by block, and in which blocks. All regions are timed in
the same runs, by stamps around steps, so that as many runs are needed as there are cuts, not combinations.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from tilewright.arrays import Array
from tilewright.targets.cpu.forms.choose import Cuts, Group
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.lower.lowered import LoweredModel, LoweredStage
from tilewright.targets.cpu.tune.bench import TOLERANCES
from tilewright.targets.cpu.tune.race import race_steps
from tilewright.tuning.samples import is_faster

logger = logging.getLogger(__name__)

Rounds = Sequence[Sequence[float]]
"""Times of steps in ns, for each round."""


def fastest_groups(
    cuts: Cuts, codes: Sequence[CpuCode], feed: Mapping[str, Array], seconds: float
) -> tuple[Group, ...]:
    """The groups of each region that were clearly faster than the estimates' choice, which else stays.

    `codes` are of the first choices of `cuts`, in their order, with stamps.
    """
    options = codes[0].program.options
    with contextlib.ExitStack() as stack:
        executables = [code.load(options.num_threads) for code in codes]
        for executable in executables:
            stack.callback(executable.close)
        expected, *others = (executable.run(feed) for executable in executables)
        is_right = [True, *(_agree(expected, other, TOLERANCES[options.accuracy]) for other in others)]
        if not all(is_right):
            logger.warning("a cut into blocks made other values than the estimates' choice; it is left out")
        times = race_steps(executables, feed, seconds)
    measured = [
        (choice, _by_region(cuts, code.lowered, rounds))
        for choice, code, rounds, right in zip(cuts.choices, codes, times, is_right, strict=False)
        if right
    ]
    return _fastest(cuts, measured)


def _fastest(
    cuts: Cuts, measured: Sequence[tuple[tuple[Group, ...], Sequence[Sequence[float]]]]
) -> tuple[Group, ...]:
    """The groups that a race of choices gives, from the times of each in every region, one for each round."""
    found: list[Group] = []
    for number, region in enumerate(cuts.regions()):
        (own, usual), *others = ((choice, rounds[number]) for choice, rounds in measured)
        faster = [(median(ns), choice) for choice, ns in others if is_faster(ns, usual)]
        taken = min(faster, key=lambda pair: pair[0])[1] if faster else own
        found += [group for group in taken if region.issuperset(group.members)]
    return cuts.compatible(found)


def _by_region(cuts: Cuts, lowered: LoweredModel, rounds: Rounds) -> list[list[float]]:
    """The times of each region, one for each round."""
    element_of = {node: element.number for element in cuts.elements.all for node in element.nodes}
    region_of = {member: number for number, region in enumerate(cuts.regions()) for member in region}
    times = [[0.0] * len(rounds) for _ in cuts.regions()]
    for step, ns in zip(lowered.steps, zip(*rounds, strict=True), strict=True):
        if isinstance(step, LoweredStage) and step.launches[0].nodes:
            number = region_of.get(element_of[step.launches[0].nodes[-1]])
            if number is not None:
                times[number] = [a + b for a, b in zip(times[number], ns, strict=True)]
    return times


def _agree(expected: Mapping[str, Array], found: Mapping[str, Array], tolerance: float) -> bool:
    """Whether outputs differ by no more than another way to compute the same may, relative to the largest."""
    for name, array in expected.items():
        if not np.issubdtype(array.dtype, np.floating):
            if not np.array_equal(array, found[name]):
                return False
            continue
        most = float(np.max(np.abs(array), initial=0.0))
        if not np.allclose(found[name], array, rtol=0.0, atol=tolerance * most, equal_nan=True):
            return False
    return True
