"""Which template computes a contraction, and how: by estimate, or as a measurement chose.

Without a choice only estimates decide, so that a selection takes no time and every machine selects alike.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.nest import Nest
from tilewright.options import Accuracy
from tilewright.targets.cpu.contraction import (
    contraction_candidates,
    lower_contraction,
)
from tilewright.targets.cpu.integer import lower_integer, product_of
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layouts, OperandKey
from tilewright.targets.cpu.products import product_signature
from tilewright.targets.cpu.winograd import (
    lower_winograd,
    match_winograd,
    winograd_candidates,
    winograd_gain,
)
from tilewright.tuning import NO_CHOICES, Choice, Choices

# Output tiles by accuracy: 2x2 errs as the direct kernel does, 4x4 about three times as much.
WINOGRAD_TILES: dict[Accuracy, tuple[int, ...]] = {"strict": (), "default": (2, 4), "fast": (2, 4)}
# An estimate below this may be wrong about which is faster.
MIN_WINOGRAD_GAIN = 1.15


def lower_product(
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    *,
    constants: frozenset[OperandKey],
    next_local: int,
    accuracy: Accuracy,
    choices: Choices = NO_CHOICES,
) -> tuple[Kernel, ...] | Declined:
    """Kernels of a contraction nest, which carry its signature and choice, or why it is none.

    Without a choice, and for one that the nest or the accuracy does not allow, the template with the least
    estimated time computes it.
    """
    signature = product_signature(nest, layouts, constants)
    choice = choices.get(signature)
    kernels: tuple[Kernel, ...] | Declined = Declined("nothing is chosen")
    if choice is not None:
        kernels = _lower_as(choice, nest, layouts, isa, constants, next_local, accuracy)
    if isinstance(kernels, Declined):
        choice = None
        kernels = _lower_by_estimate(nest, layouts, isa, constants, next_local, accuracy)
    if isinstance(kernels, Declined):
        return kernels
    return tuple(replace(kernel, signature=signature, choice=choice) for kernel in kernels)


def _lower_by_estimate(
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    constants: frozenset[OperandKey],
    next_local: int,
    accuracy: Accuracy,
) -> tuple[Kernel, ...] | Declined:
    if product_of(nest) is not None:
        return lower_integer(nest, layouts, isa, constants=constants, next_local=next_local)
    tile = _winograd_tile(nest, layouts, isa, accuracy)
    if tile is not None:
        kernels = lower_winograd(nest, layouts, isa, constants=constants, tile=tile)
        if not isinstance(kernels, Declined):
            return kernels
    return lower_contraction(nest, layouts, isa, constants=constants, next_local=next_local)


def product_candidates(
    nest: Nest, layouts: Layouts, isa: Isa, *, constants: frozenset[OperandKey], accuracy: Accuracy
) -> tuple[Choice, ...]:
    """Ways to compute a nest, best estimate first; none for a nest that is no contraction.

    Each gives the kernels of `lower_product` with that choice. Templates alternate, so that the first few
    hold the best of each.
    """
    direct = contraction_candidates(nest, layouts, isa, constants=constants)
    problem = match_winograd(nest, layouts)
    if isinstance(problem, Declined) or problem.contraction.b.operand.key not in constants:
        return direct
    best = _winograd_tile(nest, layouts, isa, accuracy)
    tiles = sorted(WINOGRAD_TILES[accuracy], key=lambda tile: (tile != best, tile))
    lists = [winograd_candidates(problem, tile, isa) for tile in tiles]
    return _alternating([direct, *lists] if best is None else [*lists, direct])


def _alternating(lists: list[tuple[Choice, ...]]) -> tuple[Choice, ...]:
    """The first of each list, then the second of each, ..."""
    most = max(map(len, lists))
    return tuple(found[i] for i in range(most) for found in lists if i < len(found))


def _winograd_tile(nest: Nest, layouts: Layouts, isa: Isa, accuracy: Accuracy) -> int | None:
    """The tile with the largest estimated gain over the direct kernel, if it is worth it."""
    problem = match_winograd(nest, layouts)
    if isinstance(problem, Declined):
        return None
    gains = {tile: winograd_gain(problem, tile, isa) for tile in WINOGRAD_TILES[accuracy]}
    tile = max(gains, key=lambda t: gains[t], default=None)
    return tile if tile is not None and gains[tile] >= MIN_WINOGRAD_GAIN else None


def _lower_as(
    choice: Choice,
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    constants: frozenset[OperandKey],
    next_local: int,
    accuracy: Accuracy,
) -> tuple[Kernel, ...] | Declined:
    match choice.template:
        case "contraction":
            return lower_contraction(
                nest, layouts, isa, constants=constants, next_local=next_local, choice=choice
            )
        case "winograd":
            tile = choice.get("tile")
            if tile is None or tile not in WINOGRAD_TILES[accuracy]:
                return Declined(f"{choice} is not {accuracy} enough")
            return lower_winograd(nest, layouts, isa, constants=constants, tile=tile, choice=choice)
    return Declined(f"unknown template {choice.template!r}")
