"""`tilewright simulate`: a plan as a document, as tables, as a timeline; its values; mistakes of one line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import model as make_model
from tests.support.models import small_net
from tests.support.pictures import own_text

from tilewright.cli.schemas import violations
from tilewright.hardware.presets import load_preset
from tilewright.memory.scopes import ScopePlan
from tilewright.partition import PARTITIONERS
from tilewright.schedule import SCHEDULERS
from tilewright.targets.npu.execute import execute

pytestmark = pytest.mark.sampled(20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(small_net(), path)
    return path


def report(*arguments: object) -> dict[str, Any]:
    result = tilewright("simulate", *arguments, "--json")
    assert result.code == 0, result.err
    document: dict[str, Any] = json.loads(result.out)
    assert violations(document) == []
    return document


def test_a_plan_is_reported_whole_with_its_baselines(model: Path) -> None:
    document = report(model, "-t", "stcp920", "--compare", "--check")
    assert document["values_checked"]
    assert {name for s in document["subgraphs"] for name in s["nodes"]} >= {"conv1", "conv2", "classify"}
    instances = sum(s["factor"] for s in document["subgraphs"])
    assert len(document["order"]) >= instances
    assert document["time_s"] >= document["lower_bound_s"] > 0
    assert document["gap"] == pytest.approx(document["time_s"] / document["lower_bound_s"] - 1)
    assert document["time_s"] == min(t["time_s"] for t in document["tried"] if t["time_s"])
    assert document["energy_j"] == pytest.approx(sum(document["energy_by_j"].values()))
    serial = ("tvm", "astitch", "variant-1", "variant-2", "variant-3")
    assert set(document["compared"]) == {
        "graphturbo",
        "variant-4",
        *serial,
        *(f"{name}-overlapped" for name in serial),
    }
    assert document["compared"]["tvm"]["time_s"] > document["time_s"]
    priced = {t["time_s"] for t in document["tried"] if t["time_s"]}
    assert len(priced) <= document["num_simulated"] <= len(document["tried"])
    assert document["compared"]["tvm"]["buffers"]["L1"] == 0


def test_values_that_are_no_numbers_in_both_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "roots.onnx"
    nodes = [onnx.helper.make_node("Sqrt", ["x"], ["y"])]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 8]) for name in "xy"]
    onnx.save(make_model(nodes, values[:1], values[1:], []), path)
    assert report(path, "--check")["values_checked"]


@pytest.mark.parametrize(("factor", "code"), [(1 + 5e-5, 0), (1 + 5e-4, 1), (np.nan, 1)])
def test_values_that_differ_are_a_mistake_of_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, factor: float, code: int
) -> None:
    """By the tolerance of `tilewright compare`."""

    def damaged(plan: ScopePlan, feed: Mapping[str, Any]) -> dict[str, Any]:
        return {name: array * factor for name, array in execute(plan, feed).items()}

    monkeypatch.setattr("tilewright.targets.npu.code.execute", damaged)
    result = tilewright("simulate", model, "--recipe", "graphturbo", "--check")
    assert bool(result.code) == bool(code)
    if code:
        assert "of the plan differs from the network's" in result.err
        assert len(result.err.strip().splitlines()) == 1


def test_a_larger_batch_takes_longer_and_gives_more(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    proto = small_net()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    for output in proto.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(proto, path)
    one, eight = (report(path, "--batch", n, "--recipe", "graphturbo") for n in (1, 8))
    assert (one["samples_per_cluster"], eight["samples_per_cluster"]) == (1, 8)
    assert one["time_s"] < eight["time_s"] < 8 * one["time_s"]
    assert eight["throughput_per_s"] > one["throughput_per_s"]


def test_the_batch_is_chosen_by_throughput(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    proto = small_net()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(proto, path)
    document = report(path, "--batch", "auto", "--recipe", "graphturbo")
    found = {row["batch"]: row["throughput_per_s"] for row in document["batches"]}
    assert list(found) == [2**i for i in range(len(found))]
    assert document["samples_per_cluster"] == max(found, key=lambda n: found[n])
    assert document["throughput_per_s"] == pytest.approx(max(found.values()))


def open_model(path: Path, *, weights_are_inputs: bool = False) -> Path:
    """A network whose batch is open; old exporters list weights among the inputs."""
    proto = small_net()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    if weights_are_inputs:
        for weight in proto.graph.initializer:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
            )
    onnx.save(proto, path)
    return path


@pytest.mark.sampled(0)
def test_the_best_batch_is_that_of_the_recipe(tmp_path: Path) -> None:
    path = open_model(tmp_path / "net.onnx")
    document = report(path, "--batch", "auto", "--recipe", "tvm")
    n = document["samples_per_cluster"]
    alone = report(path, "--batch", n, "--recipe", "tvm")
    found = {row["batch"]: row["throughput_per_s"] for row in document["batches"]}
    assert found[n] == alone["throughput_per_s"] == document["throughput_per_s"]
    assert document["recipe"] == "tvm"
    slow_ms = alone["time_s"] * 1e3
    result = tilewright("simulate", path, "--batch", "auto", "--max-latency", 1e-9)
    assert (result.code, "max-latency" in result.err) == (2, True)
    limited = report(path, "--batch", "auto", "--recipe", "tvm", "--max-latency", slow_ms * 0.999)
    assert limited["time_s"] < alone["time_s"]


def test_weights_among_the_inputs_have_no_batch(tmp_path: Path) -> None:
    path = open_model(tmp_path / "net.onnx", weights_are_inputs=True)
    document = report(path, "--batch", "4", "--recipe", "graphturbo")
    assert document["samples_per_cluster"] == 4
    plain = report(open_model(tmp_path / "plain.onnx"), "--batch", "4", "--recipe", "graphturbo")
    assert document["time_s"] == plain["time_s"]


def test_a_run_of_any_number_takes_the_best_of_three_ways(tmp_path: Path) -> None:
    path = open_model(tmp_path / "net.onnx")
    document = report(path, "--batch", "3,5", "--recipe", "graphturbo")
    assert [run["samples"] for run in document["runs"]] == [3, 5]
    for run in document["runs"]:
        assert sum(run["buckets"]) == run["samples"]
        direct = report(path, "--batch", run["samples"], "--recipe", "graphturbo")
        assert run["direct_s"] == direct["time_s"]
        times = {"direct": run["direct_s"], "padded": run["padded_s"], "buckets": run["in_buckets_s"]}
        assert times[run["best"]] == min(times.values())
    shown = tilewright("simulate", path, "--batch", "3,5", "--recipe", "graphturbo")
    assert "in buckets/s" in shown.out


def test_a_budget_bounds_the_portfolio(model: Path) -> None:
    best, one, three = (report(model, *budget) for budget in ((), _budget("1trials"), _budget("3trials")))
    names = [row["recipe"] for row in best["tried"]]
    papers = report(model, "--recipe", "graphturbo")
    assert best["num_untried"] == papers["num_untried"] == 0
    assert [row["recipe"] for row in one["tried"]] == names[:1]
    assert one["time_s"] == papers["time_s"]
    assert [row["recipe"] for row in three["tried"]] == names[:3]
    assert three["tried"] == best["tried"][:3]
    assert three["time_s"] == pytest.approx(min(row["time_s"] for row in three["tried"] if row["time_s"]))
    # What else is tried at the end depends on what was best.
    assert 0 <= one["num_untried"] - three["num_untried"] - 2 <= 1
    shown = tilewright("simulate", model, *_budget("3trials"))
    assert "3 recipes tried, " in shown.out
    assert f"; the budget left {three['num_untried']} untried" in shown.out


def test_a_budget_in_seconds_tries_the_papers_own_at_least(model: Path) -> None:
    document = report(model, *_budget("1ms"))
    assert len(document["tried"]) == 1
    assert document["num_untried"] > 5  # as many as are known before any depends on the best
    assert document["time_s"] == report(model, "--recipe", "graphturbo")["time_s"]
    searched = report(model, "--recipe", "search", *_budget("1ms"))
    assert (searched["tried"], searched["num_untried"]) == (document["tried"], document["num_untried"])


def _budget(text: str) -> tuple[str, str]:
    return "--budget", text


def test_a_search_starts_from_the_portfolio_and_keeps_to_its_budget(model: Path) -> None:
    best = report(model)
    document = report(model, "--recipe", "search", "--budget", "3trials", "--check")
    assert document["time_s"] <= best["time_s"]
    names = [row["recipe"] for row in document["tried"]]
    assert names[: len(best["tried"])] == [row["recipe"] for row in best["tried"]]
    searched = names[len(best["tried"]) :]
    assert 0 < len(searched) <= 3
    assert all(name.startswith("search ") for name in searched)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("partition", PARTITIONERS.names())
@pytest.mark.parametrize("schedule", SCHEDULERS.names())
def test_any_partition_runs_in_any_order(model: Path, partition: str, schedule: str) -> None:
    memory = "largest-size" if schedule == "greedy" else "longest-liveness"
    named = ("--partition", partition, "--schedule", schedule, "--memory", memory)
    document = report(model, *named, "--check")
    assert document["recipe"] == f"{partition}, {schedule}, {memory}"
    assert document["values_checked"]
    assert document["time_s"] >= document["lower_bound_s"] > 0
    assert len(document["subgraphs"]) > 1 or partition != "layerwise"


def test_what_is_not_named_is_graphturbos(model: Path) -> None:
    ours, papers = report(model, "--memory", "longest-liveness"), report(model, "--recipe", "graphturbo")
    assert ours["recipe"] == "graphturbo, depth-or-breadth-first, longest-liveness"
    assert (ours["time_s"], ours["order"]) == (papers["time_s"], papers["order"])


def test_the_timeline_has_a_row_for_each_unit_and_ends_when_the_plan_does(
    model: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    document = report(model, "--recipe", "graphturbo", "--trace", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == set(document["utilization"])
    end_us = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    for track in {e["tid"] for e in events if e["ph"] == "X"}:
        runs = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == track)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(runs))
    launch_us = load_preset("stcp920").overheads.kernel_launch_ns / 1e3
    assert end_us + launch_us == pytest.approx(document["time_s"] * 1e6)
    assert any(e["ph"] == "C" and e["name"] == "L1 bytes" for e in events)


def test_the_page_draws_the_buffers_without_a_network(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = tilewright("simulate", model, "--recipe", "graphturbo", "--html", page)
    assert result.code == 0, result.err
    drawn = page.read_text()
    assert "<br>of 10.0 MiB" in drawn
    assert "<br>of 8.0 MiB" in drawn
    assert "http" not in own_text(drawn)


def test_people_see_tables(model: Path) -> None:
    result = tilewright("simulate", model, "--compare")
    assert result.code == 0, result.err
    for word in ("samples/s", "at least", "recipes tried", "variant-3", "in L1", "estimated"):
        assert word in result.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--recipe", "turbo"), "graphturbo"),
        (("-t", "stcp92"), "stcp920"),
        (("-t", "simba-cosa-repo"), "clock_hz"),
        (("--batch", "0"), "batch 0"),
        (("--batch", "4,x"), "6,12,24"),
        (("--recipe", "search", "--budget", "soon"), "500trials"),
        (("--batch", "auto"), "first axis open"),
        (("--partition", "grafturbo"), "graphturbo"),
        (("--schedule", "greed"), "greedy"),
        (("--memory", "smallest"), "largest-size"),
        (("--recipe", "best", "--memory", "largest-size"), "recipe best"),
    ],
)
def test_a_mistake_is_one_line(model: Path, arguments: tuple[str, ...], named: str) -> None:
    result = tilewright("simulate", model, *arguments)
    assert result.code != 0
    assert named in result.err
    assert len(result.err.strip().splitlines()) == 1


def declared(path: Path, nodes: list[onnx.NodeProto], **shapes: list[int | str | None]) -> Path:
    """A network of these nodes; `y` is its output, the other names its inputs."""
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    inputs = [value for value in values if value.name != "y"]
    onnx.save(make_model(nodes, inputs, [value for value in values if value.name == "y"], []), path)
    return path


@pytest.fixture
def resizable(tmp_path: Path) -> Path:
    """Samples and rows are open."""
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    shape: list[int | str | None] = ["n", 8, "h", 32]
    return declared(tmp_path / "resizable.onnx", nodes, x=shape, y=shape)


def refusal(*arguments: object) -> str:
    result = tilewright("simulate", *arguments)
    assert result.code == 2, result.err
    assert len(result.err.strip().splitlines()) == 1
    return str(result.err)


def test_the_batch_completes_the_other_axes_that_are_given(resizable: Path) -> None:
    quick = ("--recipe", "graphturbo")
    alone = {n: report(resizable, "--shapes", f"x:{n}x8x32x32", *quick) for n in (3, 5)}
    given = ("--shapes", "x:0x8x32x32")
    assert report(resizable, "--batch", "3", *given, *quick)["time_s"] == alone[3]["time_s"]
    same = report(resizable, "--batch", "3", "--shapes", "x:3x8x32x32", *quick)
    assert (same["time_s"], same["samples_per_cluster"]) == (alone[3]["time_s"], 3)
    runs = report(resizable, "--batch", "3,5", *given, *quick)["runs"]
    assert {run["samples"]: run["direct_s"] for run in runs} == {n: alone[n]["time_s"] for n in (3, 5)}
    batches = report(resizable, "--batch", "auto", *given, *quick)["batches"]
    assert len({row["throughput_per_s"] for row in batches}) > 1


@pytest.mark.parametrize("batch", ["6", "6,12", "auto", "4,8"])
def test_the_batch_and_shapes_that_say_different_samples_are_a_mistake(resizable: Path, batch: str) -> None:
    said = refusal(resizable, "--batch", batch, "--shapes", "x:4x8x32x32")
    assert f"batch {batch} and shapes x:4x8x32x32" in said
    assert "x:0x8x32x32" in said


def test_axes_that_the_batch_leaves_open_are_asked_for_by_name(resizable: Path) -> None:
    said = refusal(resizable, "--batch", "auto")
    assert "batch auto" in said
    assert "shapes x:0x8x?x32" in said


def test_axes_of_one_name_are_given_once(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Add", ["x", "z"], ["y"])]
    shape: list[int | str | None] = ["n", "h", 32]
    path = declared(tmp_path / "pair.onnx", nodes, x=shape, z=shape, y=shape)
    document = report(path, "--batch", "4", "--shapes", "z:0x8x32", "--recipe", "graphturbo")
    shaped = report(path, "--shapes", "x:4x8x32", "--recipe", "graphturbo")
    assert (document["time_s"], document["samples_per_cluster"]) == (shaped["time_s"], 4)


def test_inputs_whose_first_axis_is_fixed_stay_as_they_are(tmp_path: Path) -> None:
    """A mask for all samples and a factor, both listed before the samples."""
    nodes = [
        onnx.helper.make_node("Add", ["x", "mask"], ["sum"]),
        onnx.helper.make_node("Mul", ["sum", "factor"], ["y"]),
    ]
    path = declared(
        tmp_path / "masked.onnx", nodes, factor=[], mask=[1, 8, 32], x=["n", 8, 32], y=["n", 8, 32]
    )
    document = report(path, "--batch", "4", "--recipe", "graphturbo")
    assert document["samples_per_cluster"] == 4
    shaped = report(path, "--shapes", "x:4x8x32", "--recipe", "graphturbo")
    for key in ("samples_per_cluster", "time_s", "throughput_per_s"):
        assert shaped[key] == document[key]
    best = report(path, "--batch", "auto", "--recipe", "graphturbo")
    rates = {row["batch"]: row["throughput_per_s"] for row in best["batches"]}
    assert best["throughput_per_s"] == rates[best["samples_per_cluster"]] == max(rates.values())


def test_a_batch_that_the_model_fixes_is_named_as_it_was_asked_for(model: Path) -> None:
    assert "batch auto:" in refusal(model, "--batch", "auto")
    assert "batch 6,12:" in refusal(model, "--batch", "6,12")
    assert report(model, "--batch", "1", "--recipe", "graphturbo")["samples_per_cluster"] == 1


def test_batches_go_on_where_results_have_another_axis_first(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0, 2])]
    path = declared(tmp_path / "turned.onnx", nodes, x=["n", 4, 8], y=[4, "n", 8])
    found = [row["batch"] for row in report(path, "--batch", "auto", "--recipe", "graphturbo")["batches"]]
    assert found[-1] > 4


def test_runs_keep_to_the_latency_that_is_allowed(tmp_path: Path) -> None:
    path = open_model(tmp_path / "net.onnx")
    arguments = (path, "--batch", "3,5", "--recipe", "graphturbo", "--max-latency")
    fastest = {run["samples"]: run for run in report(*arguments, 1e3)["runs"]}
    ways = ("direct_s", "padded_s", "in_buckets_s")
    slowest_ms = max(min(run[way] for way in ways if run[way]) for run in fastest.values()) * 1e3
    assert [run["samples"] for run in report(*arguments, slowest_ms * 1.001)["runs"]] == [3, 5]
    assert "samples take at least" in refusal(*arguments, slowest_ms * 0.999)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--max-latency", "5"), "batch auto"),
        (("--batch", "1", "--max-latency", "5"), "batch auto"),
        (("--batch", "auto", "--max-latency", "nan"), "max-latency nan"),
        (("--batch", "auto", "--max-latency", "inf"), "max-latency inf"),
        (("--batch", "auto", "--max-latency", "-1"), "max-latency -1"),
        (("--batch", "3,5", "--max-latency", "0"), "above 0"),
        (("--budget", "3trials", "--partition", "none"), "with --partition none"),
        (("--budget", "3trials", "--recipe", "tvm"), "with --recipe tvm"),
    ],
)
def test_flags_that_would_do_nothing_are_a_mistake(
    model: Path, arguments: tuple[str, ...], named: str
) -> None:
    assert named in refusal(model, *arguments)
