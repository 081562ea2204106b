"""Figure 11: CoSA's blocks of threads on a K80, beside what a tuner of 50 trials and a fixed block give."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

from tilewright.cost.options import TIMELOOP
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.block_view import block_limits, block_view
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop
from tilewright.loops.mapping import Mapping as LoopMapping
from tilewright.loops.problem import Problem
from tilewright.mapping.base import Mapper
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.gpu import evaluate_blocks, solve_blocks
from tilewright.mapping.random import Random
from tilewright.planning import Budget, Infeasible
from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.cosa.bench import Bench, mean
from tilewright.reproduce.cosa.paper import FIGURE_11_OVER_TVM, FIGURE_11_SECONDS

_GPU = "k80"
_NUM_TRIALS = 50
_SIDE = 16
COSA, TRIALS, FIXED = "CoSA", f"best of {_NUM_TRIALS} random", "16 x 16 block"
_MAPPERS: Mapping[str, Mapper] = {COSA: Cosa("paper"), TRIALS: Random(_NUM_TRIALS)}


@dataclass(frozen=True, slots=True)
class _Time:
    """Cycles of a layer, and the seconds that the search for them took."""

    cycles: int
    seconds: float


def figure_11(bench: Bench) -> Exhibit:
    """Speed-up over the stand-ins for TVM, layer by layer of the first network."""
    network, problems = next(iter(bench.layers().items()))
    machine = load_preset(_GPU)
    names = [problem.name for problem in problems]
    count = len(problems)
    times = {
        what: bench.each(_searched, problems, [machine] * count, [mapper] * count)
        for what, mapper in _MAPPERS.items()
    }
    times[FIXED] = bench.each(_of_fixed_block, problems, [machine] * count)
    ratios = {
        other: [there.cycles / ours.cycles for there, ours in zip(times[other], times[COSA], strict=True)]
        for other in (TRIALS, FIXED)
    }
    seconds = {what: statistics.fmean(t.seconds for t in times[what]) for what in _MAPPERS}
    return Exhibit(
        "Figure 11",
        f"{network} on a K80: CoSA over a tuner of {_NUM_TRIALS} trials, and over a fixed block",
        "Cycles by our estimates of the described K80, measured on no GPU. TVM, whose tuner has 50 trials of "
        "a layer in the paper and learns from them, has two stand-ins: the best of as many valid blocks at "
        "random, which is weaker, and what a kernel written by hand may have: a block of 16 channels by 16 "
        "pixels, outputs padded to blocks and blocks to the multiprocessors. CoSA is the "
        "paper's formulation with the weights for Simba: the paper adjusts them by a micro-benchmark that it "
        "does not give. Its seconds here include six padded variants of a layer.",
        (
            Figure(f"CoSA over {TRIALS}, geometric mean", mean(ratios[TRIALS]), FIGURE_11_OVER_TVM),
            Figure(f"CoSA over {FIXED}, geometric mean", mean(ratios[FIXED]), FIGURE_11_OVER_TVM),
            Figure("seconds for a layer, CoSA", seconds[COSA], FIGURE_11_SECONDS[0], Basis.MEASURED),
            Figure(
                f"seconds for a layer, {TRIALS} (TVM there)",
                seconds[TRIALS],
                FIGURE_11_SECONDS[1],
                Basis.MEASURED,
            ),
        ),
        bar_chart(
            "CoSA over others", "times", names, [Bars(f"over {o}", tuple(r)) for o, r in ratios.items()]
        ),
        ("layer", *(f"cycles, {what}" for what in times), *(f"over {other}" for other in ratios)),
        tuple(
            (
                name,
                *(f"{found[place].cycles:,}" for found in times.values()),
                *(f"{found[place]:.2f}" for found in ratios.values()),
            )
            for place, name in enumerate(names)
        ),
        basis=Basis.SIMULATED,
    )


def _searched(problem: Problem, machine: Machine, mapper: Mapper) -> _Time:
    answer = solve_blocks(mapper, problem, machine, "latency", TIMELOOP, Budget())
    if isinstance(answer, Infeasible):
        raise InfeasibleMapping(f"{problem.name}: {answer}")
    return _Time(answer.cost.cycles, answer.seconds)


def _of_fixed_block(problem: Problem, machine: Machine) -> _Time:
    """The faster of both places for the loop over the input's channels, as far as they fit."""
    found = []
    for outermost in (False, True):
        with suppress(InfeasibleMapping):
            mapping = fixed_block(problem, machine, outermost)
            found.append(evaluate_blocks(problem, machine, mapping)[0].cycles)
    return _Time(min(found), 0.0)


