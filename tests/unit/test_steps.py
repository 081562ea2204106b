"""What tuning says of itself: how many candidates of how many it measured, and what it kept."""

from __future__ import annotations

import pytest

from tilewright.planning.choice import Choice
from tilewright.steps import KernelTuning, TuningInfo
from tilewright.tuning import NO_CHOICES


def told(
    *, num_candidates: int = 40, num_measured: int = 12, tuned_ns: float = 0.0, is_stored: bool = False
) -> TuningInfo:
    changed = "blocks of 8 rows" if tuned_ns else None
    return TuningInfo(
        kernels=(KernelTuning(("conv1",), "contraction", changed, 2e6, 1.5e6),),
        choices={"conv1": Choice("contraction", ())} if tuned_ns else NO_CHOICES,  # type: ignore[arg-type]
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
            "12 of 40 candidates measured; kept: 1 changed kernel, 2.0 ms became 1.6 ms (1.25 x)",
        ),
        (
            told(num_measured=0),
            "0 of 40 candidates measured, as the budget is too small to run this model often enough; "
            "kept: the estimates' choices",
        ),
        (
            told(is_stored=True),
            "12 of 40 candidates measured by an earlier search; kept: the estimates' choices",
        ),
        (
            told(is_stored=True, num_candidates=0),
            "12 candidates measured by an earlier search; kept: the estimates' choices",
        ),
        (told(num_candidates=0, num_measured=0), "0 of 0 candidates measured; kept: the estimates' choices"),
    ],
)
def test_tuning_says_how_many_candidates_it_measured_and_what_it_kept(info: TuningInfo, line: str) -> None:
    assert info.lines() == (line,)
