"""Facts are made once for each key, and forgotten where all together would be too large."""

from __future__ import annotations

import functools

from tilewright.known_facts import KnownFacts


def test_facts_are_made_once_until_all_are_larger_than_the_limit() -> None:
    known = KnownFacts(3)
    made: list[str] = []

    def asked(*keys: str) -> list[str | None]:
        def fact(key: str) -> str | None:
            made.append(key)
            return None if key == "none" else key  # None is a fact, too

        return [known.of(key, functools.partial(fact, key)) for key in keys]

    assert asked("a", "none", "a", "none", "b") == ["a", None, "a", None, "b"]
    assert made == ["a", "none", "b"]
    asked("c", "c", "a")  # with the fourth those before are forgotten, it is not
    assert made == ["a", "none", "b", "c", "a"]


def test_sizes_of_facts_count_and_one_that_is_larger_than_the_limit_is_kept_alone() -> None:
    known = KnownFacts(10)
    assert known.of("small", lambda: [0] * 4, len) == [0] * 4
    large = known.of("large", lambda: [1] * 20, len)
    assert known.of("large", lambda: [2], len) is large
    assert known.of("small", lambda: [3], len) == [3]
    assert known.of("large", lambda: [2], len) == [2]
