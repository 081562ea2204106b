"""Templates keep one protocol: every kernel carries an estimate, choices are checked, the least time wins."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import onnx.parser
import pytest
from tests.support.integer_networks import integer_network
from tests.support.kernels import group_of
from tests.support.models import small_net
from tests.unit.targets.cpu.test_contraction import channels_last, conv_graph

import tilewright as tw
from tilewright.compiler import plan
from tilewright.ir.graph import Graph
from tilewright.ir.nest import Nest
from tilewright.options import Accuracy, Options
from tilewright.targets.cpu.fused import FUSED
from tilewright.targets.cpu.isa import CacheSizes, Isa, MatrixRates, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Layout
from tilewright.targets.cpu.loopnest import LOOP_NEST
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch
from tilewright.targets.cpu.product import select
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.matrix import MATRIX, unit_pays
from tilewright.targets.cpu.product.select import MIN_LEAD, PRODUCTS, lower_product, nest_cycles
from tilewright.targets.cpu.product.winograd import WINOGRAD
from tilewright.targets.cpu.template import MIN_GAIN, Context, Estimate, lower_with
from tilewright.tuning import Choice

AVX512, AMX = isa_by_name("avx512"), isa_by_name("avx512+amx")
FMAS_PER_CYCLE = 2


def nest_and_context(graph: Graph) -> tuple[Nest, Context]:
    group = group_of(graph)
    layouts = {("output", 0): channels_last(4)}
    for position, value in enumerate(group.inputs):
        rank = len(value.shape)
        layouts["input", position] = Layout.row_major(rank) if value.is_constant else channels_last(rank)
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    return group.nests[0], Context(AVX512, layouts, constants=constants)


ATTENTION = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[1,4,48,16] q, float[1,4,16,48] k, float[1,4,48,16] v) => (float[1,4,48,16] y) {
        s = MatMul (q, k)
        p = Softmax <axis = -1> (s)
        y = MatMul (p, v)
    }"""
