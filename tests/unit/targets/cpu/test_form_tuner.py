"""Forms are tuned in the running model, what wins is stored and used, and nothing wrong is ever chosen."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.support.form_spaces import check_space
from tests.support.models import small_net

import tilewright as tw
from tilewright.compiler import plan
from tilewright.options import Options
from tilewright.partition.form import Form
from tilewright.planning import UNLIMITED, Budget
from tilewright.reproduce.ago.ablation import Stack
from tilewright.steps import SearchName, TuningSettings
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.tune.bench import ModelBench, random_feed
from tilewright.targets.cpu.tune.form_bench import FormModelBench
from tilewright.targets.cpu.tune.form_sites import FormSites
from tilewright.targets.cpu.tune.tuner import FormTuner
from tilewright.tuning.form_plan import FormSite, FormTrial, Paired, TunedForms
from tilewright.tuning.workers import Failed, Measured, MeasureRequest, MeasureResult, Samples

pytestmark = pytest.mark.sampled(4)

MODEL = tw.load(small_net(channels=40, size=20))
OPTIONS = Options(threads=2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def code() -> CpuCode:
    return CpuTarget().generate(plan(MODEL.graph, OPTIONS).program)


def sites_of(code: CpuCode) -> FormSites:
    return FormTuner.of(CpuTarget(), code).sites


def spaces_of(code: CpuCode) -> tuple[FormSite[Form], ...]:
    tuner = FormTuner.of(CpuTarget(), code)
    return tuner.sites.with_spaces(tuner.spaces())[1]


def others(code: CpuCode) -> dict[str, Form]:
    """Of every site the form that is worth measuring last of all."""
    return {site.key: site.space.starts()[-1] for site in spaces_of(code)}


def test_every_space_of_a_model_keeps_the_contract(code: CpuCode) -> None:
    sites = spaces_of(code)
    assert sites
    for site in sites:
        check_space(site.space, steps=8)


def test_a_plan_of_forms_is_a_program_that_computes_the_same(code: CpuCode) -> None:
    sites = sites_of(code)
    other = CpuTarget().generate(sites.planned(others(code)))
    assert {k.symbol for s in other.steps for k in s.kernels} != {
        k.symbol for s in code.steps for k in s.kernels
    }
    feed = random_feed(code.program)
    results = []
    for made in (code, other):
        executable = made.load(2)
        results.append({name: array.copy() for name, array in executable.run(feed).items()})
        executable.close()
    for name, expected in results[0].items():
        np.testing.assert_allclose(results[1][name], expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.sampled(0)
def test_what_tuning_found_is_used_by_the_next_compilation() -> None:
    tuned = tw.tune(MODEL, threads=2, budget="6trials", search="reformer").tuning
    assert tuned.search == "reformer"
    assert 0 < tuned.num_trials <= tuned.num_priced
    assert tuned.subgraphs
    assert all(s.why and s.num_measured <= s.num_priced for s in tuned.subgraphs)
    again = tw.compile(MODEL, threads=2)
    assert again.tuning is not None
    assert again.tuning.is_stored
    assert again.tuning.forms == tuned.forms
    assert tw.compile(MODEL, threads=1).tuning is None, "other threads, another measurement"


def test_a_stored_plan_decides_forms_and_the_artifact_keeps_them(code: CpuCode, cache: Path) -> None:
    tuner = FormTuner.of(CpuTarget(), code)
    forms = others(code)
    tuner.store(TunedForms(forms, 100.0, 50.0, is_complete=True), Budget(UNLIMITED))
    compiled = tw.compile(MODEL, threads=2)
    assert compiled.tuning is not None
    assert compiled.tuning.speedup == 2.0
    expected = CpuTarget().generate(tuner.sites.planned(forms))
    assert [k.symbol for k in compiled.kernels] == [k.symbol for s in expected.steps for k in s.kernels]
    opened = tw.open(compiled.save(cache / "m.tw"))
    kept = {s.id: s.form for s in opened.program.partition.subgraphs if s.form is not None}
    assert kept == tuner.sites.numbered(forms)
    assert tw.compile(MODEL, threads=2).save(cache / "n.tw").read_bytes() == (cache / "m.tw").read_bytes()


def test_a_stored_plan_tells_which_search_made_it(code: CpuCode) -> None:
    searches: tuple[SearchName, ...] = ("evolutionary", "reformer")
    for search in searches:
        tuner = FormTuner.of(CpuTarget(), code, TuningSettings(search=search))
        tuner.store(TunedForms(others(code), 100.0, 50.0, is_complete=True), Budget(UNLIMITED))
        compiled = tw.compile(MODEL, threads=2)
        assert compiled.tuning is not None
        assert compiled.tuning.search == search


class Pool:
    """Answers as it is told, one request after another."""

    def __init__(self, answers: Iterable[MeasureResult]) -> None:
        self.answers = iter(answers)
        self.requests: list[MeasureRequest] = []
        self.num_machines = 1

    def measure(self, requests: Iterable[MeasureRequest]) -> Iterator[MeasureResult]:
        for request in requests:
            self.requests.append(request)
            yield next(self.answers)

    def close(self) -> None:
        pass


def bench_with(code: CpuCode, pool: Pool, feed: Mapping[str, np.ndarray]) -> FormModelBench:  # type: ignore[type-arg]
    return FormModelBench(CpuTarget(), code, sites_of(code), ModelBench(pool, feed, {}, 1e-4, 10.0))


def test_kernels_are_credited_to_their_sites_and_failures_are_told(code: CpuCode) -> None:
    num_steps = len(code.lowered.steps)
    step_ns = tuple(float(number + 1) for number in range(num_steps))
    ran = Measured(Samples((100.0,) * 2, (step_ns,) * 2), Samples((100.0,) * 2, (step_ns,) * 2))
    pool = Pool([ran, Failed("crashed", "SIGSEGV")])
    bench = bench_with(code, pool, random_feed(code.program))
    (key, form), *_ = others(code).items()
    paired, failed = bench.compare({}, [{key: form}, {key: form}])
    assert isinstance(paired, Paired)
    assert failed == Failed("crashed", "SIGSEGV")
    credited = [ns for kernels in paired.plan.values() for samples in kernels.values() for ns in samples[:1]]
    assert sum(credited) <= sum(step_ns)
    assert credited
    assert all(request.baseline is not None for request in pool.requests)


def test_times_of_other_steps_than_the_code_has_are_a_failure(code: CpuCode) -> None:
    """What a worker says that another machine runs."""
    right = Samples((100.0,), ((1.0,) * len(code.lowered.steps),))
    wrong = [Samples((100.0,)), Samples((100.0,), ((1.0,),)), Samples((100.0,), ((1.0,) * 999,))]
    said = [Measured(right, right), *(m for w in wrong for m in (Measured(w, right), Measured(right, w)))]
    (key, form), *_ = others(code).items()
    bench = bench_with(code, Pool(said), random_feed(code.program))
    fits, *failed = bench.compare({}, [{key: form}] * len(said))
    assert isinstance(fits, Paired)
    assert {isinstance(one, Failed) and one.reason for one in failed} == {"crashed"}


def test_a_form_that_computes_something_else_is_refused(code: CpuCode) -> None:
    """The results expected are wrong here, so that the right ones are not what is expected."""
    feed = random_feed(code.program)
    executable = code.load(2)
    expected = {name: array + 1 for name, array in executable.run(feed).items()}
    executable.close()
    tuner = FormTuner.of(CpuTarget(), code)
    with tuner.pool() as pool:
        bench = FormModelBench(CpuTarget(), code, tuner.sites, ModelBench(pool, feed, expected, 1e-4, 20.0))
        (result,) = bench.compare({}, [others(code)])
    assert isinstance(result, Failed)
    assert result.reason == "wrong-values"


def test_what_won_for_subgraphs_alike_is_tried_first_in_another_network(code: CpuCode) -> None:
    tuner = FormTuner.of(CpuTarget(), code)
    spaces = {site.key: site.space for site in spaces_of(code)}
    forms = others(code)
    trials = [
        FormTrial(key, form, [40.0] * 5, 50.0, spaces[key].features(form)) for key, form in forms.items()
    ]
    tuner._record(trials, {})
    tuner._file_winners(TunedForms(forms, 100.0, 80.0), spaces)
    larger = tw.load(small_net(channels=48, size=24))
    elsewhere = CpuTarget().generate(plan(larger.graph, OPTIONS).program)
    there = FormTuner.of(CpuTarget(), elsewhere)
    hints = {site.key: there._hints(site.space) for site in spaces_of(elsewhere)}
    assert not hints.keys() & spaces.keys()
    assert any(hints.values())
    for site in spaces_of(elsewhere):
        assert all(site.space.read(form.to_json()) == form for form in hints[site.key])
        assert all(form != site.space.initial() for form in hints[site.key])


def test_without_intensive_fusion_no_kernel_has_two_complex_operators_in_blocks() -> None:
    stack = Stack(("pw", "dw"), 1, (32, 96, 96), 56)
    options = Options(threads=2, partition="ago{threshold=1e9}")
    code = CpuTarget().generate(plan(tw.load(stack.model()).graph, options).program)
    tuner = FormTuner.of(CpuTarget(), code, TuningSettings(search="conventional"))
    (space,) = tuner.spaces().values()
    assert len(space.complex) == 2
    check_space(space, steps=30)
    free = FormTuner.of(CpuTarget(), code).spaces()[0]
    fused = [form for form in free.starts() if not space.allows(form)]
    assert fused, "else there is nothing to leave out"
    assert all(space.read(form.to_json()) is None for form in fused)
    assert all(space.allows(form) for form in (space.initial(), *space.starts()))
    assert space.key != free.key
    rng, form = random.Random(0), space.initial()
    for _ in range(40):
        form = space.mutate(form, rng)
        assert space.allows(form)
