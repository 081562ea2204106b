"""Spaces keep their contract: forms are values that can be stored, and only the generator is random."""

from __future__ import annotations

from tests.support.form_spaces import ChainSpace, check_space


def test_the_synthetic_space_is_one() -> None:
    check_space(ChainSpace((4, 4, 16)))


def test_equal_chains_share_a_key() -> None:
    assert ChainSpace((4, 8)).key == ChainSpace((4, 8)).key != ChainSpace((8, 4)).key
