"""Which tiles are known to be inside or outside: found by arithmetic, as looking at each would find."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.targets.cpu.loopnest.tiles import _crossing


@given(
    st.integers(-50, 50),
    st.integers(-5, 5),
    st.integers(-50, 50),
)
def test_a_crossing_is_where_the_side_changes(start: int, step: int, bound: int) -> None:
    sides = [start + position * step >= bound for position in range(200)]
    changes = [p for p in range(1, 200) if sides[p] != sides[p - 1]]
    found = _crossing(start, step, bound)
    assert changes == ([found] if found is not None and found > 0 else [])
