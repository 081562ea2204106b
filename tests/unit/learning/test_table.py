"""Families that are held out teach nothing, and what is learned of a machine becomes a model's file."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.graphs import random_graph

from tilewright import zoo
from tilewright.cost.features import MachineFacts, WorkFacts
from tilewright.cost.learned.model import LearnedModel
from tilewright.cost.learned.training import Effort
from tilewright.errors import UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.learning.collect import NetworkBench, simulated
from tilewright.learning.kernel_times import KernelBench
from tilewright.learning.samples import Choice, Sample, SampleFile, Samples, split_once
from tilewright.learning.table import (
    ESTIMATE,
    ROW_HEADS,
    AccuracyTable,
    ModelOutcome,
    held_out_by_family,
    learned_model,
    pretrained_without,
    tables_of,
)
from tilewright.partition import PARTITIONERS
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.planning import Budget
from tilewright.target_ref import TargetRef
from tilewright.targets.cpu.target import CpuTarget
from tilewright.tuning.workers import Effort as Rounds

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
    table = AccuracyTable.of(_samples(), MACHINE, "time")
    outcomes = held_out_by_family(table, Effort(share=0.3), ("trees",))
    learned, estimate = outcomes["trees"], outcomes[ESTIMATE]
    assert sum(map(len, learned.true)) == 3 * 39
    assert learned.num_choices == 3
    assert learned.mape < 0.5 * estimate.mape
    assert 0.2 < estimate.mape < 0.3


def test_outcomes_of_several_seeds_are_one_row_of_all_their_operators() -> None:
    first, second = ModelOutcome(), ModelOutcome()
    first.add(np.array([1.1, 2.0]), np.array([1.0, 2.0]), (1, 2))
    second.add(np.array([3.0, 8.0]), np.array([4.0, 4.0]), (1, 1))
    row = (first + second).row("a310", "time", 0.05, "trees")
    assert row == ("a310", "time", "5 %", "trees", "33.8 %", "17.5 %", "0.91", "66.7 % of 3")
    assert len(row) == len(ROW_HEADS)
    assert len(first.true) == len(second.true) == 1


def test_a_model_of_samples_says_its_error_and_is_read_again(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    model = learned_model(
        "jetson-nano", {"time": AccuracyTable.of(_samples(), MACHINE, "time")}, Effort(share=0.3)
    )
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


def test_simulated_samples_have_times_energies_and_choices_and_are_kept(tmp_path: Path) -> None:
    samples = simulated("n", "f", load_onnx(zoo.build("squeezenet1_1", image=32)), TargetRef("a310"))
    file = SampleFile(tmp_path / "samples.jsonl", "a310")
    file.append("n", samples)
    assert file.known() == {"n": samples}
    assert all(s.time_ns > 0 and s.energy_pj and s.estimate_pj for s in samples.samples)
    assert samples.choices
    for choice in samples.choices:
        whole, *parts = (samples.samples[i].facts for i in (choice.whole, *choice.parts))
        assert whole.num_nodes == sum(part.num_nodes for part in parts)
        assert whole.macs == sum(part.macs for part in parts)


@pytest.mark.sampled(0)
def test_measured_samples_are_of_kernels_that_ran_in_turns_with_their_parts(tmp_path: Path) -> None:
    graph = load_onnx(zoo.build("squeezenet1_1", image=32))
    with KernelBench(CpuTarget(), Rounds(min_rounds=3, max_rounds=3, seconds=0.1)) as bench:
        samples = NetworkBench.of("n", "f", graph, 1, bench).measured("layerwise")
    assert all(s.time_ns >= 0 for s in samples.samples)
    assert samples.choices
    for choice in samples.choices:
        whole, *parts = (samples.samples[i].facts for i in (choice.whole, *choice.parts))
        assert whole.num_nodes == sum(part.num_nodes for part in parts)
        assert choice.low is not None
        assert choice.high is not None
        assert choice.low <= choice.high
    plans = [s.plan for s in samples.samples if s.estimate_ns]
    assert all(p.contraction_ns + p.winograd_ns + p.matrix_ns + p.transfers_ns > 0 for p in plans)
    assert any(p.contraction_ns + p.winograd_ns + p.matrix_ns > 0 for p in plans)
    file = SampleFile(tmp_path / "samples.jsonl", "here")
    file.append("layerwise", samples)
    assert file.known() == {"layerwise": samples}


# Files --------------------------------------------------------------------------------------------------


def test_samples_are_kept_line_by_line_and_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / "samples.jsonl", "here")
    assert file.known() == {}
    for key in ("a", "b"):
        file.append(key, _samples(1, 6))
    whole = file.path.read_bytes()
    assert file.known() == {"a": _samples(1, 6), "b": _samples(1, 6)}
    file.path.write_bytes(whole[:-20])
    assert set(file.known()) == {"a"}
    file.append("c", _samples(1, 6))
    assert file.known() == {"a": _samples(1, 6), "c": _samples(1, 6)}


@pytest.mark.parametrize("cut", [slice(0, -20), slice(20, None)], ids=["end", "begin"])
def test_a_damaged_line_is_refused_and_left_as_it_is(tmp_path: Path, cut: slice) -> None:
    file = SampleFile(tmp_path / "samples.jsonl", "here")
    file.append("a", _samples(1, 6))
    line = file.path.read_bytes()
    damaged = line + line[:-1][cut] + b"\n" + line
    for data in (damaged, line + b"nonsense"):
        file.path.write_bytes(data)
        with pytest.raises(UsageError, match=r"samples\.jsonl, line 2: is damaged: .*; remove the line\.$"):
            file.known()
        assert file.path.read_bytes() == data


def test_samples_that_cannot_be_written_are_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    file = SampleFile(tmp_path, "here")
    with pytest.raises(UsageError, match=r"cannot be written: Is a directory; give another file\.$"):
        file.append("a", _samples(1, 6))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("machine", "there", "are of machine 'there', not of 'here'; give a file for each machine"),
        ("features_version", 1, "features have version 1, .*; give another file, to measure anew"),
    ],
)
def test_samples_of_another_machine_or_version_are_refused(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    file = SampleFile(tmp_path / "samples.jsonl", "here")
    file.append("a", _samples(1, 6))
    file.path.write_text(json.dumps({**json.loads(file.path.read_text()), key: value}) + "\n")
    with pytest.raises(UsageError, match=said):
        file.known()


# Other machines -----------------------------------------------------------------------------------------


@pytest.mark.sampled(0)
def test_what_other_machines_teach_is_built_upon_and_families_it_saw_are_not_held_out() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    table = AccuracyTable.of(_samples(), MACHINE, "time")
    effort = Effort(share=0.1, seed_share=1.0)
    alone = held_out_by_family(table, effort, ("trees",))["trees"]
    adapted = held_out_by_family(table, effort, ("trees",), pretrained_without([table]))["trees"]
    assert adapted.mape < 0.5 * alone.mape
    first = learned_model("there", {"time": table}, Effort())
    model = learned_model("here", {"time": table}, effort, start=first)
    assert len(model.quantities["time"].regressors) == 2
    assert model.quantities["time"].held_out is None


def test_energies_are_learned_where_any_kernel_has_one_and_short_times_only_where_they_are_exact() -> None:
    samples = _samples(1, 8)
    assert set(tables_of(samples, MACHINE, is_measured=True)) == {"time"}
    samples.samples = [
        replace(sample, time_ns=100.0 * n, estimate_pj=2.0, energy_pj=0.0 if n == 2 else 3.0)
        for n, sample in enumerate(samples.samples, 1)
    ]
    tables = tables_of(samples, MACHINE, is_measured=False)
    assert [len(tables[quantity].keys) for quantity in ("time", "energy")] == [8, 7]
    assert tables["time"].is_resolved.all()
    measured = tables_of(samples, MACHINE, is_measured=True)
    assert measured["time"].is_resolved.tolist() == 4 * [False] + 4 * [True]


def test_choices_that_rounds_do_not_agree_on_decide_nothing() -> None:
    samples = _samples(1, 8)
    samples.choices = [
        Choice(0, (1, 2), 0.7, 0.8),
        Choice(0, (1, 2), 1.2, 1.3),
        Choice(0, (1, 2), 0.7, 1.3),
        Choice(0, (1, 2), 0.97, 0.99),
    ]
    assert AccuracyTable.of(samples, MACHINE, "time").choices == ((0, (1, 2), True), (0, (1, 2), False))
    assert AccuracyTable.of(samples, MACHINE, "time", least=1e9).choices == ()
