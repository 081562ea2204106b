"""Energies: none without a source, sums of one source only, counters that start again, tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.cli import tilewright

from tilewright import zoo
from tilewright.compiler import compile_graph
from tilewright.cost.energy import (
    RAPL,
    Energy,
    EnergyTable,
    RaplMeter,
    measured,
    modelled,
    source_of,
    unavailable,
)
from tilewright.errors import MachineError, UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.machine_file import machine_text
from tilewright.hardware.presets import load_preset, preset_text
from tilewright.options import Options
from tilewright.steps import SimulatedCost
from tilewright.target_ref import TargetRef


def test_an_energy_has_a_source_or_is_unavailable() -> None:
    with pytest.raises(ValueError, match="unavailable"):
        Energy(1.0, "unavailable")
    with pytest.raises(ValueError, match="model:a"):
        Energy(None, "model:a")
    assert str(unavailable("no counter")) == "unavailable: no counter"
    assert str(modelled(2e12, "zcu102")) == "2 J (model:zcu102)"


def test_energies_of_one_source_add_up_and_power_is_their_sum_over_the_time() -> None:
    total = modelled(1e12, "a") + modelled(3e12, "a")
    assert total.mean_power_w(2.0) == 2.0
    assert (total + unavailable("no counter")).joules is None
    assert not total.is_measured
    with pytest.raises(UsageError, match="different sources"):
        total + Energy(1.0, RAPL)


def _domain(root: Path, name: str, folder: str, energy_uj: int) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", 1000)):
        (path / file).write_text(f"{text}\n")
    return path / "energy_uj"


def test_rapl_counts_packages_and_memory_and_sees_a_counter_that_starts_again(tmp_path: Path) -> None:
    package = _domain(tmp_path, "package-0", "intel-rapl:0", 900)
    memory = _domain(tmp_path, "dram", "intel-rapl:0:1", 0)
    _domain(tmp_path, "core", "intel-rapl:0:0", 0)
    meter = RaplMeter.open(tmp_path)
    assert isinstance(meter, RaplMeter)
    assert len(meter.domains) == 2
    meter.start()
    package.write_text("100\n")
    memory.write_text("50\n")
    found = meter.stop()
    assert (found.joules, found.source) == (pytest.approx(250e-6), RAPL)


def test_without_counters_energy_is_unavailable_and_says_why(tmp_path: Path) -> None:
    meter = RaplMeter.open(tmp_path)
    assert isinstance(meter, Energy)
    assert "no energy counters" in meter.why
    _domain(tmp_path, "package-0", "intel-rapl:0", 0).write_text("damaged\n")
    damaged = RaplMeter.open(tmp_path)
    assert isinstance(damaged, Energy)
    assert "cannot be read" in damaged.why
    assert measured(lambda: None, meter) is meter


@pytest.mark.parametrize("when", ["at the start", "at the end"])
def test_a_counter_that_fails_once_it_was_open_gives_no_energy(when: str, tmp_path: Path) -> None:
    counter = _domain(tmp_path, "package-0", "intel-rapl:0", 900)
    processor = RaplMeter.open(tmp_path)
    assert isinstance(processor, RaplMeter)
    for step in ("at the start", "at the end"):
        counter.write_text("gone\n" if step == when else "900\n")
        if step == "at the start":
            processor.start()
    assert processor.stop().joules is None


class _Meter:
    """10 W while idle, 30 W while it runs, by a clock that the test moves."""

    source = RAPL

    def __init__(self) -> None:
        self.now_s, self.joules, self.start_j = 0.0, 0.0, 0.0

    def pass_time(self, seconds: float, watts: float) -> None:
        self.now_s += seconds
        self.joules += seconds * watts

    def start(self) -> None:
        self.start_j = self.joules

    def stop(self) -> Energy:
        return Energy(self.joules - self.start_j, self.source)


def test_what_the_machine_takes_while_idle_is_not_the_runs() -> None:
    meter = _Meter()
    energy = measured(
        lambda: meter.pass_time(0.5, 30.0),
        meter,
        duration_s=5.0,
        clock=lambda: meter.now_s,
        rest=lambda seconds: meter.pass_time(seconds, 10.0),
    )
    found = energy
    assert (found.joules, found.source) == (pytest.approx(10.0), RAPL)


def test_a_table_prices_arithmetic_bytes_and_time() -> None:
    table = EnergyTable("t", 2.0, 1.0, 10.0, 3.0, static_w=0.5)
    energy = table.energy(10, 4, 100, 50, 1000.0)
    found = energy
    assert (found.joules, found.source) == (pytest.approx((20 + 4 + 1000 + 150 + 500_000) * 1e-12), "model:t")
    assert EnergyTable("none").energy(1, 1, 1, 1, 1.0).joules is None
    assert source_of(load_preset("zcu102")).startswith("model:zcu102 (derived:")


@pytest.fixture
def energies(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(machine_text(load_preset("jetson-nano")))
    return str(path)


def priced(path: str | Path) -> TargetRef:
    """The processor with the energies of a machine's file."""
    return TargetRef("cpu").with_options(energies=f'"{path}"')


def test_a_machine_file_with_energies_lets_the_processor_plan_by_energy(
    energies: str, tmp_path: Path
) -> None:
    graph = load_onnx(zoo.build("squeezenet1_1", image=32))
    options = Options(
        target=TargetRef("cpu").with_options(energies=f'"{energies}"'), hint="energy", no_cache=True
    )
    schedule = compile_graph(graph, options).program.schedule
    assert schedule.quality.unit == "pJ"
    assert schedule.quality.cost > schedule.quality.bound > 0
    bare = tmp_path / "bare.yaml"
    bare.write_text("name: bare\nlevels: [{name: DRAM}]\nunits: []\n")
    with pytest.raises(MachineError, match=r"machine 'bare' has no energies: it lacks units\[\].mac_pj"):
        compile_graph(
            graph,
            Options(target=priced(bare), hint="energy", no_cache=True),
        )


def test_a_described_machine_without_energies_has_none_rather_than_zero(tmp_path: Path) -> None:
    text = re.sub(r"(mac|op|read|write)_pj: [0-9.]+", "", preset_text("a310"))
    bare = tmp_path / "bare.yaml"
    bare.write_text(text.split("energy_source:", maxsplit=1)[0].replace("name: a310", "name: bare", 1))
    graph = load_onnx(zoo.build("squeezenet1_1", image=32))
    for hint in ("energy", "edp"):
        with pytest.raises(
            UsageError, match=r"energy is unavailable: machine 'bare' gives no units\[\].mac_pj"
        ):
            compile_graph(graph, Options(target=TargetRef.parse(bare), hint=hint, no_cache=True))
    compilation = compile_graph(
        graph, Options(target=TargetRef.parse(bare), partition="layerwise", no_cache=True)
    )
    cost: object = getattr(compilation.code, "cost", None)
    assert isinstance(cost, SimulatedCost)
    assert (cost.energy_j, cost.power_w, dict(cost.energy_by_j)) == (None, None, {})
    assert cost.energy_source == "unavailable: machine 'bare' gives no units[].mac_pj"


def test_plans_by_energy_say_where_joules_come_from(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(zoo.build("squeezenet1_1", image=32).SerializeToString())
    result = tilewright("plan", str(path), "-t", "a310", "--partition", "layerwise", "--hint", "energy")
    assert "energies by model:a310" in result.out.replace("\n", " ")
