"""Plans one decision away from that of a product: each is a kernel of its own that computes the same."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tilewright.compiler import plan
from tilewright.ir.interpret import run_graph
from tilewright.ir.text import parse_graph
from tilewright.options import Accuracy, Options
from tilewright.program import Program
from tilewright.targets.cpu.isa import Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredPartition
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.contraction.decisions import choice_of, neighbours, plan_contraction
from tilewright.targets.cpu.product.plan import KernelPlan, parse_product
from tilewright.targets.cpu.product.select import neighbours_of, product_neighbours
from tilewright.targets.cpu.products import Product
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.template import Context, lower_problem
from tilewright.tuning import Choice, Choices

# Rows that share wide constants, a long sum, activations as they lie, a padded image, small groups.
TEXT = """
graph "products" opset 17 {
  input %x: float32[3, 160]
  const %w: float32[160, 224] = sha256:w
  input %l: float32[20, 900]
  const %k: float32[900, 40] = sha256:k
  input %p: float32[2, 20, 30]
  input %v: float32[2, 30, 40]
  input %i: float32[1, 32, 9, 9]
  const %c: float32[48, 32, 3, 3] = sha256:c
  const %g: float32[32, 4, 3, 3] = sha256:g
  %a: float32[3, 224] = MatMul(%x, %w) "a"
  %b: float32[20, 40] = MatMul(%l, %k) "b"
  %d: float32[2, 20, 40] = MatMul(%p, %v) "d"
  %e: float32[1, 48, 9, 9] = Conv(%i, %c) {pads = [1, 1, 1, 1]} "e"
  %f: float32[1, 32, 9, 9] = Conv(%i, %g) {pads = [1, 1, 1, 1], group = 8} "f"
  return %a, %b, %d, %e, %f
}
"""
NUM_CASES = 12


@functools.cache
def program() -> Program:
    rng = np.random.default_rng(0)
    shapes = {"w": (160, 224), "k": (900, 40), "c": (48, 32, 3, 3), "g": (32, 4, 3, 3)}
    constants = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    graph = parse_graph(TEXT, constants=constants)
    return plan(graph, Options(threads=2, no_cache=True, accuracy="relaxed")).program


def lowered(
    choices: Choices | None = None, isa: Isa | None = None, accuracy: Accuracy = "relaxed"
) -> LoweredPartition:
    return lower_partition(program().partition, isa or host_isa(), accuracy=accuracy, choices=choices or {})


def texts(made: LoweredPartition) -> dict[str, str]:
    launches = (step for steps in made.work for step in steps if isinstance(step, KernelLaunch))
    return {launch.kernel.signature: launch.kernel.text for launch in launches}


def products(isa: Isa, accuracy: Accuracy = "relaxed") -> list[tuple[str, Product, Context]]:
    return [(name, p, p.context) for name, p in lowered(isa=isa, accuracy=accuracy).products.items()]


def plans(isa: Isa) -> list[tuple[KernelPlan, Context, Product]]:
    found: list[tuple[KernelPlan, Context, Product]] = []
    for _, product, context in products(isa):
        problem = CONTRACTION.match(product.nest, context)
        assert not isinstance(problem, Declined)
        made = plan_contraction(problem, Choice(CONTRACTION.name), context)
        assert not isinstance(made, Declined)
        found.append((made, context, product))
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", [isa_by_name("avx512"), isa_by_name("avx2")], ids=lambda isa: isa.name)
def test_neighbours_are_kernels_of_their_own_that_print_and_are_chosen_again(isa: Isa) -> None:
    decided: set[str] = set()
    for usual, context, product in plans(isa):
        problem = CONTRACTION.match(product.nest, context)
        assert not isinstance(problem, Declined)
        others = neighbours(usual, context)
        made: list[str] = []
        for other in (usual, *others):
            assert str(parse_product(str(other))) == str(other)
            choice = choice_of(other, context)
            decided |= {name for name, _ in choice.parameters}
            again = plan_contraction(problem, choice, context)
            assert str(again) == str(other), "the choice says all of it"
            if len(made) < 12 or len(choice.parameters) > 4:
                kernels = lower_problem(CONTRACTION, problem, choice, context)
                assert not isinstance(kernels, Declined)
                made.append(kernels[-1].text)
        assert len(set(made)) == len(made)
        assert len({str(choice_of(other, context)) for other in others}) == len(others)
    assert decided >= {"rows", "vectors", "row_parts", "panel_parts"}
    assert decided >= {"row_tiles", "packs", "bits", "block_parts", "fetches"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", [isa_by_name("avx512"), isa_by_name("avx2")], ids=lambda isa: isa.name)
def test_a_neighbour_of_the_estimates_plan_has_that_as_neighbour(isa: Isa) -> None:
    for usual, context, _ in plans(isa):
        for other in neighbours(usual, context)[::7]:
            assert str(usual) in set(map(str, neighbours(other, context))), str(choice_of(other, context))


def test_the_first_is_what_the_estimates_choose() -> None:
    first = {name: product_neighbours(p.nest, context)[0] for name, p, context in products(host_isa())}
    assert len(first) == 5
    assert texts(lowered(first)) == texts(lowered())


def test_a_search_goes_on_from_neighbours_and_from_nothing_else() -> None:
    for _, product, context in products(host_isa()):
        found = product_neighbours(product.nest, context)
        direct = next(c for c in reversed(found) if c.template == CONTRACTION.name)
        first, *others = neighbours_of(product.nest, context, direct)
        assert first == direct
        assert found[0] in others or found[0].template != CONTRACTION.name
        for nonsense in (Choice.of(CONTRACTION.name, rows=1000, vectors=1000), Choice("nonsense")):
            made = neighbours_of(product.nest, context, nonsense)
            assert nonsense not in made


def test_strict_has_no_neighbour_that_reassociates() -> None:
    found = [product_neighbours(p.nest, context) for _, p, context in products(host_isa(), "strict")]
    assert {choice.template for choices in found for choice in choices} == {"contraction"}
    assert not any(choice.get("bits") for choices in found for choice in choices)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_neighbours_agree_with_the_reference(number: int) -> None:
    """Of each product one: of those that differ in more than tile and cut all, of the others a few."""
    choices: dict[str, Choice] = {}
    for name, product, context in products(host_isa()):
        found = product_neighbours(product.nest, context)
        rare = [c for c in found if c.get("row_parts") is not None and len(c.parameters) > 4]
        listed = [*rare, *found[:: max(1, len(found) // NUM_CASES)]]
        choices[name] = listed[number % len(listed)]
    made = lowered(choices)
    code = CpuTarget().generate(program(), lowering=made)
    rng = np.random.default_rng(1)
    feed = {v.name: rng.standard_normal(v.shape, np.float32) for v in program().graph.inputs}
    executable = code.load(2)
    got = executable.run(feed)
    executable.close()
    for name, array in run_graph(program().graph, feed).items():
        np.testing.assert_allclose(got[name], array, atol=1e-3 * np.abs(array).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "choice",
    [
        Choice.of("contraction", rows=99, vectors=9, row_parts=1, panel_parts=1),
        Choice.of("contraction", rows=0, vectors=1, row_parts=1, panel_parts=1),
        Choice.of("contraction", rows=4, vectors=1, row_parts=100000, panel_parts=1),
        Choice.of("contraction", block_parts=99),
        Choice.of("contraction", bits=24, packs=1),
        Choice.of("winograd", tile=3),
        Choice.of("winograd", tile=4, num_blocks=0, panel_parts=1),
        Choice.of("winograd", tile=4, num_blocks=1, panel_parts=99),
        Choice.of("nonsense"),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_made_leaves_the_estimates(choice: Choice) -> None:
    plain = texts(lowered())
    found = ((name, product_neighbours(p.nest, context)) for name, p, context in products(host_isa()))
    tiled = {name: choice for name, others in found if others[0].get("rows") is not None}
    assert len(tiled) == 4
    assert texts(lowered(tiled)) == plain
