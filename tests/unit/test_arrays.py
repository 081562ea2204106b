"""Arrays: distinct values are those that numpy's own `unique` gives."""

import numpy as np
import pytest

from tilewright.arrays import distinct


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 4), (2, 0, 3)])
def test_distinct_values_are_ascending_and_come_once(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(-3, 3, shape)
    assert np.array_equal(distinct(values), np.unique(values))
    assert distinct(values).dtype == values.dtype
