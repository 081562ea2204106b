"""Summed loops as instructions on bytes walk them: in runs of neighbouring bytes of A, several at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import Dot


@dataclass(frozen=True, slots=True)
class Words:
    """Loops around runs, and the loops of a run, whose steps lie side by side in A.

    A run is read in words of four steps, or rows of a tile of up to `reach_bytes`; the last word is filled
    with products of zero.
    """

    outer: tuple[StridedLoop, ...]
    run: tuple[StridedLoop, ...]
    reach_bytes: int = STEPS_PER_WORD

    @property
    def run_length(self) -> int:
        """Steps in a run."""
        return prod(x.extent for x in self.run)

    @property
    def filled_length(self) -> int:
        """Steps of a run in whole words."""
        return -(-self.run_length // STEPS_PER_WORD) * STEPS_PER_WORD

    @property
    def step_bytes(self) -> int:
        """Bytes of A that one instruction reads along a run: a word, or a row of a tile."""
        return min(self.reach_bytes, self.filled_length)

    @property
    def steps_per_run(self) -> int:
        """Instructions that read a run."""
        return -(-self.filled_length // self.step_bytes)

    @property
    def packed_steps(self) -> tuple[int, ...]:
        """Which step of the run each packed byte of a column belongs to; -1 for none.

        The last row of a tile would reach beyond the run: it begins earlier instead, and what it reads again
        is multiplied by zero.
        """
        positions: list[int] = []
        for number in range(self.steps_per_run):
            fresh = number * self.step_bytes
            first = min(fresh, self.filled_length - self.step_bytes)
            positions += [
                p if fresh <= p < self.run_length else -1 for p in range(first, first + self.step_bytes)
            ]
        return tuple(positions)

    @property
    def repeated_words(self) -> tuple[int, int]:
        """The first packed word of the last instruction of a run, and how many it reads for a second time."""
        fresh = (self.steps_per_run - 1) * self.step_bytes
        first = self.filled_length - self.step_bytes
        return fresh // STEPS_PER_WORD, (fresh - first) // STEPS_PER_WORD

    @property
    def run_words(self) -> int:
        """Packed words of a run."""
        return self.steps_per_run * self.step_bytes // STEPS_PER_WORD

    @property
    def num_runs(self) -> int:
        """Runs of one output element."""
        return prod(x.extent for x in self.outer)

    @property
    def num_words(self) -> int:
        """Words of all summed steps."""
        return self.run_words * self.num_runs

    @property
    def num_steps(self) -> int:
        """Summed products of one output element."""
        return self.run_length * self.num_runs


def words_of(summed: Sequence[StridedLoop], dot: Dot) -> Words:
    """The innermost summed loops that walk through neighbouring bytes of A are the run.

    >>> x = StridedLoop(3, a=40), StridedLoop(2, a=8), StridedLoop(8, a=1)
    >>> words_of(x, "vnni").run_length
    16
    """
    outer, run, length = list(summed), list[StridedLoop](), 1
    while outer and outer[-1].a == length and not dot.endswith("by column"):
        run.insert(0, outer.pop())
        length *= run[0].extent
    reach_bytes = TILE_BYTES_PER_ROW if dot == "byte tiles" else STEPS_PER_WORD
    return Words(tuple(outer), tuple(run), reach_bytes)
