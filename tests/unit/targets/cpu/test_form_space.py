"""The space of a subgraph's forms: its contract, what it reaches, and that all of it computes the same."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from tests.support.form_spaces import check_space
from tests.unit.targets.cpu.test_fused import Chain

from tilewright.compiler import plan
from tilewright.ir.graph import Graph, Node
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.partition.base import Reason
from tilewright.partition.form import Form
from tilewright.program import Program
from tilewright.targets.cpu.forms.space import SubgraphForms
from tilewright.targets.cpu.forms.spaces import form_spaces
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.lower.layouts import LAYOUT, ROW_MAJOR
from tilewright.targets.cpu.target import CpuTarget
from tilewright.tuning.space import text_of

pytestmark = pytest.mark.sampled(4)

OPTIONS = Options(threads=2, partition="ago{threshold=2000}", no_cache=True)


def branches() -> Graph:
    """Inverted residuals, and branches that meet."""
    chain = Chain(16, (14, 13))
    for _ in range(2):
        before = chain.value
        chain.conv(48).conv(0, 3, depthwise=True).conv(16)
        total = chain.graph.value(f"sum{len(chain.graph.nodes)}", before.dtype, before.shape)
        chain.value = chain.graph.append(Node("Add", [chain.value, before], [total])).output
    squeezed = chain.conv(8).value
    ends = [chain.conv(16).value]
    chain.value = squeezed
    ends.append(chain.conv(16, 3).value)
    n, c, h, w = ends[0].shape
    joined = chain.graph.value("joined", ends[0].dtype, (n, 2 * c, h, w))
    chain.graph.append(Node("Concat", ends, [joined], {"axis": 1}))
    chain.value = joined
    chain.conv(24)
    chain.graph.outputs = [chain.value, squeezed]
    return chain.graph


@pytest.fixture(scope="module")
def program() -> Program:
    return plan(branches(), OPTIONS).program


@pytest.fixture(scope="module")
def spaces(program: Program) -> dict[int, SubgraphForms]:
    return form_spaces(program, host_isa())


def walk(space: SubgraphForms, steps: int, seed: int = 0) -> list[Form]:
    forms = [space.initial()]
    for number in range(steps):
        forms.append(space.mutate(forms[-1], random.Random(seed + number)))
    return forms


def test_spaces_keep_the_contract(spaces: dict[int, SubgraphForms]) -> None:
    assert spaces
    for space in spaces.values():
        check_space(space, steps=12)


def test_cuts_blocks_and_products_are_all_reached(spaces: dict[int, SubgraphForms]) -> None:
    space = max(spaces.values(), key=lambda space: len(space.layers))
    forms = walk(space, 60)
    assert len({len(form.kernels) for form in forms}) > 2
    assert any(k.blocking is not None for form in forms for k in form.kernels)
    assert any(k.choices for form in forms for k in form.kernels)
    assert all(space.estimate_ns(form) < float("inf") for form in forms)
    assert len({text_of(form) for form in forms}) > 30


def test_products_within_blocks_have_register_tiles_that_change_the_code_and_not_the_result(
    program: Program, spaces: dict[int, SubgraphForms]
) -> None:
    found = (
        (number, form)
        for number, space in spaces.items()
        for form in walk(space, 80)
        if any(kernel.blocking is not None and kernel.choices for kernel in form.kernels)
    )
    number, form = next(found)
    plain = Form(tuple(k if k.blocking is None else replace(k, choices=()) for k in form.kernels))
    symbols, results = [], []
    feed = {v.name: np.ones(v.shape, np.float32) for v in program.graph.inputs}
    for each in (form, plain):
        code = CpuTarget().generate(program.with_forms({number: each}))
        symbols.append({k.symbol for step in code.steps for k in step.kernels if k.template == "fused"})
        executable = code.load(1)
        results.append({name: array.copy() for name, array in executable.run(feed).items()})
        executable.close()
    assert symbols[0] != symbols[1]
    for name, expected in results[1].items():
        np.testing.assert_allclose(results[0][name], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.sampled(0)
def test_loop_nests_run_in_other_ways_alone_and_within_blocks(
    program: Program, spaces: dict[int, SubgraphForms]
) -> None:
    number, space = max(spaces.items(), key=lambda item: len(item[1].layers))
    reached = [form for seed in range(3) for form in walk(space, 80, 100 * seed)]

    def loops(form: Form, *, in_blocks: bool) -> list[str]:
        chosen = (
            name
            for kernel in form.kernels
            for name, choice in kernel.choices
            if choice.template == "loop-nest" and (kernel.blocking is not None) == in_blocks
        )
        return list(chosen)

    for in_blocks in (True, False):
        form = next(form for form in reached if loops(form, in_blocks=in_blocks))
        plain = Form(tuple(replace(kernel, choices=()) for kernel in form.kernels))
        codes = [CpuTarget().generate(program.with_forms({number: each})) for each in (form, plain)]
        symbols = [{(k.symbol, k.num_chunks) for step in code.steps for k in step.kernels} for code in codes]
        assert symbols[0] != symbols[1]


def test_what_kernels_hand_each_other_may_be_row_major(
    program: Program, spaces: dict[int, SubgraphForms]
) -> None:
    number, space = max(spaces.items(), key=lambda item: len(item[1].layers))
    cut = next(form for form in walk(space, 80) if len(form.kernels) > 2)
    plain = Form(tuple(replace(kernel, choices=()) for kernel in cut.kernels))
    chosen = [
        space.read(
            Form(
                (*plain.kernels[:i], replace(k, choices=((LAYOUT, ROW_MAJOR),)), *plain.kernels[i + 1 :])
            ).to_json()
        )
        for i, k in enumerate(plain.kernels)
    ]
    assert chosen[-1] is None, "others than the subgraph read that"
    feed = {v.name: np.random.default_rng(0).random(v.shape, np.float32) for v in program.graph.inputs}
    results = []
    for form in (plain, next(form for form in chosen if form is not None)):
        code = CpuTarget().generate(program.with_forms({number: form}))
        executable = code.load(1)
        results.append({name: array.copy() for name, array in executable.run(feed).items()})
        executable.close()
    for name, expected in results[0].items():
        np.testing.assert_allclose(results[1][name], expected, atol=1e-5 * np.abs(expected).max())


def test_a_form_is_adapted_to_a_subgraph_of_other_sizes() -> None:
    (small,), (large,) = (
        list(form_spaces(plan(graph, OPTIONS).program, host_isa()).values())
        for graph in (residual(16, (14, 13)), residual(24, (20, 20)))
    )
    assert small.structure == large.structure
    assert small.key != large.key
    adapted = [large.adapted(small.portable(form)) for form in walk(small, 40)]
    possible = [form for form in adapted if form is not None]
    assert len(possible) > 30
    assert len({text_of(form) for form in possible}) > 10
    assert all(large.read(form.to_json()) == form for form in possible)
    assert {len(form.kernels) for form in possible} == {len(form.kernels) for form in walk(small, 40)}


def residual(channels: int, size: tuple[int, int]) -> Graph:
    chain = Chain(channels, size)
    chain.conv(3 * channels).conv(0, 3, depthwise=True).conv(channels)
    chain.graph.outputs = [chain.value]
    return chain.graph


def test_other_tiles_keep_the_kernels_and_other_cuts_do_not(spaces: dict[int, SubgraphForms]) -> None:
    space = max(spaces.values(), key=lambda space: len(space.layers))

    def without_choices(form: Form) -> Form:
        return Form(tuple(replace(kernel, choices=()) for kernel in form.kernels))

    reached = [*walk(space, 60)[1:], *space.starts()]
    kept = [form for form in reached if space.keeps_kernels(form)]
    assert kept
    assert kept == [form for form in reached if without_choices(form) == space.initial()]
    assert len(kept) < len(reached)
    assert space.keeps_kernels(space.initial())


def test_equal_parts_share_their_key_whatever_their_names(program: Program) -> None:
    other = branches()
    for node in other.nodes:
        node.name += "_again"
    ours, theirs = (
        [space.key for space in form_spaces(plan(graph, OPTIONS).program, host_isa()).values()]
        for graph in (program.graph, other)
    )
    assert ours == theirs
    space = max(form_spaces(program, host_isa()).values(), key=lambda space: len(space.layers))
    keys = [part.space.key for part in space.split()]
    assert len(set(keys)) < len(keys)


def test_a_form_of_other_nodes_blocks_or_products_is_not_read(spaces: dict[int, SubgraphForms]) -> None:
    space = max(spaces.values(), key=lambda space: len(space.layers))
    form = next(f for f in walk(space, 60) if any(k.blocking is not None for k in f.kernels))
    assert space.read(json.loads(text_of(form))) == form
    number, kernel = next((n, k) for n, k in enumerate(form.kernels) if k.blocking is not None)
    assert kernel.blocking is not None
    wrong = replace(kernel, blocking=replace(kernel.blocking, strip=4711))
    for kernels in (form.kernels[1:], (*form.kernels[:number], wrong, *form.kernels[number + 1 :])):
        assert space.read(Form(kernels).to_json()) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_reached_computes_the_same(
    program: Program, spaces: dict[int, SubgraphForms], seed: int
) -> None:
    forms = {number: walk(space, 7, seed)[-1] for number, space in spaces.items()}
    code = CpuTarget().generate(program.with_forms(forms))
    account = code.program.partition
    for decision in account.decisions:
        kernel = account.kernel_of(decision.producer)
        is_within = kernel == account.kernel_of(decision.consumer) and kernel.blocking is not None
        assert (decision.reason is not Reason.SEPARATE) or not is_within
    rng = np.random.default_rng(seed)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in program.graph.inputs}
    results = []
    for num_threads in (1, 2):
        executable = code.load(num_threads)
        results.append({name: array.copy() for name, array in executable.run(feed).items()})
        executable.close()
    for name, expected in run_graph(program.graph, feed).items():
        np.testing.assert_array_equal(results[0][name], results[1][name])
        np.testing.assert_allclose(results[0][name], expected, atol=1e-4 * np.abs(expected).max())