def fixed_block(problem: Problem, machine: Machine, are_channels_outermost: bool = True) -> LoopMapping:
    """Blocks of 16 channels by 16 pixels, outputs padded to them; each thread has one output.

    Shared memory holds some of the input's channels at a time; all of them lie in the level outside it, or,
    where their loop is in the outermost level, no more either.
    """
    limits = block_limits(machine)
    view = block_view(machine, _SIDE * _SIDE).machine
    shared = view.level(limits.shared)
    spread_at = view.levels[view.levels.index(shared) + 1]
    threads = {"K": _SIDE, **_pixels(problem)}
    blocks = {dim: _turns(problem.extents[dim], threads.get(dim, 1)) for dim in problem.output.dims()}
    at_once = _spread(blocks, view.num_instances(shared))
    sums = {dim: extent for dim, extent in problem.dims if dim not in blocks}
    part = _channels_at_a_time(problem, threads, sums, (shared.capacity_bytes or 0) * 8 // shared.word_bits)
    outside = {dim: _turns(count, at_once[dim]) for dim, count in blocks.items()}
    channels = _loops({"C": sums["C"] // part})
    in_turns = _loops(outside)
    return LoopMapping(
        (
            LevelLoops(view.levels[-1].name, (*in_turns, *channels) if are_channels_outermost else in_turns),
            LevelLoops(spread_at.name, () if are_channels_outermost else channels, _loops(at_once)),
            LevelLoops(limits.shared, _loops({**sums, "C": part}), _loops(threads)),
        )
    )


def _loops(factors: Mapping[str, int]) -> tuple[Loop, ...]:
    return tuple(Loop(dim, factor) for dim, factor in factors.items() if factor > 1)


def _pixels(problem: Problem) -> dict[str, int]:
    """16 pixels as rows by columns with the least padding; of equal ones the longest rows."""
    p, q = problem.extents["P"], problem.extents["Q"]
    shapes = [(rows, _SIDE // rows) for rows in (1, 2, 4, 8, 16)]
    rows, columns = min(shapes, key=lambda shape: _turns(p, shape[0]) * _turns(q, shape[1]))
    return {"P": rows, "Q": columns}


def _spread(blocks: Mapping[str, int], num_cores: int) -> dict[str, int]:
    """How many blocks of each dim run at once, so that the multiprocessors take the fewest turns."""
    counts = [range(1, min(count, num_cores) + 1) for count in blocks.values()]
    chosen = min(
        (at_once for at_once in product(*counts) if math.prod(at_once) <= num_cores),
        key=lambda at_once: math.prod(map(_turns, blocks.values(), at_once)),
    )
    return dict(zip(blocks, chosen, strict=True))


def _turns(count: int, at_once: int) -> int:
    return -(-count // at_once)


def _channels_at_a_time(
    problem: Problem, threads: Mapping[str, int], sums: Mapping[str, int], words: int
) -> int:
    """The most channels of which a block's inputs and weights fit in its shared memory."""
    for channels in sorted((n for n in range(1, sums["C"] + 1) if sums["C"] % n == 0), reverse=True):
        tile = {**threads, **sums, "C": channels}
        if sum(operand.num_words(tile) for operand in problem.operands) <= words:
            return channels
    return 1
