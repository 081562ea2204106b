"""Splits: instances cover an output once, and those that meet a region are all that do."""

import random

import pytest

from tilewright.ir.region import Region, intersect, volume
from tilewright.partition.split import WHOLE, Split, instance_region, instances_meeting, split_of

SHAPE = (5, 7, 4)
SPLITS = [WHOLE, Split(1, 3), Split(0, 5, Split(2, 3)), split_of([(2, 2), (0, 3), (1, 7)])]


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_instances_make_every_element_once(split: Split) -> None:
    regions = [instance_region(SHAPE, split, index) for index in range(split.num_instances)]
    assert sum(map(volume, regions)) == 5 * 7 * 4
    assert all(intersect(a, b) is None for i, a in enumerate(regions) for b in regions[:i])


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_instances_that_meet_a_region_are_those_with_something_in_common(split: Split) -> None:
    draw = random.Random(1)
    for _ in range(50):
        region: Region = tuple(sorted(draw.choices(range(extent + 1), k=2)) for extent in SHAPE)  # type: ignore[misc]
        common = [
            index
            for index in range(split.num_instances)
            if volume(intersect(instance_region(SHAPE, split, index), region) or ((0, 0),))
        ]
        assert list(instances_meeting(SHAPE, split, region)) == common


def test_cuts_by_one_are_none() -> None:
    assert split_of([(0, 1), (1, 1)]) is WHOLE
    assert split_of([(0, 1), (1, 2)]) == Split(1, 2)
