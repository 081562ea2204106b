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
from tests.support.models import host_net, mixed_outputs, small_net

import tilewright as tw
from tilewright.compiler import plan
from tilewright.errors import UsageError
from tilewright.ir.interpret import run_graph
from tilewright.options import Accuracy, Options
from tilewright.program import Program
from tilewright.steps import SearchName
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.lower.arrange import arrange
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredModel, LoweredStage, LoweredStep
from tilewright.targets.cpu.product.select import product_candidates, product_variations
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.template import Context
from tilewright.targets.cpu.tune.tune import Tuner
from tilewright.tuning import Candidate, Choice, Choices, Trial, TunedPlan, TuningDatabase

MODEL = tw.load(small_net(channels=40, size=20))
OPTIONS = Options(threads=2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    return tmp_path


def lowered(choices: Choices | None = None, accuracy: Accuracy = "default") -> LoweredModel:
    program = plan(MODEL.graph, OPTIONS).program
    kernels = lower_partition(program.partition, host_isa(), accuracy=accuracy, choices=choices or {})
    return arrange(kernels, program.schedule)


def candidates(accuracy: Accuracy = "default") -> dict[str, tuple[Choice, ...]]:
    return {
        signature: product_candidates(
            product.nest, Context(host_isa(), product.layouts, accuracy, product.constants)
        )
        for signature, product in lowered().products.items()
    }


def texts(model: LoweredModel) -> dict[str, str]:
    return {launch.kernel.signature: launch.kernel.text for launch in model.launches}


def test_the_first_candidate_is_what_the_estimate_chooses() -> None:
    first = {signature: choices[0] for signature, choices in candidates().items()}
    assert len(first) == 3
    assert texts(lowered(first)) == texts(lowered())


def test_every_candidate_is_a_kernel_of_its_own() -> None:
    for signature, choices in candidates().items():
        made = {texts(lowered({signature: choice}))[signature] for choice in choices}
        assert len(made) == len(choices)


def test_variations_are_other_kernels_than_the_candidates() -> None:
    listed = candidates()
    products = lowered().products
    for signature, product in products.items():
        context = Context(host_isa(), product.layouts, "default", product.constants)
        varied = product_variations(product.nest, context)
        assert not set(varied) & set(listed[signature])
        usual = texts(lowered())[signature]
        for choice in varied[:3]:
            launches = [x for x in lowered({signature: choice}).launches if x.kernel.signature == signature]
            assert {launch.kernel.choice for launch in launches} == {choice}, "nothing was declined"
            assert launches[-1].kernel.text != usual


def test_strict_has_no_candidate_that_reassociates() -> None:
    templates = {c.template for choices in candidates("strict").values() for c in choices}
    assert templates == {"contraction"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "choice",
    [
        Choice.of("contraction", rows=99, vectors=9, row_parts=1, panel_parts=1),
        Choice.of("contraction", rows=0, vectors=1, row_parts=1, panel_parts=1),
        Choice.of("contraction", rows=4, vectors=1, row_parts=100000, panel_parts=1),
        Choice.of("winograd", tile=3),
        Choice.of("winograd", tile=4, num_blocks=0, panel_parts=1),
        Choice.of("winograd", tile=4, num_blocks=1, panel_parts=99),
        Choice.of("nonsense"),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_made_leaves_the_estimates(choice: Choice) -> None:
    plain = texts(lowered())
    assert texts(lowered(dict.fromkeys(plain, choice))) == plain


@pytest.mark.sampled(0)
def test_all_candidates_agree_with_the_reference() -> None:
    program = plan(MODEL.graph, OPTIONS).program
    feed = {
        v.name: np.random.default_rng(0).standard_normal(v.shape).astype(np.float32)
        for v in program.graph.inputs
    }
    expected = run_graph(MODEL.graph, feed)
    ways = candidates()
    for number in range(max(map(len, ways.values()))):
        choices = {signature: found[number % len(found)] for signature, found in ways.items()}
        code = CpuTarget().generate(plan_with(choices))
        executable = code.load(2)
        got = executable.run(feed)
        executable.close()
        for name, array in expected.items():
            np.testing.assert_allclose(got[name], array, atol=1e-4 * np.abs(array).max())


def plan_with(choices: Choices) -> Program:
    return replace(plan(MODEL.graph, OPTIONS).program, choices=choices)


def test_what_tuning_found_is_used_by_the_next_compilation(cache: Path) -> None:
    assert tw.compile(MODEL, threads=2).tuning is None
    tuned = tw.tune(MODEL, threads=2, budget="4trials", search="flat")
    assert tuned.tuning is not None
    assert 0 < tuned.tuning.num_trials <= 4 + 2 * len(candidates()), "and those measured again"
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
    """With other threads the last candidate was fast: no plan follows, but it has the first turn."""
    tuner = Tuner.of(CpuTarget(), CpuTarget().generate(plan(MODEL.graph, OPTIONS).program))
    site = tuner.measured_sites()[0]
    last = site.candidates[-1]
    assert last != site.candidates[0]
    elsewhere = replace(tuner.context, num_threads=7)
    tuner.database.record_trials(elsewhere, [(site.key, Trial(last, 10.0, 100.0))])
    assert tw.compile(MODEL, threads=2).tuning is None
    tw.tune(MODEL, threads=2, budget="1trials", search="flat")
    assert last in {trial.candidate for trial in tuner.database.trials(tuner.context, site.key)}
    assert tuner.database.subjects("site")[site.key] == ", ".join(site.nodes)


def test_a_stored_plan_decides_kernels_and_the_artifact_keeps_it(cache: Path) -> None:
    choices = {signature: found[-1] for signature, found in candidates().items()}
    code = CpuTarget().generate(plan(MODEL.graph, OPTIONS).program)
    tuner = Tuner.of(CpuTarget(), code)
    won = {signature: Candidate.of({signature: choice}) for signature, choice in choices.items()}
    stored = TunedPlan(won, 100.0, 50.0, is_complete=True)
    TuningDatabase.in_folder(cache).store_plan(tuner.context, tuner.model, stored)
    compiled = tw.compile(MODEL, threads=2)
    assert compiled.tuning is not None
    assert compiled.tuning.speedup == 2.0
    assert texts(lowered(choices)) != texts(lowered())
    made = {k.symbol for k in compiled.kernels}
    assert made == {launch.kernel.symbol for launch in lowered(choices).launches}
    assert any("measured to be the best" in note for k in compiled.kernels for note in k.notes)
    opened = tw.open(compiled.save(cache / "m.tw"))
    assert opened.program.choices == choices
    assert tw.compile(MODEL, threads=2).save(cache / "n.tw").read_bytes() == (cache / "m.tw").read_bytes()


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


def tuner_of(model: onnx.ModelProto, schedule: str) -> Tuner:
    options = Options(threads=2, schedule=schedule)
    return Tuner.of(CpuTarget(), CpuTarget().generate(plan(tw.load(model).graph, options).program))


def test_what_shares_a_step_is_no_measurement_of_a_product(cache: Path) -> None:
    model = branches()
    tuned = tw.tune(model, threads=2, schedule="greedy", budget="6trials").tuning
    assert tuned is not None
    assert tuned.num_trials >= 6
    assert "; search flat: some kernels run side by side" in tuned.outcome
    database = TuningDatabase.in_folder(cache)
    shared, alone = tuner_of(model, "greedy"), tuner_of(model, "sequential")
    assert shared.context == alone.context
    product, group = shared.measured_sites()
    assert product.nodes == ("first",)
    assert group.nodes == ("like", "other")
    assert database.trials(shared.context, product.key)
    assert database.trials(shared.context, group.key)
    like_first, other = alone.measured_sites()
    assert like_first.key == product.key, "alone in its step it is measured for every schedule"
    assert database.trials(alone.context, other.key) == ()
    assert tw.compile(model, threads=2).tuning is None
    again = tw.compile(model, threads=2, schedule="greedy").tuning
    assert again is not None
    assert again.is_stored
    assert [k.before_ns is not None for k in again.kernels] == [True, True]


def test_every_site_is_credited_with_the_steps_that_are_its_own() -> None:
    tuner = tuner_of(branches(), "greedy")
    steps = tuner.plain.lowered.steps
    sizes = {tuner.sites.site_of(step): len(launches_of(step)) for step in steps}
    product, group = tuner.measured_sites()
    assert (sizes[product.key], sizes[group.key]) == (1, 2)
    direct = next(
        c for c in group.candidates if "winograd" not in str(c) and dict(c.choices).keys() - {product.key}
    )
    other = replace(tuner.program, choices=tuner.sites.choices({group.key: direct}))
    changed = CpuTarget().generate(other).lowered.steps
    assert [tuner.sites.site_of(step) for step in changed] == [tuner.sites.site_of(step) for step in steps]


def test_a_choice_for_a_group_leaves_the_same_product_elsewhere_as_it_is() -> None:
    tuner = tuner_of(branches(), "greedy")
    product, group = tuner.measured_sites()
    like = next(c for c in reversed(group.candidates) if product.key in dict(c.choices))
    plain, changed = (
        [
            (launch.nodes[0].name, launch.kernel.symbol)
            for step in code.lowered.steps
            for launch in launches_of(step)
            if launch.kernel.signature
        ]
        for code in (
            tuner.plain,
            CpuTarget().generate(replace(tuner.program, choices=tuner.sites.choices({group.key: like}))),
        )
    )
    assert [name for (name, before), (_, after) in zip(plain, changed, strict=True) if before != after] == [
        "like"
    ]


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
    monkeypatch.setattr("tilewright.targets.cpu.tune.form_tuner.random_feed", lambda program: {})
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        assert tw.compile(MODEL, threads=2, budget="9trials").tuning is None
    assert [r.message for r in caplog.records] == [
        "nothing was measured, estimates choose all kernels: "
        "input 'image' is missing: this model needs image."
    ]


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
@pytest.mark.parametrize("search", [None, "reformer"])
@pytest.mark.parametrize(
    ("make", "why"),
    [(host_net, "some operators run in Python"), (mixed_outputs, "output 'c' is a constant")],
)
def test_a_search_says_why_it_leaves_forms_as_they_are(
    make: Callable[[], onnx.ModelProto], why: str, search: SearchName | None, caplog: pytest.LogCaptureFixture
) -> None:
    tuned = tw.tune(make(), threads=1, budget="1trials", search=search)
    assert (tuned.to_json()["search"], tuned.to_json()["why_search"]) == ("flat", why)
    assert tuned.lines()[0].endswith(f"; search flat: {why}")
    warnings = [record.message for record in caplog.records]
    asked = f"only products are tuned, as --search flat does: {why}"
    assert warnings == ([] if search is None else [asked])


def test_a_search_that_was_asked_for_needs_no_reason() -> None:
    tuned = tw.tune(host_net(), threads=1, budget="1trials", search="flat")
    assert "search" not in tuned.lines()[0]


def test_only_targets_with_kernels_are_tuned() -> None:
    with pytest.raises(UsageError, match="interpreter"):
        tw.tune(MODEL, "interpreter")
