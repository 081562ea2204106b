"""The garbage collector runs less often while plans are made, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.integer_networks import integer_network

from tilewright.comparison import best_plan
from tilewright.compiler import plan_optimised
from tilewright.options import Options
from tilewright.system.gc_tuning import collected_rarely
from tilewright.target_ref import TargetRef


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thresholds_come_back_after_the_last_block_and_after_errors() -> None:
    gc.set_threshold(700, 11, 12)
    with collected_rarely():
        inside = gc.get_threshold()
        assert inside[0] > 700
        assert inside[1:] == (11, 12)
        with pytest.raises(ZeroDivisionError), collected_rarely():
            gc.get_threshold()[0] / 0
        assert gc.get_threshold() == inside
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (1 << 30, 10, 10)])
def test_who_wants_fewer_collections_or_none_is_let_alone(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with collected_rarely():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_the_best_plan_is_searched_with_rare_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []

    def watched(*arguments: Any) -> Any:
        met.append(gc.get_threshold()[0])
        return best_plan(*arguments)

    monkeypatch.setattr("tilewright.compiler.best_plan", watched)
    gc.set_threshold(700, 10, 10)
    plan_optimised(integer_network(3), Options(target=TargetRef.parse("interpreter")))
    assert met[0] > 700
    assert gc.get_threshold() == (700, 10, 10)
