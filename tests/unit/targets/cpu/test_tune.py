"""Every candidate computes the same; tuning a small model gives a plan that the next compilation uses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper
from tests.support.form_spaces import check_space
from tests.support.models import host_net, mixed_outputs, small_net

import tilewright as tw
from tilewright.compiler import plan
from tilewright.cost.base import Measurement
from tilewright.errors import UsageError
from tilewright.options import Options
from tilewright.partition.form import Form
from tilewright.steps import SearchName
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredStage, LoweredStep
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.tune.tuner import FormTuner
from tilewright.tuning import Observation, TuningDatabase
from tilewright.tuning.form_plan import FormSite

pytestmark = pytest.mark.sampled(5)

MODEL = tw.load(small_net(channels=40, size=20))
OPTIONS = Options(threads=2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    return tmp_path


def test_what_tuning_found_is_used_by_the_next_compilation(cache: Path) -> None:
    assert tw.compile(MODEL, threads=2).tuning is None
    tuned = tw.tune(MODEL, threads=2, budget="4trials", search="flat")
    assert tuned.tuning.search == "flat"
    assert 0 < tuned.tuning.num_trials <= 4
    again = tw.compile(MODEL, threads=2)
    assert again.tuning is not None
    assert again.tuning.is_stored
    assert [k.symbol for k in again.kernels] == [k.symbol for k in tuned.model.kernels]
    budgeted = tw.compile(MODEL, threads=2, budget="4trials")
    assert budgeted.tuning is not None, "an earlier search counts"
    assert budgeted.tuning.is_stored
    assert tw.compile(MODEL, threads=1).tuning is None, "other threads, another measurement"
    assert tw.compile(MODEL, threads=2, no_cache=True).tuning is None


def test_what_did_well_elsewhere_is_measured_first(cache: Path) -> None:
    """With other threads the last start was fast: no plan follows, but it has the first turn."""
    tuner = tuner_of(MODEL, "sequential")
    sites = sites_of(tuner)
    elsewhere = replace(tuner.context, num_threads=7)
    for site in sites:
        last = site.space.starts()[-1]
        fast = Observation(site.key, last.to_json(), Measurement.of([10.0], "a run"), 100.0, 1.7e9)
        tuner.database.record(elsewhere, [fast])
    assert tw.compile(MODEL, threads=2).tuning is None
    tw.tune(MODEL, threads=2, budget="1trials", search="evolutionary")
    (seen,) = (o for site in sites for o in tuner.database.observations(tuner.context, site.key))
    (site,) = (site for site in sites if site.key == seen.site)
    assert seen.candidate == site.space.starts()[-1].to_json() != site.space.starts()[0].to_json()
    assert tuner.database.subjects("site")[site.key] == ", ".join(site.nodes)


def launches_of(step: LoweredStep) -> tuple[KernelLaunch, ...]:
    return step.launches if isinstance(step, LoweredStage) else ()


def branches() -> onnx.ModelProto:
    """A convolution that has its stage to itself, then one like it and another one side by side."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[1,32,24,24] x) => (float[1,32,24,24] y, float[1,32,24,24] z)
        { first = Conv(x, w) r = Relu(first) like = Conv(r, w) y = Relu(like)
          other = Conv <pads = [1, 1, 1, 1]> (r, v) z = Relu(other) }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (32, 32, 1, 1)), ("v", (32, 32, 3, 3))):
        weights = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    return model


def tuner_of(model: onnx.ModelProto | tw.Model, schedule: str) -> FormTuner:
    options = Options(threads=2, schedule=schedule)
    graph = (model if isinstance(model, tw.Model) else tw.load(model)).graph
    return FormTuner.of(CpuTarget(), CpuTarget().generate(plan(graph, options).program))


def sites_of(tuner: FormTuner) -> tuple[FormSite[Form], ...]:
    return tuner.sites.with_spaces(tuner.spaces())[1]


def test_what_shares_a_step_is_one_site(cache: Path) -> None:
    model = branches()
    tuned = tw.tune(model, threads=2, schedule="greedy", budget="6trials").tuning
    assert tuned.num_trials == 6
    database = TuningDatabase.in_folder(cache)
    shared, alone = tuner_of(model, "greedy"), tuner_of(model, "sequential")
    assert shared.context == alone.context
    product, group = sites_of(shared)
    assert (product.nodes, group.nodes) == (("first",), ("like and other",))
    check_space(group.space, steps=20)
    assert database.observations(shared.context, product.key)
    assert database.observations(shared.context, group.key)
    like_first, other = sites_of(alone)
    assert like_first.key == product.key, "alone in its step it is measured for every schedule"
    assert database.observations(alone.context, other.key) == ()
    assert tw.compile(model, threads=2).tuning is None
    again = tw.compile(model, threads=2, schedule="greedy").tuning
    assert again is not None
    assert again.is_stored
    assert [s.nodes for s in again.subgraphs] == [product.nodes, group.nodes]


