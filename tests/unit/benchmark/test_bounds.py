"""What a model is bound by: shares of a call, and the line that says so."""

from __future__ import annotations

import pytest

from tilewright.benchmark.bounds import BoundSplit
from tilewright.benchmark.limits import MachineLimits
from tilewright.benchmark.profile import Bound, KernelTime, Profile
from tilewright.report.workers import RecordedRun

LIMITS = MachineLimits(1, 100e9, None, 10e9, 100e9, 200e9, 1000, 50e9)


def profile(*kernels: tuple[Bound, float, float], between_ns: float = 0.0) -> Profile:
    """Kernels by what bounds them, their time, and their limit."""
    run_ns = sum(time_ns for _, time_ns, _ in kernels) + between_ns
    rows = tuple(
        KernelTime("k", "t", (), (), ns, ns, ns, ns / run_ns, 0, 0, 0, 0, limit_ns, bound, ())
        for bound, ns, limit_ns in kernels
    )
    shares: dict[str, float] = {}
    for row in rows:
        shares[row.bound] = shares.get(row.bound, 0.0) + row.share
    return Profile(rows, run_ns, between_ns, 10, LIMITS, {}, shares, RecordedRun(1, (), ()))


def test_shares_are_those_of_the_call_and_add_up() -> None:
    found = profile(("compute", 600, 300), ("memory", 200, 150), ("overhead", 100, 10), between_ns=100)
    split = BoundSplit.of(found, 2000)
    assert (split.compute, split.memory, split.host) == pytest.approx((0.3, 0.1, 0))
    assert split.overhead == pytest.approx(0.6), "of kernels 5 %, between them 5 %, of the call 50 %"
    assert split.limits == pytest.approx(460 / 2000)
    assert split.advice.startswith("bound by overheads: 30 % arithmetic, 10 % memory, 60 % overheads;")
    assert "23 %" in split.advice


def test_a_call_never_takes_less_than_what_happens_in_it() -> None:
    split = BoundSplit.of(profile(("compute", 900, 500), ("memory", 100, 80)), 800)
    assert (split.compute, split.memory, split.overhead) == pytest.approx((0.9, 0.1, 0))
    assert "bound by arithmetic" in split.advice


def test_operators_on_the_host_have_a_share_of_their_own() -> None:
    split = BoundSplit.of(profile(("compute", 100, 50), ("host", 900, 0)), 1000)
    assert split.host == pytest.approx(0.9)
    assert "bound by operators on the host" in split.advice
    assert split.to_json()["host"] == split.host
