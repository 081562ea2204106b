"""Networks planned for machines and variants: the plans of each alone, in processes or in this one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.pictures import marks, pictures
from tests.unit.report.test_mapping_pages import alone, elements

import tilewright as tw
from tilewright.api.plan_tasks import NetworkText
from tilewright.compiler import optimise
from tilewright.errors import UsageError
from tilewright.mapping.sweep import crews
from tilewright.mapping.sweep.workers import Processes
from tilewright.options import Options
from tilewright.report.plan_sweep import PlanSweep, SweptMachine, SweptPlan, plan_sweep_page

pytestmark = pytest.mark.sampled(9)

AXES = ("target=a310,jetson-nano",)
MOST_SENT = 1 << 16
PLANNERS: dict[str, Any] = {"partition": "layerwise", "schedule": "sequential"}


def network(path: Path, channels: int) -> Path:
    """Two convolutions and a size that is computed, so that constants decide shapes."""
    weights = [
        numpy_helper.from_array(np.full((channels, before, 3, 3), 0.1, np.float32), name)
        for name, before in (("a", 4), ("b", channels))
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["y"], pads=[1, 1, 1, 1], name="first"),
        helper.make_node("Resize", ["y", "", "scales"], ["z"], mode="nearest", name="larger"),
        helper.make_node("Conv", ["z", "b"], ["out"], pads=[1, 1, 1, 1], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 8, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", channels, 16, 16])],
        [*weights, scales],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("nets")
    return [network(folder / "small.onnx", 8), network(folder / "large.onnx", 16)]


def swept(models: Any, sweep: Any = AXES, **settings: Any) -> PlanSweep:
    return tw.simulate_sweep(models, sweep=sweep, **(PLANNERS | {"batch": 1} | settings))


@pytest.fixture(scope="module")
def whole(models: list[Path]) -> PlanSweep:
    return swept(models)


def figures(sweep: PlanSweep) -> list[tuple[Any, ...]]:
    return [
        (machine.values, machine.is_best, plan.network, plan.time_s, plan.energy_j)
        for machine in sweep.machines
        for plan in machine.plans
    ]


def test_every_combination_has_the_plan_that_it_has_alone(models: list[Path]) -> None:
    found = swept(models[:1], ["batch=1,2", *AXES], batch=None)
    assert [m.values for m in found.machines] == [
        (batch, target) for target in ("a310", "jetson-nano") for batch in ("1", "2")
    ]
    for machine in found.machines:
        (plan,) = machine.plans
        by_itself = tw.simulate(models[0], machine.target, batch=machine.batch, **PLANNERS)
        assert (plan.time_s, plan.bound_s) == (by_itself.time_s, by_itself.lower_bound_s)
        assert plan.energy_j == by_itself.energy_j
    assert found.recipe == "layerwise, sequential"
    document = found.to_json()
    assert document["machines"][0]["mean_time_s"] == found.machines[0].mean_time_s


def test_the_front_has_what_no_other_machine_beats(models: list[Path]) -> None:
    found = swept(models[:1], [*AXES, "clock_hz=500MHz,1GHz"])
    rows = {
        m.values: (m.mean_time_s or 0.0, m.mean_energy_j or 0.0, m.area_mm2 or 0.0) for m in found.machines
    }
    assert len(rows) == 4
    for machine in found.machines:
        mine = rows[machine.values]
        beaten = any(o != mine and all(a <= b for a, b in zip(o, mine, strict=True)) for o in rows.values())
        assert machine.is_best == (not beaten)
    assert rows["a310", "1GHz"][0] < rows["a310", "500MHz"][0]
    assert {m.values for m in found.front} == {m.values for m in found.machines if m.is_best}


def test_a_network_as_text_has_what_plans_depend_on(tmp_path: Path) -> None:
    large = network(tmp_path / "large.onnx", 48)
    graph, _ = optimise(tw.load(large, shapes={"x": (1, 4, 8, 8)}).graph, Options())
    text = NetworkText.of("net", graph)
    again = text.graph()
    assert [n.op_type for n in again.nodes] == [n.op_type for n in graph.nodes]
    for old, new in zip(graph.initializers, again.initializers, strict=True):
        assert old.data is not None
        assert new.data is not None
        assert new.data.shape == old.data.shape
        is_large = old.data.nbytes > MOST_SENT
        assert (not new.data.any()) if is_large else np.array_equal(new.data, old.data)
    assert any(v.data is not None and v.data.nbytes > MOST_SENT for v in graph.initializers)


def test_what_was_planned_when_the_user_ended_it_is_kept(
    models: list[Path], whole: PlanSweep, tmp_path: Path
) -> None:
    def stop(_what: str, done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    journal = tmp_path / "plans.jsonl"
    part = swept(models, journal=journal, progress=stop)
    assert part.is_interrupted
    told = [(m.values, plan.network, plan.time_s) for m in part.machines for plan in m.plans]
    assert told == [(v, n, t) for v, _, n, t, _ in figures(whole)][:3]
    assert not part.machines[1].is_best, "a machine for which a network was not planned is not compared"
    assert len(journal.read_bytes().splitlines()) == 3
    assert "interrupted" in part.lines()[-1]
    assert figures(swept(models, journal=journal)) == figures(whole)
    assert len(journal.read_bytes().splitlines()) == 4


def test_a_killed_worker_loses_one_task(
    models: list[Path], whole: PlanSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Processes] = []

    def crew(*asked: Any) -> Processes:
        made.append(Processes(*asked))
        return made[0]

    def kill(_what: str, done: int, _total: int) -> None:
        if done == 1:
            os.kill(made[0].started[0].pid, signal.SIGKILL)

    monkeypatch.setattr(crews, "Processes", crew)
    found = swept(models, workers=1, progress=kill)
    assert figures(found) == figures(whole)
    assert len(made[0].started) == 2, "another process took its place"


def test_a_machine_that_cannot_run_a_network_is_a_row(models: list[Path]) -> None:
    found = swept(models[:1], ["levels.L1.capacity_bytes=1,256KiB"], target="a310")
    small, plain = found.machines
    assert small.plans[0].time_s is None
    assert small.plans[0].error
    assert (small.is_best, plain.is_best) == (False, True)
    assert small.plans[0].error in str(found)


def test_the_page_draws_time_energy_and_area_and_leads_to_the_plans(whole: PlanSweep, tmp_path: Path) -> None:
    page = whole.save_page(tmp_path / "sweep.html").read_text()
    assert alone(page)
    drawn = pictures(page)
    assert all(title in page for title in ("energy over time", "area over time", "energy over area"))
    links = [link for picture in drawn for dots in marks(picture, "dot") for link in dots["href"]]
    assert len(links) == 3 * len(whole.machines)
    assert {link.removeprefix("#") for link in links} <= {d.get("id") for d in elements(page).iter("div")}
    for machine in whole.machines:
        assert whole.named(machine) in page
        assert all(f"{(plan.time_s or 0.0) * 1e3:,.4g}" in page for plan in machine.plans)


@pytest.mark.parametrize(
    ("sweep", "settings", "why"),
    [
        (["levels.L1.capacitee=1"], {}, "capacity"),
        (["target=cpu"], {}, "cpu runs models"),
        (["target=a310,a311"], {}, "a310"),
        (["target="], {}, "expected values"),
        (["target=a310", "target=v100"], {}, "target is swept twice"),
        (["target=a310,a310"], {}, "a310 is given twice"),
        (["clock_hz=1GHz,1GHz"], {}, "1GHz is given twice"),
        (["batch=0"], {"batch": None}, "expected numbers of samples"),
        (["batch=\u00b2"], {"batch": None}, "expected numbers of samples"),
        (["target=a310"], {"batch": "\u00b2"}, "--batch is one number"),
        (["batch=1,2"], {}, "--batch has no effect beside"),
        (["target=a310"], {"batch": "auto"}, "--batch is one number"),
        (["target=a310"], {"compare": True}, "--compare has no effect beside --sweep"),
        (["target=a310"], {"workers": "many"}, "expected a number of processes"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    models: list[Path], sweep: list[str], settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        swept(models, sweep, **settings)


def test_networks_are_named_by_their_files_where_these_differ() -> None:
    def shown(*networks: str) -> list[str]:
        plans = tuple(SweptPlan(network, error="none") for network in networks)
        machine = SweptMachine("a310", None, (), None, plans, "")
        swept = PlanSweep(networks, "joint", "latency", (), (machine,), is_interrupted=False)
        (table,) = swept.tables()
        page = plan_sweep_page(swept)
        assert all(swept.short(network) in page for network in networks)
        return [str(row[1]) for row in table.rows]

    assert shown("models/small.onnx", "/large.onnx") == ["small.onnx", "large.onnx"]
    assert shown("a/model.onnx", "b/model.onnx") == ["a/model.onnx", "b/model.onnx"]
