"""What documents of `tilewright reproduce` must say, whichever the paper."""

from __future__ import annotations

from typing import Any

from tilewright.reproduce import REPRODUCTIONS
from tilewright.reproduce.base import Basis, printed_names


def made(document: dict[str, Any]) -> list[str]:
    """The names of the exhibits that were made; all others are there with a reason."""
    exhibits = document["exhibits"]
    shown = [name for exhibit in exhibits for name in printed_names(exhibit["name"])]
    printed = [one.name for one in REPRODUCTIONS.get(document["paper"]).printed]
    assert set(shown) == set(printed)
    assert sorted(set(shown), key=shown.index) == printed, "in the paper's order"
    for exhibit in exhibits:
        assert exhibit["said"]
        assert exhibit["basis"] in list(Basis)
        has_results = exhibit["figures"] or exhibit["rows"]
        assert bool(has_results) == (exhibit["basis"] != Basis.NOT_REPRODUCED)
    return [exhibit["name"] for exhibit in exhibits if exhibit["basis"] != Basis.NOT_REPRODUCED]