ONES = ",".join("1" * 2304), ",".join("1" * 144)
BYTES = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    net (uint8[1,16,14,14] x, uint8 zero) => (int32[1,16,14,14] y, int32[1,16,14,14] z)
    <int8[16,16,3,3] w = {{{ONES[0]}}}, int8[16,1,3,3] d = {{{ONES[1]}}}> {{
        y = ConvInteger <pads = [1, 1, 1, 1]> (x, w, zero)
        z = ConvInteger <pads = [1, 1, 1, 1], group = 16> (x, d, zero)
    }}"""
GRAPHS = {
    "bytes": lambda: tw.load(onnx.parser.parse_model(BYTES)).graph,
    "convolutions": lambda: tw.load(small_net(channels=40, size=20)).graph,
    "attention": lambda: tw.load(onnx.parser.parse_model(ATTENTION)).graph,
    "integers": lambda: integer_network(3),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_kernel_of_a_model_carries_an_estimate(name: str) -> None:
    partition = plan(GRAPHS[name](), Options()).program.partition
    lowered = lower_partition(partition, host_isa())
    launches = [x for work in (lowered.before, *lowered.work, lowered.after) for x in work]
    kernels = [k for x in launches if isinstance(x, KernelLaunch) for k in x.kernel.all_kernels()]
    assert kernels
    for kernel in kernels:
        assert kernel.estimate_cycles is not None, kernel.template
        assert kernel.estimate_cycles > 0
        assert kernel.argument_bytes > 0


def test_template_names_are_unique() -> None:
    names = [t.name for t in (*PRODUCTS, LOOP_NEST, FUSED)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("channels", [16, 64, 128])
def test_the_plain_kernel_takes_no_less_than_its_multiplications(channels: int) -> None:
    nest, context = nest_and_context(conv_graph(channels, channels, (28, 28), (1, 1)))
    kernels = lower_with(CONTRACTION, nest, context)
    assert not isinstance(kernels, Declined)
    cycles = kernels[-1].estimate_cycles
    assert cycles is not None
    bound = nest.num_iterations / (FMAS_PER_CYCLE * AVX512.lanes())
    assert bound <= cycles <= 3 * bound + 10_000


def test_more_work_takes_longer_in_every_template() -> None:
    for template in PRODUCTS:
        estimates = []
        for size in (28, 56):
            nest, context = nest_and_context(conv_graph(64, 64, (size, size), (3, 3), pads=(1, 1, 1, 1)))
            problem = template.match(nest, context)
            if isinstance(problem, Declined):
                break
            (way, *_) = template.algorithms(problem, context)
            estimates.append(template.estimate(problem, way, context).cycles)
        assert estimates == sorted(estimates)


@pytest.mark.parametrize("size", [2, 8, 56])
def test_the_template_with_the_largest_gain_wins_if_it_is_well_ahead(size: int) -> None:
    nest, context = nest_and_context(conv_graph(64, 64, (size, size), (3, 3), pads=(1, 1, 1, 1)))
    problem = WINOGRAD.match(nest, context)
    assert not isinstance(problem, Declined)
    ways = WINOGRAD.algorithms(problem, context)
    gain = max(WINOGRAD.estimate(problem, way, context).gain for way in ways)
    kernels = lower_product(nest, context)
    assert not isinstance(kernels, Declined)
    assert kernels[-1].template.startswith("winograd") == (gain >= MIN_GAIN)
    assert kernels[-1].estimate_cycles == nest_cycles(nest, context)


def chosen(channels: tuple[int, int], size: int, isa: Isa, run_bytes: int = 0) -> str:
    """The template of a convolution of 3x3."""
    graph = conv_graph(*channels, (size, size), (3, 3), pads=(1, 1, 1, 1))
    nest, context = nest_and_context(graph)
    kernels = lower_product(nest, replace(context, isa=isa, run_bytes=run_bytes))
    assert not isinstance(kernels, Declined)
    return kernels[-1].template


USUAL = replace(AVX512, fmas_per_cycle=2.0, caches=CacheSizes(l1_bytes=48 << 10, l3_bytes=32 << 20))
HALVED = replace(USUAL, fmas_per_cycle=1.0, caches=replace(USUAL.caches, l1_bytes=32 << 10))


@pytest.mark.parametrize(
    ("channels", "size", "isa", "run_bytes", "template"),
    [
        # Measured on Zen 4, direct over Winograd's: 1.3 (F(2,3); F(4,3) .9), 1.7, then 2.0, 3.0 and 1.9
        # (F(4,3)), and 1.75 (F(4,3) 1.7).
        ((512, 512), 7, HALVED, 46 << 20, "winograd-2"),
        ((448, 384), 8, HALVED, 95 << 20, "winograd-2"),
        ((64, 256), 13, HALVED, 5 << 20, "winograd-4"),
        ((128, 128), 28, HALVED, 46 << 20, "winograd-4"),
        ((128, 32), 14, HALVED, 32 << 20, "winograd-4"),
        ((512, 512), 14, HALVED, 560 << 20, "winograd-2"),
        # Measured on Zen 5: 1.8, 1.8 (F(4,3)), 1.24.
        ((448, 384), 8, USUAL, 95 << 20, "winograd-2"),
        ((64, 256), 13, USUAL, 5 << 20, "winograd-4"),
        ((128, 32), 14, USUAL, 32 << 20, "winograd-2"),
    ],
)
def test_winograd_is_taken_where_it_was_measured_to_be_faster(
    channels: tuple[int, int], size: int, isa: Isa, run_bytes: int, template: str
) -> None:
    assert chosen(channels, size, isa, run_bytes) == template


@pytest.mark.parametrize(
    ("accuracy", "template"),
    [("strict", "contraction"), ("default", "contraction"), ("relaxed", "matrix-3"), ("fast", "matrix-1")],
)
def test_a_unit_that_may_be_slow_is_left_to_accuracies_of_fewer_products(
    accuracy: Accuracy, template: str
) -> None:
    nest, context = nest_and_context(conv_graph(256, 1024, (14, 14), (1, 1)))
    kernels = lower_product(nest, replace(context, isa=AMX, accuracy=accuracy))
    assert not isinstance(kernels, Declined)
    assert kernels[-1].template == template


def test_the_matrix_unit_is_taken_at_float32s_accuracy_where_it_gains_in_its_worse_state() -> None:
    nest, context = nest_and_context(conv_graph(256, 1024, (14, 14), (1, 1)))
    taken: list[tuple[float, str]] = []
    for cycles in range(4, 84, 8):
        here = replace(context, isa=replace(AMX, matrix_rates=MatrixRates(slow_exposed_load_cycles=cycles)))
        problem = MATRIX.match(nest, here)
        assert not isinstance(problem, Declined)
        kernels = lower_product(nest, here)
        assert not isinstance(kernels, Declined)
        gains = {
            "slices" if way.get("slices") else "matrix": MATRIX.estimate(problem, way, here).gain
            for way in MATRIX.algorithms(problem, here)
        }
        best = max(gains, key=lambda way: gains[way])
        template, _, number = kernels[-1].template.partition("-")
        assert template == (best if gains[best] >= MIN_GAIN else "contraction")
        assert number == {"slices": "8", "matrix": "6", "contraction": ""}[template]
        taken.append((gains[best], template))
    assert taken == sorted(taken, key=lambda each: -each[0])
    assert (taken[0][1], taken[-1][1]) == ("slices", "contraction")


@pytest.mark.parametrize(("channels", "ways"), [(255, ["products"]), (256, ["slices", "products"])])
def test_short_sums_are_not_made_of_digits(channels: int, ways: list[str]) -> None:
    nest, context = nest_and_context(conv_graph(channels, 64, (14, 14), (1, 1)))
    problem = MATRIX.match(nest, replace(context, isa=AMX))
    assert not isinstance(problem, Declined)
    assert [way.parameters[0][0] for way in MATRIX.algorithms(problem, replace(context, isa=AMX))] == ways


def test_the_unit_pays_by_its_rates_and_what_the_accuracy_allows() -> None:
    steady = replace(AMX, matrix_rates=MatrixRates(slow_exposed_load_cycles=4.6))
    accuracies: tuple[Accuracy, ...] = ("strict", "default", "relaxed", "fast")
    assert [unit_pays(AMX, accuracy) for accuracy in accuracies] == [False, False, True, True]
    assert [unit_pays(steady, accuracy) for accuracy in accuracies] == [False, True, True, True]
    assert not any(unit_pays(AMX.without_matrix_unit, accuracy) for accuracy in accuracies)


def test_a_product_tells_what_the_unit_would_take_in_both_states() -> None:
    nest, context = nest_and_context(conv_graph(256, 1024, (14, 14), (1, 1)))
    kernels = lower_product(nest, replace(context, isa=AMX))
    assert not isinstance(kernels, Declined)
    vectors, slices, pieces = kernels[-1].notes[-3:]
    macs = 256 * 1024 * 14 * 14
    assert vectors.startswith("multiply-adds: ")
    assert vectors.endswith(f", their limit {macs / 32 / 1e3:,.0f}")
    # Tiles of 16 by 16 by 64, eight products of 16 cycles each: 13 tiles of rows, 64 of columns, 4 of depth.
    assert slices.startswith("8 int8 products on the unit: ")
    assert f"products {13 * 64 * 4 * 8 * 16 / 1e3:,.0f} (its limit)" in slices
    assert pieces.startswith("6 bfloat16 products on the unit: ")
    without = lower_product(nest, replace(context, isa=USUAL))
    assert not isinstance(without, Declined)
    assert not any("on the unit" in note for note in without[-1].notes)


def test_weights_that_stay_in_the_last_cache_come_faster() -> None:
    _, context = nest_and_context(conv_graph(64, 64, (8, 8), (3, 3), pads=(1, 1, 1, 1)))
    context = replace(context, isa=USUAL)
    rates = [replace(context, run_bytes=n << 20).cold_bytes_per_cycle for n in (0, 1, 16, 17, 100)]
    assert rates[0] == rates[3] == rates[4] < rates[1] == rates[2]
    assert [replace(context, run_bytes=n << 20).exceeds_caches for n in (0, 32, 33)] == [False, False, True]


def test_the_more_exact_way_is_taken_unless_the_other_is_ahead() -> None:
    nest, context = nest_and_context(conv_graph(128, 32, (14, 14), (3, 3), pads=(1, 1, 1, 1)))
    leads = {}
    for run_bytes in (100 << 20, 5 << 20):
        here = replace(context, isa=USUAL, run_bytes=run_bytes)
        problem = WINOGRAD.match(nest, here)
        assert not isinstance(problem, Declined)
        exact, other = (WINOGRAD.estimate(problem, way, here) for way in WINOGRAD.algorithms(problem, here))
        assert exact.lead == inf
        assert other.gain == pytest.approx(exact.gain * other.lead)
        leads[chosen((128, 32), 14, USUAL, run_bytes)] = other.lead
    assert leads["winograd-2"] < MIN_LEAD <= leads["winograd-4"]


def test_choices_that_the_accuracy_forbids_are_declined_with_what_it_allows() -> None:
    nest, context = nest_and_context(conv_graph(64, 64, (28, 28), (3, 3), pads=(1, 1, 1, 1)))
    refused = lower_with(WINOGRAD, nest, replace(context, accuracy="strict"), Choice.of("winograd", tile=2))
    assert isinstance(refused, Declined)
    assert refused.reason == "winograd tile=2 for strict accuracy: expected another template"


def test_a_template_joins_by_one_line_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    nest, context = nest_and_context(conv_graph(8, 8, (4, 4), (1, 1)))

    class Always:
        """A template that claims to be twice as fast as the plain kernel and generates just that."""

        name = "always"

        def match(self, work: Nest, context: Context) -> object:
            return CONTRACTION.match(work, context)

        def algorithms(self, problem: Any, context: Context) -> tuple[Choice, ...]:
            return (Choice(self.name),)

        def estimate(self, problem: Any, choice: Choice, context: Context) -> Estimate:
            return Estimate(1.0, gain=2.0)

        def neighbours(self, problem: Any, algorithm: Choice, context: Context) -> tuple[Choice, ...]:
            return (algorithm,)

        def lower(self, problem: Any, choice: Choice, context: Context) -> object:
            made = lower_with(CONTRACTION, nest, context)
            assert not isinstance(made, Declined)
            return tuple(replace(k, template=self.name, estimate_cycles=None) for k in made)

    monkeypatch.setattr(select, "PRODUCTS", (*PRODUCTS, Always()))
    kernels = lower_product(nest, context)
    assert not isinstance(kernels, Declined)
    assert (kernels[-1].template, kernels[-1].estimate_cycles) == ("always", 1.0)
    assert select.product_neighbours(nest, context)[0] == Choice("always")
    assert nest_cycles(nest, context) == 1.0
