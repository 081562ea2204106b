"""The template of Winograd's minimal filtering."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from tilewright.ir.nest import Nest
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.integer.dot import dot_of
from tilewright.targets.cpu.product.winograd.generate import generate_winograd
from tilewright.targets.cpu.product.winograd.match import WinogradProblem, match_winograd
from tilewright.targets.cpu.product.winograd.plan import (
    chosen_plan,
    plan_winograd,
    winograd_cycles,
    winograd_gain,
    winograd_neighbours,
)
from tilewright.targets.cpu.template import Context, Estimate, Kernels
from tilewright.tuning import Choice

# Output tiles by accuracy: 2x2 errs as the direct kernel does, 4x4 about three times as much.
_TILES: dict[Accuracy, tuple[int, ...]] = {"strict": (), "default": (2, 4), "relaxed": (2, 4), "fast": (2, 4)}


@dataclass(frozen=True, slots=True)
class WinogradTemplate:
    """F(2, 3) and F(4, 3); conditions of use are in `generate.py`.

    Parameters: the `tile`, `num_blocks` of tiles, `panel_parts` of the cut into chunks.
    """

    name: ClassVar[str] = "winograd"

    def match(self, work: Nest, context: Context) -> WinogradProblem | Declined:
        """The nest as a 3x3 convolution with constant weights."""
        problem = match_winograd(work, context.layouts, context.constants)
        if isinstance(problem, Declined):
            return problem
        if problem.zeros is not None:
            return self._of_bytes(problem, context)
        if problem.contraction.b.operand.key not in context.constants:
            return Declined("weights that are computed at run time")
        if problem.groups is not None and problem.outputs.extent % context.isa.lanes("float"):
            return Declined(f"groups of {problem.outputs.extent} channels, which are no whole vectors")
        return problem

    def _of_bytes(self, problem: WinogradProblem, context: Context) -> WinogradProblem | Declined:
        isa = context.isa
        if isa.has_matrix_unit:
            return Declined("tiles of bytes are faster")
        if dot_of(isa, isa.lanes("i32")).name == "widened":
            return Declined("no instruction that multiplies pairs of 16 bits")
        if problem.contraction.b.operand.key not in context.small_sums:
            return Declined("sums that 26 bits may not hold")
        return problem if problem.groups is None else Declined("groups of channels of bytes")

    def algorithms(self, problem: WinogradProblem, context: Context) -> tuple[Choice, ...]:
        """One for each tile."""
        return tuple(Choice.of(self.name, tile=tile) for tile in _tiles(problem, context))

    def estimate(self, problem: WinogradProblem, choice: Choice, context: Context) -> Estimate:
        """Products, transforms and the bytes of weights."""
        tile = choice.get("tile")
        assert tile is not None
        plan = chosen_plan(problem, choice, context.isa)
        assert not isinstance(plan, Declined)
        tiles = _tiles(problem, context)
        gains = {x: winograd_gain(problem, x, context) for x in tiles if x <= tile}
        lead = gains[tile] / gains[min(gains)] if tile != min(gains) else inf
        return Estimate(winograd_cycles(problem, plan, context), gains[tile], lead)

    def neighbours(self, problem: WinogradProblem, algorithm: Choice, context: Context) -> tuple[Choice, ...]:
        """Other numbers of blocks and panel groups."""
        tile = algorithm.get("tile")
        assert tile is not None
        return winograd_neighbours(problem, tile, context.isa)

    def lower(self, problem: WinogradProblem, choice: Choice, context: Context) -> Kernels | Declined:
        """The kernel."""
        sizes = chosen_plan(problem, choice, context.isa)
        if isinstance(sizes, Declined):
            return sizes
        return (generate_winograd(plan_winograd(problem, sizes, context.isa), context.isa),)


def _tiles(problem: WinogradProblem, context: Context) -> tuple[int, ...]:
    """Sizes of tiles that the accuracy allows: of bytes, which are exact, the one that gains."""
    return (4,) if problem.zeros is not None else _TILES[context.accuracy]


WINOGRAD = WinogradTemplate()
