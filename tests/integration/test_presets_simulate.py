"""Every machine of the package runs networks, or says in one line what it is for."""

# mypy: disable-error-code="operator"

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.hardware.missing_fields import missing_fields
from tilewright.hardware.presets import load_preset, preset_names

FOR_MAPPING = {
    "eyeriss",
    "eyeriss-v2",
    "nvdla-large",
    "nvdla-small",
    "nvdla-small-256",
    "simba-chip",
    "simba-cosa-paper",
    "simba-cosa-repo",
    "simba-large",
    "tpu-v1",
}


FOR_INTEGERS = {"goya", "zcu102"}
"""They multiply integers alone: a network of floats has to be lowered."""


def simulated_or_refused(name: str, network: str, image: int) -> None:
    target = name
    model = tw.zoo.build(network, image=image)
    if name in FOR_MAPPING:
        with pytest.raises(tw.MachineError, match="serves mapping alone") as caught:
            tw.simulate(model, name, recipe="graphturbo")
        assert len(str(caught.value).splitlines()) == 1
        return
    if name in FOR_INTEGERS:
        with pytest.raises(tw.MachineError, match=r"lower the network with -t .*dtype=int8") as caught:
            tw.simulate(model, name, recipe="graphturbo")
        assert len(str(caught.value).splitlines()) == 1
        target = f"{name}{{dtype=int8}}"
    result = tw.simulate(model, target, recipe="graphturbo")
    assert result.time_s >= result.lower_bound_s > 0
    machine = load_preset(name)
    least_w = (machine.static_power_w or 0.0) / machine.num_clusters
    assert result.energy_j > least_w * result.time_s > 0


def test_those_for_mapping_are_those_that_lack_something() -> None:
    assert {n for n in preset_names() if missing_fields(load_preset(n))} == FOR_MAPPING


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", preset_names())
def test_a_small_network_is_simulated_or_refused(name: str) -> None:
    simulated_or_refused(name, "squeezenet1_1", 64)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["resnet50", "mobilenet_v2"])
@pytest.mark.parametrize("name", preset_names())
def test_a_network_is_simulated_or_refused(name: str, network: str) -> None:
    simulated_or_refused(name, network, 224)
