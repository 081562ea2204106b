"""`reproduce --device`: plans of a paper on a GPU, measured where there is one, else estimated."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.cuda import EMULATED
from tests.support.cuda_driver import FakeDriver, install

from tilewright.api.reproduction import reproduce_paper
from tilewright.errors import UsageError
from tilewright.reproduce import REPRODUCTIONS
from tilewright.reproduce.ago.reproduction import Ago
from tilewright.reproduce.base import Basis, Effort
from tilewright.reproduce.graphturbo import reproduction as graphturbo
from tilewright.reproduce.graphturbo.paper import NETWORKS
from tilewright.reproduce.ios.reproduction import PLANS
from tilewright.reproduce.on_device import OnDevice, exhibit_on_device, planned_on
from tilewright.target_ref import TargetRef
from tilewright.targets.cuda.device import DeviceError
from tilewright.targets.cuda.devices import open_device

pytestmark = pytest.mark.sampled(4)

_TWO = {"layerwise": {"partition": "layerwise"}, "AGO": {"partition": "ago"}}


def unheard(*_: Any) -> None:
    """Progress that is not shown."""


def test_plans_for_an_emulated_gpu_are_estimated_and_never_said_to_be_measured() -> None:
    found = planned_on("bert_tiny", {"sequence": 8}, TargetRef.parse(EMULATED), _TWO)
    assert all(plan.timing is None for plan in found.values())
    exhibit = exhibit_on_device("On a GPU", "Two.", {"BERT": found}, "AGO", "layerwise")
    assert exhibit.basis is Basis.ESTIMATED
    assert "nothing was measured" in exhibit.title
    assert "measured" not in " ".join(exhibit.heads)
    plan = found["AGO"]
    assert exhibit.rows[1][3:] == tuple(
        f"{n:,}" for n in (plan.num_kernels, plan.num_stages, plan.arena_bytes)
    )
    assert exhibit.figures[0].ours == found["layerwise"].estimate_ns / plan.estimate_ns


def test_plans_on_a_gpu_run_in_turns_beside_their_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeDriver())
    monkeypatch.setattr("tilewright.reproduce.in_turns._BLOCK_S", 0.0)
    monkeypatch.setattr("tilewright.reproduce.in_turns._SETTLE_S", 0.0)
    found = planned_on("bert_tiny", {"sequence": 8}, TargetRef.parse("cuda"), _TWO, seconds=0.0)
    open_device.cache_clear()
    assert all(plan.timing and len(plan.timing.samples_ms) == 9 for plan in found.values())
    graphs = [call[0] for call in fake.named("cuGraphLaunch")]
    assert len(graphs) == 2 * (1 + 2 * 9)
    exhibit = exhibit_on_device("On a GPU", "Two.", {"BERT": found}, "AGO", "layerwise")
    assert exhibit.basis is Basis.MEASURED
    assert exhibit.heads[2:4] == ("measured ms (gain)", "estimated ms")


def test_ago_and_graphturbo_show_their_networks_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, int]]] = []

    def planned(network: str, size: Any, device: object, plans: dict[str, Any]) -> dict[str, OnDevice]:
        asked.append((network, dict(size)))
        return {name: OnDevice(1e6 * n, n, n, n) for n, name in enumerate(plans, 1)}

    monkeypatch.setattr("tilewright.reproduce.ago.reproduction.planned_on", planned)
    monkeypatch.setattr("tilewright.reproduce.ago.reproduction._raced", lambda *_: [])
    monkeypatch.setattr(graphturbo, "planned_on", planned)
    device = TargetRef.parse(EMULATED)
    (exhibit,) = Ago().run(Effort(only=("Figure 12",), device=device), unheard)
    assert asked == [("bert_tiny", {"sequence": 128}), ("mobilevit_s", {"image": 224})]
    assert [figure.ours for figure in exhibit.figures] == [0.5, 0.5]
    asked.clear()
    (exhibit,) = graphturbo._on_device(NETWORKS[:1], Effort(device=device), unheard)
    assert [network for network, _ in asked] == ["resnet18_tailor"] * 4 + ["resnet50"]
    assert asked[-1][1] == {"batch": 16}
    assert graphturbo._on_device(NETWORKS, Effort(), unheard) == ()


def test_every_schedule_of_ios_is_one_for_a_gpu() -> None:
    found = planned_on("ios_squeezenet", {"image": 64}, TargetRef.parse(EMULATED), PLANS)
    assert set(found) == set(PLANS)
    sequential, both = (found[name].estimate_ns for name in ("Sequential", "IOS-Both"))
    assert 0 < both < sequential
    assert found["IOS-M"].estimate_ns <= both


@pytest.mark.parametrize(
    ("paper", "device", "message"),
    [
        ("ios", "cpu", "reproduce: device cpu: expected cuda, perhaps with options."),
        ("ios", "cuda{edges=none}", "edges"),
        ("cosa", "cuda", "reproduce: cosa compares nothing on a GPU; leave out cuda."),
    ],
)
def test_a_device_that_makes_no_sense_is_refused_before_anything_runs(
    paper: str, device: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        reproduce_paper(paper, device=device)
    assert {name for name in REPRODUCTIONS.names() if not REPRODUCTIONS.get(name).measures_devices} == {
        "cosa"
    }


def test_a_gpu_that_is_not_there_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver())
    monkeypatch.setattr(Ago, "run", unheard)
    with pytest.raises(DeviceError, match="GPU 3 is asked for, and there is 1"):
        reproduce_paper("ago", device="cuda{ordinal=3}")
