"""Code of one model measured in turns with other code of it, by a process that may crash or hang."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import InputError
from tilewright.options import Accuracy
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.system.worker_process import NoWorker
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.tuning.workers import Effort, Failed, MeasureRequest, MeasureResult, MeasuringPool, PackedCode

MAX_WEIGHT_BYTES = 2 << 30
"""What the weights of all plans that are loaded at a time take, each having a copy."""

TOLERANCES: Mapping[Accuracy, float] = {"strict": 1e-5, "default": 1e-4, "relaxed": 1e-3, "fast": 3e-2}
"""Errors of outputs, over their largest magnitude, that another way to compute the same may make."""

# What loading a candidate may take, and in runs of the plain code what measuring it may take.
_LOAD_S = 20.0
_MAX_RUNS = 2000
# The first run on another machine, of which nothing is known.
_ONCE = Effort(min_rounds=1, max_rounds=1, num_warm_up=1)
_FIRST_S = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class ModelBench:
    """Measures candidates for the code of one model.

    `expected` are the plain code's outputs for `feed`, from which a candidate's may differ by `tolerance`;
    one that takes longer than `limit_s` hangs.
    """

    pool: MeasuringPool
    feed: Mapping[str, Array]
    expected: Mapping[str, Array]
    tolerance: float
    limit_s: float

    @classmethod
    def of(cls, plain: CpuCode, pool: MeasuringPool, elsewhere: PackedCode | None = None) -> ModelBench:
        """The bench of the model that this code runs, which is run here for its outputs.

        `elsewhere` is code of the same model for the pool's machines, which this one does not run: a run of
        it there says what a run may take.

        Raises:
            InputError: operators refuse random inputs; other errors as of a run.
            NoWorker: the code for other machines does not run there, or not rightly.
        """
        options = plain.program.options
        executable = plain.load(options.num_threads)
        try:
            feed = random_feed(plain.program)
            try:
                outputs = executable.run(feed)
            except InputError:
                feed = random_feed(plain.program, largest_integer=0)
                outputs = executable.run(feed)
            expected = {name: array.copy() for name, array in outputs.items()}
            start_s = time.perf_counter()
            executable.run(feed)
            limit_s = _LOAD_S + _MAX_RUNS * (time.perf_counter() - start_s)
        finally:
            executable.close()
        tolerance = TOLERANCES[options.accuracy]
        if elsewhere is not None:
            request = MeasureRequest(elsewhere, feed, expected, tolerance, None, _ONCE, _FIRST_S)
            (first,) = pool.measure([request])
            if isinstance(first, Failed):
                why = f"{first.reason}: {first.detail}"
                raise NoWorker(f"the model does not run there as it does here ({why})")
            limit_s = _LOAD_S + _MAX_RUNS * min(first.candidate.whole_ns) * 1e-9
        return cls(pool, feed, expected, tolerance, limit_s)

    def measure(
        self, candidates: Iterable[PackedCode], beside: PackedCode | None, effort: Effort
    ) -> Iterator[MeasureResult]:
        """What each candidate takes, and the code `beside` it in the same rounds; or why it has no time.

        A candidate is taken when its turn comes, so that it may be compiled until then.
        """
        return self.pool.measure(
            MeasureRequest(code, self.feed, self.expected, self.tolerance, beside, effort, self.limit_s)
            for code in candidates
        )


def random_feed(program: Program, largest_integer: int = 1) -> dict[str, Array]:
    """Inputs to measure with: normal floats, and for integers zeros and ones, which index most tables.

    Zero alone indexes all of them.
    """
    rng = np.random.default_rng(program.options.seed)
    feed: dict[str, Array] = {}
    for value in program.graph.inputs:
        if value.dtype.is_float:
            feed[value.name] = rng.standard_normal(value.shape).astype(value.dtype.numpy)
        else:
            feed[value.name] = rng.integers(0, largest_integer + 1, value.shape).astype(value.dtype.numpy)
    return feed
