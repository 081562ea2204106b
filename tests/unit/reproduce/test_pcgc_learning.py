"""Families that are held out teach nothing, and what is learned of a machine becomes a model's file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.graphs import random_graph

from tilewright import zoo
from tilewright.cost.features import MachineFacts, WorkFacts
from tilewright.cost.learned.model import LearnedModel
from tilewright.cost.learned.training import Effort
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.partition import PARTITIONERS
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.planning import Budget
from tilewright.reproduce.pcgc.learning import ESTIMATE, Table, held_out_by_family, learned_model
from tilewright.reproduce.pcgc.samples import Choice, Sample, Samples, measured, simulated, split_once

MACHINE = MachineFacts.of(load_preset("jetson-nano"))


def _samples(num_families: int = 3, count: int = 40) -> Samples:
    """Operators that take twice as long as estimated where they reduce, and one kernel in common."""
    rng = random.Random(0)
    samples = Samples()
    for family in range(num_families):
        for number in range(count):
            reduces = number % 2
            facts = WorkFacts(
                macs=0 if number == 0 else rng.randrange(10**6),
                num_nodes=1,
                num_reduction=reduces,
                reduced_iterations=1000 * reduces,
            )
            estimate_ns = 1000.0 + facts.macs
            samples.samples.append(
                Sample(f"net{family}", f"family{family}", facts, 1, estimate_ns, estimate_ns * (1 + reduces))
            )
        start = family * count
        samples.choices.append(Choice(start + 1, (start + 2, start + 4)))
    return samples


def test_what_a_family_shares_with_others_is_neither_learned_from_nor_tested() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    table = Table.of(_samples(), MACHINE, "time")
    outcomes = held_out_by_family(table, Effort(share=0.3), ("trees",))
    learned, estimate = outcomes["trees"], outcomes[ESTIMATE]
    assert sum(map(len, learned.true)) == 3 * 39
    assert learned.num_choices == 3
    assert learned.mape < 0.5 * estimate.mape
    assert 0.2 < estimate.mape < 0.3


def test_a_model_of_samples_says_its_error_and_is_read_again(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    model = learned_model("jetson-nano", {"time": Table.of(_samples(), MACHINE, "time")}, Effort(share=0.3))
    time = model.quantities["time"]
    assert time.held_out is not None
    assert time.held_out.mape < time.held_out.estimate_mape
    assert time.num_measured <= 0.3 * time.num_operators + 1
    model.write(tmp_path / "model.json")
    assert LearnedModel.read(tmp_path / "model.json") == model


def test_subgraphs_are_cut_into_two_parts_that_hold_their_nodes() -> None:
    graph = random_graph(0, 20)
    partition = PARTITIONERS.get("random").solve(PartitionProblem(graph), Budget(100))
    assert isinstance(partition, Partition)
    clusters = split_once(partition, random.Random(0))
    assert sorted(n.name for c in clusters for n in c) == sorted(n.name for n in graph.nodes)
    assert len(clusters) == sum(min(2, len(s.nodes)) for s in partition.subgraphs)


def test_simulated_samples_have_times_energies_and_choices() -> None:
    samples = simulated("n", "f", load_onnx(zoo.build("squeezenet1_1", image=32)), "a310")
    assert all(s.time_ns > 0 and s.energy_pj and s.estimate_pj for s in samples.samples)
    assert samples.choices
    for choice in samples.choices:
        whole, *parts = (samples.samples[i].facts for i in (choice.whole, *choice.parts))
        assert whole.num_nodes == sum(part.num_nodes for part in parts)
        assert whole.macs == sum(part.macs for part in parts)


@pytest.mark.slow
def test_measured_samples_are_of_kernels_that_ran() -> None:
    samples = measured("n", "f", load_onnx(zoo.build("squeezenet1_1", image=32)), (1,))[1]
    assert all(s.time_ns >= 0 for s in samples.samples)
    assert samples.choices
