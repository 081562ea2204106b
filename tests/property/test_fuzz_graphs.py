"""Random graphs on the CPU equal the reference, also between guard pages and with dead memory poisoned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz.differential import check, generate, random_setting, run_hostile, run_ordinary, runnable_isas
from tests.fuzz.hunt import hunt, try_seed
from tests.fuzz.maker import Maker
from tests.fuzz.peer import check_peer
from tests.fuzz.reduce import CORPUS, read_corpus, sample_feed
from tests.fuzz.steps import STEPS, random_maker

from tilewright.ir.text import print_graph

QUICK_SEEDS = range(100_000, 100_150)
BATCH = 5
CORPUS_FILES = sorted(CORPUS.glob("*.txt"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(QUICK_SEEDS.start, QUICK_SEEDS.stop, BATCH))
def test_random_graphs_equal_the_reference(first: int, cache: Path) -> None:
    found = {seed: try_seed(seed, cache) for seed in range(first, first + BATCH)}
    assert {seed: text for seed, text in found.items() if text is not None} == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(200_000, 204_000, 500))
def test_many_random_graphs_equal_the_reference(first: int) -> None:
    assert hunt(first, first + 500).failures == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isa", runnable_isas(), ids=str)
@pytest.mark.parametrize("path", CORPUS_FILES, ids=lambda p: p.stem)
def test_graphs_that_once_failed(path: Path, isa: str | None, cache: Path) -> None:
    graph, exact, setting = read_corpus(path)
    for partition in dict.fromkeys((setting.partition, "layerwise", "random-large")):
        one = replace(setting, isa=isa, partition=partition)
        check(graph, sample_feed(graph, exact), exact=exact, setting=one, cache_dir=cache)


def test_onnxruntime_agrees_with_the_reference() -> None:
    """On most graphs: some operators it lacks in some types."""
    makers = [random_maker(seed) for seed in range(300_000, 300_060)]
    ran = [check_peer(m.graph, m.feed(), exact=m.exact) for m in makers if m.graph.nodes]
    assert sum(ran) > len(makers) // 2


def test_the_corpus_is_found() -> None:
    assert len(CORPUS_FILES) >= 5


def test_equal_seeds_give_equal_graphs() -> None:
    for seed in (3, 4):
        first, second = random_maker(seed), random_maker(seed)
        assert print_graph(first.graph, weights=True) == print_graph(second.graph, weights=True)
        assert all(np.array_equal(a, second.feed()[name]) for name, a in first.feed().items())


def test_graphs_are_of_every_kind() -> None:
    """Every step contributes, sizes spread, and both exact and real graphs come up."""
    makers = [random_maker(seed) for seed in range(300)]
    operators = {node.op_type for m in makers for node in m.graph.nodes}
    assert {"Conv", "ConvTranspose", "MaxPool", "Concat", "Split", "Gather", "Where", "Softmax"} <= operators
    assert {"ArgMax", "Cast", "Gemm", "Pad", "Resize", "TopK", "LayerNormalization", "Expand"} <= operators
    sizes = [len(m.graph.nodes) for m in makers]
    assert min(sizes) <= 3
    assert max(sizes) >= 25
    assert {m.exact for m in makers} == {True, False}
    assert len(STEPS) == len({step for step, _ in STEPS})


def test_memory_that_dies_too_early_is_noticed(cache: Path) -> None:
    """The poison works: with live ranges cut short the hostile run goes wrong."""
    m = Maker(1, exact=False)
    x = m.input((4, 33))
    early = m.add("ReduceMax", [x, m.integers(1)], keepdims=1)
    late = m.add("Softmax", [m.add("Softmax", [x], axis=0)], axis=1)
    m.add("Mul", [early, late])
    m.graph.outputs = [m.values[-1]]
    setting = replace(random_setting(0), partition="random", passes=False, seed=3, isa=None)
    code = generate(m.graph, setting, cache)
    want = run_ordinary(code, m.feed(), 1)
    name = m.graph.outputs[0].name
    np.testing.assert_array_equal(run_hostile(code, m.feed())[name], want[name])
    buffers = code.memory_problem.buffers
    assert any(b.last_step > b.first_step for b in buffers)
    shorter = tuple(replace(b, last_step=b.first_step) for b in buffers)
    # Only what says how long buffers live is wrong: the plan states what is live then.
    live_bytes: Counter[int] = Counter()
    for buffer in shorter:
        live_bytes[buffer.first_step] += buffer.size_bytes
    (use,) = code.memory.uses
    stated = replace(use, live_bytes=max(live_bytes.values()))
    problem = replace(code.memory_problem, buffers=shorter)
    broken = replace(code, memory_problem=problem, memory=replace(code.memory, uses=(stated,)))
    assert np.isnan(run_hostile(broken, m.feed())[name]).any()
