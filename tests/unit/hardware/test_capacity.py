"""What a cluster holds, level by level."""

import pytest

from tilewright.hardware.capacity import (
    local_capacity_bytes,
    main_capacity_bytes,
    shared_capacity_bytes,
)
from tilewright.hardware.presets import load_preset


def test_activations_and_weights_share_the_buffers_of_a_cluster() -> None:
    machine = load_preset("stcp920")
    assert machine.shared is not None
    whole = (machine.shared.capacity_bytes or 0) * machine.num_instances_per_cluster(machine.shared)
    assert local_capacity_bytes(machine) == 8 << 20
    assert shared_capacity_bytes(machine) == whole - (2 << 20), "the weights' share"
    assert (main_capacity_bytes(machine) or 0) > whole


def test_a_machine_that_says_nothing_of_weights_keeps_a_part_of_its_buffers_free() -> None:
    machine = load_preset("a310")
    assert machine.local is not None
    assert not machine.local.shares
    whole = (machine.local.capacity_bytes or 0) * machine.num_cores_per_cluster
    assert local_capacity_bytes(machine) == pytest.approx(whole * 4 / 5, abs=machine.num_cores_per_cluster)


def test_a_machine_without_such_levels_has_no_room_there() -> None:
    machine = load_preset("simba-cosa-repo")
    assert machine.local is None
    assert local_capacity_bytes(machine) == 0
