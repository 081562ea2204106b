"""Cases of the node suite inside If, Loop and Scan give what they give alone."""

from __future__ import annotations

import pytest
from tests.fuzz.bodies import composed, judge, usable_cases

SAMPLE = range(11, 1800, 61)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SAMPLE)
def test_a_case_in_a_body_gives_what_it_gives_alone(seed: int) -> None:
    sample = composed(seed)
    verdict = judge(sample)
    assert verdict.status in ("right", "as alone"), (sample.case.name, sample.kind, verdict.reason)


def test_the_sample_has_every_kind_with_shapes_open_and_fixed() -> None:
    samples = [composed(seed) for seed in SAMPLE]
    assert len({sample.kind for sample in samples}) == 6
    assert {sample.is_open for sample in samples} == {True, False}
    assert len(usable_cases()) > 1500


def test_a_wrong_result_is_noticed() -> None:
    sample = composed(next(s for s in SAMPLE if judge(composed(s)).status == "right"))
    sample.expected[0] = sample.expected[0] + sample.expected[0].dtype.type(1)
    assert judge(sample).status == "wrong"


@pytest.mark.slow
def test_no_case_is_wrong_in_any_body() -> None:
    found = [(s, judge(composed(s))) for s in range(6 * len(usable_cases()))]
    assert not [(s, verdict.reason) for s, verdict in found if verdict.is_failure]
