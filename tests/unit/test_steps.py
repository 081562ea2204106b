"""What tuning says of itself: how many candidates of how many it measured, and what it kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.partition.form import Form
from tilewright.steps import TuningInfo


def told(
    *, num_candidates: int = 40, num_measured: int = 12, tuned_ns: float = 0.0, is_stored: bool = False
) -> TuningInfo:
    return TuningInfo(
        forms={0: Form.whole(1)} if tuned_ns else {},
        plain_ns=2e6 if tuned_ns else 0.0,
        tuned_ns=tuned_ns,
        num_trials=num_measured,
        is_complete=False,
        is_stored=is_stored,
        num_candidates=num_candidates,
        num_measured=num_measured,
    )


@pytest.mark.parametrize(
    ("info", "line"),
    [
        (told(), "12 of 40 candidates measured; kept: the estimates' choices"),
        (
            told(tuned_ns=1.6e6),
            "12 of 40 candidates measured; kept: other forms of 1 subgraph, 2.0 ms became 1.6 ms (1.25 x)",
        ),
        (
            replace(told(num_measured=0), why_unmeasured="the budget is too small"),
            "nothing was measured: the budget is too small; kept: the estimates' choices",
        ),
        (
            told(is_stored=True),
            "12 of 40 candidates measured by an earlier search; kept: the estimates' choices",
        ),
        (
            told(is_stored=True, num_candidates=0),
            "12 candidates measured by an earlier search; kept: the estimates' choices",
        ),
    ],
)
def test_tuning_says_how_many_candidates_it_measured_and_what_it_kept(info: TuningInfo, line: str) -> None:
    assert info.lines() == (line,)
