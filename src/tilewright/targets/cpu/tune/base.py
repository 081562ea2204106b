"""What tuning is given, whatever it searches: a target that makes code, a context, inputs to run on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from tilewright.hardware.probe import resolve_threads
from tilewright.options import Accuracy
from tilewright.planning import Meter
from tilewright.private_files import default_cache_directory
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.steps import TuningInfo
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.lower.lowered import LoweredPartition
from tilewright.targets.cpu.lower.storage import Arrangements
from tilewright.targets.cpu.tune.context import context_on
from tilewright.tuning import TunedPlan, TuningDatabase
from tilewright.tuning.observation import PlanContext

Array = np.ndarray[Any, Any]

MAX_WEIGHT_BYTES = 2 << 30
"""What the weights of all plans that are loaded at a time take, each having a copy."""

TOLERANCES: Mapping[Accuracy, float] = {"strict": 1e-5, "default": 1e-4, "relaxed": 1e-3, "fast": 3e-2}
"""Errors of outputs, over their largest magnitude, that another way to compute the same may make."""


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


@dataclass(slots=True, eq=False)
class ModelTuner(ABC):
    """Searches ways to make one model, and keeps what it finds; `plain` is what the estimates made of it."""

    target: Generator
    plain: CpuCode
    database: TuningDatabase

    @property
    def program(self) -> Program:
        """The untuned program."""
        return self.plain.program

    @property
    def context(self) -> PlanContext:
        """Everything but the model that decides a measurement."""
        options = self.program.options
        return context_on(self.plain.isa, options.accuracy, resolve_threads(options.num_threads))

    @property
    @abstractmethod
    def model(self) -> str:
        """Digest of what is chosen: models of one digest share their plans."""

    def stored(self) -> TunedPlan | None:
        """The plan that an earlier search found."""
        return self.database.plan(self.context, self.model)

    @abstractmethod
    def describe(self, plan: TunedPlan) -> TuningInfo:
        """A stored plan with the measurements that led to it."""

    @abstractmethod
    def search(self, meter: Meter, *, afresh: bool, progress: Progress) -> TuningInfo:
        """Search and keep what is found; without `afresh` earlier measurements count."""


def database_of(code: CpuCode) -> TuningDatabase:
    """The database in the cache that a program's options name."""
    options = code.program.options
    return TuningDatabase.in_folder(
        None if options.no_cache else options.cache_dir or default_cache_directory()
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
