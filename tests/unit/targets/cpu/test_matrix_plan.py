"""Plans of products on the matrix unit: what tiles and planes hold."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.kernels import group_of
from tests.unit.targets.cpu.test_matrix import EDGES, layouts_of

from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.pieces import split_bfloat16
from tilewright.targets.cpu.product.amx import NUM_TILES
from tilewright.targets.cpu.product.matrix import match_matrix
from tilewright.targets.cpu.product.matrix.choose import choose_plan
from tilewright.targets.cpu.product.matrix.plan import MatrixPlan
from tilewright.targets.cpu.product.matrix.tiles import TERMS, Block, multiply
from tilewright.targets.cpu.product.plan import Dot
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import PTR, Val


def plans() -> list[MatrixPlan]:
    found: list[MatrixPlan] = []
    for make in EDGES.values():
        graph = make()
        group = group_of(graph)
        problem = match_matrix(group.nests[0], layouts_of(group))
        assert not isinstance(problem, Declined)
        found += [choose_plan(problem, terms, isa_by_name("avx512")) for terms in TERMS.values()]
    return found


def test_every_tap_of_every_block_reads_within_the_planes() -> None:
    for plan in plans():
        grid = plan.grid
        if not grid.has_window:
            continue
        furthest_line = max(grid.line.tap_step * t // grid.line.step for t in range(grid.line.num_taps))
        furthest_row = max(grid.row.tap_step * t // grid.row.step for t in range(grid.row.num_taps))
        last = plan.num_blocks * plan.block.num_positions - 1
        assert last + furthest_line * grid.pitch + furthest_row < plan.plane_positions


def test_the_zeros_between_lines_serve_both() -> None:
    (plan, *_) = [p for p in plans() if p.grid.has_window and p.grid.row.num_taps == 3]
    assert plan.grid.width == plan.grid.row.extent + 2
    assert plan.grid.pitch == plan.grid.width - 1


@pytest.mark.parametrize(
    ("dot", "block"),
    [
        (dot, block)
        for dot, terms in TERMS.items()
        for block in (Block(1, 1), Block(2, 2), Block(4, 1), Block(1, 4), Block(2, 1))
        if block == Block(1, 1) or not terms.is_bytes  # of digits a block has one tile
    ],
)
def test_every_product_of_pieces_is_added_once_from_tiles_that_hold_them(dot: Dot, block: Block) -> None:
    terms = TERMS[dot]
    e = Emitter()
    names: dict[str, tuple[str, int, int]] = {}

    def tile(side: str, piece: int, index: int) -> Val:
        name = f"%{side}{piece}x{index}"
        names[name] = (side, piece, index)
        return Val(name, PTR)

    lines: list[str] = []
    e.line = lines.append  # type: ignore[assignment, method-assign]
    multiply(e, block, terms, lambda p, i: tile("a", p, i), lambda q, j: tile("b", q, j))
    registers: dict[int, tuple[str, int, int]] = {}
    added: list[tuple[int, int, int, int]] = []
    for line in lines:
        operands = [part.split()[-1] for part in line[line.index("(") + 1 : line.rindex(")")].split(",")]
        if "tileloadd64" in line:
            assert block.rows * block.columns * terms.num_sums <= int(operands[0]) < NUM_TILES
            registers[int(operands[0])] = names[operands[1]]
        else:
            sums, a, b = map(int, operands)
            (side_a, p, i), (side_b, q, j) = registers[a], registers[b]
            place, sum_of_tile = divmod(sums, terms.num_sums)
            assert (side_a, side_b, i * block.columns + j) == ("a", "b", place)
            assert not terms.is_bytes or terms.orders[sum_of_tile] == p + q
            added.append((p, q, i, j))
    wanted = [
        (p, q, i, j) for p, q in terms.products for i in range(block.rows) for j in range(block.columns)
    ]
    assert sorted(added) == sorted(wanted)


def test_pieces_add_up() -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(2000) * 2.0 ** rng.integers(-60, 60, 2000)).astype(np.float32)
    for count in (1, 2, 3):
        pieces = (split_bfloat16(values, count).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        assert (np.abs(pieces.sum(axis=0) - values) <= 2.0 ** (1 - 9 * count) * np.abs(values)).all()


def test_pieces_of_what_is_not_finite_hold_it_once() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 3.4028235e38], np.float32)
    first, second = (split_bfloat16(values, 2).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(first, [np.inf, -np.inf, np.nan, np.inf])
    np.testing.assert_array_equal(second, [0, 0, 0, 0])