def test_every_site_is_credited_with_the_steps_that_are_its_own() -> None:
    tuner = tuner_of(branches(), "greedy")
    product, group = sites_of(tuner)
    for forms in ({}, {group.key: group.space.starts()[-1]}):
        lowered = CpuTarget().generate(tuner.sites.planned(forms)).lowered
        sizes = [sum(map(len, map(launches_of, [step]))) for step in lowered.steps]
        times = tuner.sites.by_site(lowered, [[float(size) for size in sizes]])
        assert {key: sum(ns for (ns,) in kernels.values()) for key, kernels in times.items()} == {
            product.key: 1.0,
            group.key: 2.0,
        }


def test_a_form_of_a_group_leaves_equal_subgraphs_elsewhere_as_they_are() -> None:
    tuner = tuner_of(branches(), "greedy")
    _, group = sites_of(tuner)
    like = next(form for form in group.space.starts() if form.kernels[0].choices)
    plain, changed = (
        [(x.nodes[0].name, x.kernel.symbol) for step in lowered.steps for x in launches_of(step) if x.nodes]
        for lowered in (
            tuner.plain.lowered,
            CpuTarget().generate(tuner.sites.planned({group.key: like})).lowered,
        )
    )
    before = dict(plain)
    assert [name for name, symbol in changed if before.get(name) not in (None, symbol)] == ["like"]
    assert tuner.sites.fitting(group.key, like.to_json()) == like
    assert tuner.sites.fitting(group.key, like.kernels[0].to_json()) is None


def test_a_frozen_cache_without_the_model_is_an_error() -> None:
    tw.compile(MODEL, threads=2)
    with pytest.raises(UsageError, match="frozen"):
        tw.compile(MODEL, threads=2, frozen=True, budget="1trial")


def test_a_damaged_database_is_a_warning_and_no_more(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    (cache / "tuning.db").write_bytes(b"junk" * 500)
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        assert tw.compile(MODEL, threads=2).tuning is None
    assert len(caplog.records) == 1


def test_a_cache_that_cannot_be_written_is_a_warning_and_no_more(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "tuning.db").mkdir()
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        tuned = tw.tune(MODEL, threads=2, budget="2trials", search="flat")
    assert tuned.tuning is not None
    assert tuned.tuning.num_trials > 0
    assert len(caplog.records) == 1


def test_a_model_that_refuses_random_inputs_is_compiled_by_estimate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tilewright.targets.cpu.tune.bench.random_feed", lambda program, **_: {})
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        assert tw.compile(MODEL, threads=2, budget="9trials").tuning is None
    assert [r.message for r in caplog.records] == [
        "nothing was measured, estimates choose all kernels: "
        "input 'image' is missing: this model needs image."
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("search", ["reformer", "flat"])
def test_a_table_of_one_row_is_measured_with_the_index_that_it_has(search: SearchName) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[16,64] x, int64[16] i) => (float[16,64] y)
        { rows = Gather(table, i) sum = Add(x, rows) y = MatMul(sum, w) }"""
    )
    for name, shape in (("table", (1, 64)), ("w", (64, 64))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    tuned = tw.tune(model, threads=1, budget="2trials", search=search)
    assert tuned.tuning is not None
    assert tuned.tuning.num_trials > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [host_net, mixed_outputs])
def test_host_operators_and_constant_outputs_are_tuned(
    make: Callable[[], onnx.ModelProto],
) -> None:
    tuned = tw.tune(make(), threads=1, budget="2trials").tuning
    assert (tuned.search, tuned.num_trials) == ("reformer", 2)


def test_a_search_that_measures_nothing_says_why() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[4] x) => (float[4] y) { y = Identity(x) }"""
    )
    tuned = tw.tune(model, threads=1, budget="2trials")
    why = "its kernels take less time than can be measured"
    assert tuned.lines() == (f"nothing was measured: {why}; kept: the estimates' choices",)


def test_only_targets_with_kernels_are_tuned() -> None:
    with pytest.raises(UsageError, match="interpreter"):
        tw.tune(MODEL, "interpreter")
