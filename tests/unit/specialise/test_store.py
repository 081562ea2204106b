"""The store of specialisations: one of each key, within a limit, while others go on."""

from __future__ import annotations

import logging
import threading

import pytest

from tilewright.specialise.store import Store


def test_a_key_is_made_once() -> None:
    store: Store[str, object] = Store(4)
    first = store.obtain("a", object)
    assert store.obtain("a", object) is first
    assert (store.num_made, store.items()[0][1].num_uses) == (1, 2)


def test_the_least_recently_used_goes_first(caplog: pytest.LogCaptureFixture) -> None:
    store: Store[str, object] = Store(2)
    store.obtain("a", object)
    store.obtain("b", object)
    store.get("a")
    with caplog.at_level(logging.WARNING):
        store.obtain("c", object)
        store.obtain("d", object)
    assert [key for key, _ in store.items()] == ["c", "d"]
    assert store.num_dropped == 2
    assert [record.getMessage()[:20] for record in caplog.records] == ["more than 2 sets of "]


def test_what_is_light_does_not_push_out_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.specialise.store.MAX_LIGHT", 3)
    store: Store[str, int] = Store(2, is_light=lambda value: value < 10)
    for key, value in zip("abcdefg", (10, 1, 2, 11, 3, 4, 5), strict=True):
        store.obtain(key, lambda value=value: value)  # type: ignore[misc]
    assert [key for key, _ in store.items()] == ["a", "d", "e", "f", "g"]
    store.obtain("h", lambda: 12)
    assert [key for key, _ in store.items()] == ["d", "e", "f", "g", "h"]


def test_what_is_there_is_given_while_another_is_made() -> None:
    store: Store[str, int] = Store(4)
    store.obtain("known", lambda: 1)
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        assert may_end.wait(10)
        return 2

    maker = threading.Thread(target=store.obtain, args=("new", slow))
    maker.start()
    assert begun.wait(10)
    assert store.obtain("known", lambda: 3) == 1
    may_end.set()
    maker.join()
    assert store.get("new") == 2


def test_threads_that_ask_for_the_same_key_get_the_same_value() -> None:
    store: Store[str, object] = Store(4)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(store.obtain("a", object))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert store.num_made == 1


def test_nothing_is_kept_of_what_failed() -> None:
    store: Store[str, int] = Store(4)
    with pytest.raises(ZeroDivisionError):
        store.obtain("a", lambda: 1 // 0)
    assert store.obtain("a", lambda: 1) == 1
