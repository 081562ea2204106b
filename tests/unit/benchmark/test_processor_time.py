"""Budgets of benchmarks that run by processor time."""

from __future__ import annotations

import time

import pytest
from benchmarks.joint import count_processor_time

from tilewright.planning.budget import UNLIMITED, Budget


def test_what_passes_before_a_budget_begins_is_not_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1.0
    monkeypatch.setattr(Budget, "start", Budget.start)  # is put back
    monkeypatch.setattr(time, "process_time", lambda: now_s)
    monkeypatch.setattr(time, "monotonic", lambda: 2 * now_s)  # other processes run as much
    count_processor_time()
    now_s = 4.0  # a network was loaded
    meter = Budget(UNLIMITED, deadline_s=5.0).start()
    now_s = 8.5
    assert meter.left_s == 0.5, "however seldom it is looked at"
    assert not meter.is_over
    now_s = 9.5
    assert meter.is_over
