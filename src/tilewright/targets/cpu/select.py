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
from tilewright.targets.cpu.matrix import (
    lower_matrix,
    match_matrix,
    matrix_candidates,
    matrix_gain,
    undivided,
)
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
# Products of bfloat16 pieces on the matrix unit, by accuracy: three leave 2^-17 of each factor out, one 2^-8.
MATRIX_PRODUCTS: dict[Accuracy, int | None] = {"strict": None, "default": 3, "fast": 1}
# Whether weights that few rows share may be rounded to 24 bits, which errs as three products do.
MAY_ROUND_WEIGHTS: dict[Accuracy, bool] = {"strict": False, "default": True, "fast": True}
# An estimate below this may be wrong about which is faster.
MIN_WINOGRAD_GAIN = 1.15
MIN_MATRIX_GAIN = 1.15


def lower_product(
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    *,
    constants: frozenset[OperandKey],
    next_local: int,
    accuracy: Accuracy,
    choices: Choices = NO_CHOICES,
    divide: bool = True,
    cached: frozenset[OperandKey] = frozenset(),
) -> tuple[Kernel, ...] | Declined:
    """Kernels of a contraction nest, which carry its signature and choice, or why it is none.

    Without a choice, and for one that the nest or the accuracy does not allow, the template with the least
    estimated time computes it. Unless it may `divide` them, all chunks run on one thread: chunks that repeat
    each other's work do not pay then. `cached` are constants that lie in a private cache already: reading
    fewer bits of them saves nothing.
    """
    may_round = MAY_ROUND_WEIGHTS[accuracy] and not any(a.operand.key in cached for a in nest.reads)
    signature = product_signature(nest, layouts, constants)
    choice = choices.get(signature)
    kernels: tuple[Kernel, ...] | Declined = Declined("nothing is chosen")
    if choice is not None:
        kernels = _lower_as(choice, nest, layouts, isa, constants, next_local, accuracy, may_round)
    if isinstance(kernels, Declined):
        choice = None
        kernels = _lower_by_estimate(nest, layouts, isa, constants, next_local, accuracy, divide, may_round)
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
    divide: bool,
    may_round: bool,
) -> tuple[Kernel, ...] | Declined:
    if product_of(nest) is not None:
        return lower_integer(nest, layouts, isa, constants=constants, next_local=next_local)
    for choice in _templates(nest, layouts, isa, accuracy, divide):
        kernels = _lower_as(choice, nest, layouts, isa, constants, next_local, accuracy, may_round)
        if not isinstance(kernels, Declined):
            return kernels
    return lower_contraction(
        nest,
        layouts,
        isa,
        constants=constants,
        next_local=next_local,
        may_round=may_round,
    )


def _templates(
    nest: Nest, layouts: Layouts, isa: Isa, accuracy: Accuracy, divide: bool = True
) -> tuple[Choice, ...]:
    """Templates that are worth it beside the direct kernel, the best estimate first; cuts are left open."""
    tile, gain = _winograd_tile(nest, layouts, isa, accuracy)
    winograd = () if tile is None else (Choice.of("winograd", tile=tile),)
    num_products = MATRIX_PRODUCTS[accuracy]
    if num_products is None or not isa.has_matrix_unit:
        return winograd
    problem = match_matrix(nest, layouts)
    if isinstance(problem, Declined):
        return winograd
    matrix_is_best = matrix_gain(problem, num_products, isa) >= max(MIN_MATRIX_GAIN, gain)
    if not matrix_is_best:
        return winograd
    whole = None if divide else undivided(problem, num_products, isa)
    return (whole or Choice.of("matrix", products=num_products), *winograd)


def product_candidates(
    nest: Nest, layouts: Layouts, isa: Isa, *, constants: frozenset[OperandKey], accuracy: Accuracy
) -> tuple[Choice, ...]:
    """Ways to compute a nest, best estimate first; none for a nest that is no contraction.

    Each gives the kernels of `lower_product` with that choice. Templates alternate, so that the first few
    hold the best of each; the one with the best estimate has two at a time.
    """
    direct = contraction_candidates(nest, layouts, isa, constants=constants)
    lists = [direct]
    num_products = MATRIX_PRODUCTS[accuracy]
    if num_products is not None and isa.has_matrix_unit:
        matrix = match_matrix(nest, layouts)
        if not isinstance(matrix, Declined) and matrix.contraction.b.operand.key in constants:
            lists.append(matrix_candidates(matrix, num_products, isa))
    problem = match_winograd(nest, layouts)
    if not isinstance(problem, Declined) and problem.contraction.b.operand.key in constants:
        lists += [winograd_candidates(problem, tile, isa) for tile in WINOGRAD_TILES[accuracy]]
    preferred = [c.algorithm for c in _templates(nest, layouts, isa, accuracy)]
    preferred.append(("contraction", None))

    def rank(found: tuple[Choice, ...]) -> int:
        algorithm = found[0].algorithm
        return preferred.index(algorithm) if algorithm in preferred else len(preferred)

    return _alternating(sorted(filter(None, lists), key=rank))


def _alternating(lists: list[tuple[Choice, ...]]) -> tuple[Choice, ...]:
    """The first two of the first list, the first of each other, the next two of the first list, ..."""
    if not lists:
        return ()
    best, *others = lists
    turns = max(-(-len(best) // 2), *map(len, others)) if others else len(best)
    found: list[Choice] = []
    for turn in range(turns):
        found += best[2 * turn : 2 * turn + 2]
        found += [other[turn] for other in others if turn < len(other)]
    return tuple(found)


def _winograd_tile(nest: Nest, layouts: Layouts, isa: Isa, accuracy: Accuracy) -> tuple[int | None, float]:
    """The tile with the largest estimated gain over the direct kernel, if it is worth it, and the gain."""
    problem = match_winograd(nest, layouts)
    if isinstance(problem, Declined):
        return None, 1.0
    gains = {tile: winograd_gain(problem, tile, isa) for tile in WINOGRAD_TILES[accuracy]}
    tile = max(gains, key=lambda t: gains[t], default=None)
    return (tile, gains[tile]) if tile is not None and gains[tile] >= MIN_WINOGRAD_GAIN else (None, 1.0)


def _lower_as(
    choice: Choice,
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    constants: frozenset[OperandKey],
    next_local: int,
    accuracy: Accuracy,
    may_round: bool,
) -> tuple[Kernel, ...] | Declined:
    match choice.template:
        case "contraction":
            return lower_contraction(
                nest,
                layouts,
                isa,
                constants=constants,
                next_local=next_local,
                choice=choice,
                may_round=may_round,
            )
        case "winograd":
            tile = choice.get("tile")
            if tile is None or tile not in WINOGRAD_TILES[accuracy]:
                return Declined(f"{choice} is not {accuracy} enough")
            return lower_winograd(nest, layouts, isa, constants=constants, tile=tile, choice=choice)
        case "matrix":
            num_products = choice.get("products")
            if num_products is None or num_products != MATRIX_PRODUCTS[accuracy]:
                return Declined(f"{choice} is not {accuracy}")
            return lower_matrix(
                nest, layouts, isa, constants=constants, num_products=num_products, choice=choice
            )
    return Declined(f"unknown template {choice.template!r}")
