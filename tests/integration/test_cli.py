"""Every verb does its work: results on standard output, notes beside them, JSON in its published shape."""

# mypy: disable-error-code="arg-type, assignment, attr-defined"

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from inspect import cleandoc
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import typer
from tests.support.cli import Result, tilewright
from tests.support.models import feed_for, host_net, small_net
from tests.unit.tuning.test_database import CONTEXT, seen
from tests.unit.tuning.test_exchange import FAILURE

import tilewright as tw
from tilewright import cli, zoo
from tilewright.api.demo import demonstrate
from tilewright.cli.main import VERBS, app, first_paragraph
from tilewright.cli.schemas import KINDS
from tilewright.families import FAMILIES
from tilewright.tuning import Provenance, TuningDatabase
from tilewright.tuning.observation import Source

pytestmark = pytest.mark.sampled(45)

# `machine` is what users write and, with its facts filled in, what `targets host` prints.
INPUTS = ("machine", "options")
SCHEMAS = tuple(dict.fromkeys((*INPUTS, *KINDS)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that the tests share: small, and of three kinds."""
    folder = tmp_path_factory.mktemp("cli")
    onnx.save(small_net(), folder / "small.onnx")
    onnx.save(small_net(seed=1), folder / "twin.onnx")
    onnx.save(host_net(), folder / "host.onnx")
    np.savez(folder / "x.npz", **feed_for(small_net()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
        for name in ("small", "twin"):
            tw.compile(folder / f"{name}.onnx", threads=1).save(folder / f"{name}.tw")
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))


def done(command: str) -> Result:
    """A run that must succeed."""
    result = tilewright(*command.split())
    assert result.code == 0, result.err
    assert "\x1b" not in result.out + result.err
    return result


def report(command: str) -> dict:
    """The document of a run with --json."""
    return done(f"{command} --json").document


# The way of a model.


def test_compile_writes_an_artifact_that_runs() -> None:
    result = done("compile small.onnx -o made.tw --threads 1")
    assert "made.tw" in result.out
    assert "kernels" in result.out
    assert "next: tilewright bench made.tw" in result.err
    (feed, expected) = (feed_for(small_net()), tw.open("small.tw"))
    got = tw.open("made.tw").run(None, feed)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected.run(None, feed), strict=True))
    assert Path("made.tw").read_bytes() == Path("small.tw").read_bytes()


def test_compile_names_the_artifact_after_the_model() -> None:
    document = report("compile twin.onnx --threads 1 --dump-after dead-code")
    assert document["artifact"] == "twin.tw"
    assert document["artifact_bytes"] == Path("twin.tw").stat().st_size
    assert set(document["dumps"]) == {"dead-code"}
    assert document["memory"]["lower_bound_bytes"] <= document["memory"]["peak_bytes"]


def test_compile_says_what_runs_on_the_host() -> None:
    result = done("compile host.onnx -o host.tw")
    assert "on the host" in result.out
    assert "largest" in result.err


def test_options_reach_the_compiler() -> None:
    flags = "--partition none --schedule greedy --disable-pass fold-bias --isa avx2 --threads 2 --seed 5"
    options = report(f"compile small.onnx -o o.tw {flags} --max-memory 1GiB --timeout 100")["options"]
    assert (options["partition"], options["schedule"], options["isa"]) == ("none", "greedy", "avx2")
    assert (options["threads"], options["seed"]) == (2, 5)
    assert list(options["disabled_passes"]) == ["fold-bias"]


def test_compile_says_which_algorithms_it_took_and_how_far_off_they_are() -> None:
    result = done("compile small.onnx -o e.tw --accuracy strict --error")
    assert re.search(r"algorithms +\d+ ", result.out)
    assert re.search(
        r"largest error +\d\.\de-0[678] of the largest value of '\w+', on random inputs", result.out
    )
    document = report("compile small.onnx -o e.tw --error -i x.npz")
    assert sum(document["algorithms"].values()) == len([k for s in document["steps"] for k in s["kernels"]])
    assert 0 < document["error"]["relative"] < 1e-4
    assert document["error"]["inputs"] == "the inputs of x.npz"
    opened = tw.open("e.tw")
    assert opened.error is not None, "the artifact keeps it"
    assert opened.error.relative == document["error"]["relative"]
    refused = tilewright("compile", "small.onnx", "-i", "x.npz")
    assert (refused.code, "--error" in refused.err) == (2, True)


def test_tune_measures_and_later_compilations_know(tmp_path: Path) -> None:
    cache = f"--cache {tmp_path} --threads 1"
    document = report(f"tune small.onnx -o tuned.tw --search flat --budget 3trials {cache}")
    assert document["subgraphs"]
    assert document["num_trials"] > 0
    assert 0 < document["num_measured"] <= document["num_candidates"]
    told = done(f"tune small.onnx --search flat --budget 3trials {cache}").out
    assert "forms measured" in told
    assert re.search(r"^\d+ of \d+ candidates measured; kept: ", told, re.MULTILINE)
    again = report(f"compile small.onnx -o again.tw {cache}")
    assert again["tuning"]["is_stored"]
    assert report(f"cache ls --cache {tmp_path}")["tuning"]["num_plans"] == 1
    assert report(f"cache verify --cache {tmp_path}")["num_damaged_findings"] == 0
    assert report(f"cache forget --cache {tmp_path}")["num_removed"] > 1
    assert report(f"compile small.onnx -o again.tw {cache}")["tuning"] is None


@pytest.mark.usefixtures("known_limits")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("file", ["small.tw", "small.onnx"])
def test_profile_times_every_kernel(file: str) -> None:
    document = report(f"profile {file} --duration 0.05 --threads 1 --trace t.json")
    steps = report("compile small.onnx -o e.tw")["steps"]
    assert len(document["kernels"]) == len(steps)
    assert sum(k["share"] for k in document["kernels"]) <= 1.0001
    assert sum(document["operator_share"].values()) <= 1.0001
    events = [e for e in json.loads(Path("t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    of_steps, of_thread = ([e for e in events if e["tid"] == track] for track in (0, 1))
    assert len(of_steps) == len(steps)
    assert len(of_thread) == len(events) - len(of_steps) >= len(steps), "one thread runs all chunks"
    for track in (of_steps, of_thread):
        ends = [e["ts"] + e["dur"] for e in track]
        assert all(end <= e["ts"] + 0.002 for end, e in zip(ends, track[1:], strict=False)), "none overlap"
    text = done(f"profile {file} --duration 0.05 --threads 1").out
    assert "of limit" in text
    assert "between kernels" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [("--duration 0", "duration"), ("--trace t.txt", ".json"), ("--target interpreter", "--target")],
)
def test_what_profile_cannot_do_is_one_line(arguments: str, named: str) -> None:
    result = tilewright("profile", "small.onnx", *arguments.split())
    assert result.code == 2
    assert named in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("budget", ["0", "0s", "0trials", "-1s", "soon"])
def test_a_budget_of_nothing_is_one_line(budget: str) -> None:
    for verb in ("compile", "tune"):
        result = tilewright(verb, "small.onnx", f"--budget={budget}")
        assert result.code == 2
        assert "budget" in result.err
        assert result.err.count("\n") == 1


@pytest.mark.parametrize("file", ["small.tw", "small.onnx"])
def test_run_computes_what_the_library_computes(file: str) -> None:
    result = done(f"run {file} -i x.npz -o y.npz --threads 1")
    assert "logits" in result.out
    assert "1x10" in result.out
    assert "written to y.npz" in result.err
    expected = tw.open("small.tw").run(None, feed_for(small_net()))
    with np.load("y.npz") as got:
        assert got.files == ["logits", "r1"]
        assert all(np.array_equal(got[n], e) for n, e in zip(got.files, expected, strict=True))


def test_run_reports_the_range_of_each_output() -> None:
    document = report("run small.tw -i x.npz")
    expected = tw.open("small.tw").run(None, feed_for(small_net()))
    assert [o["name"] for o in document["outputs"]] == ["logits", "r1"]
    for output, array in zip(document["outputs"], expected, strict=True):
        assert output["shape"] == list(array.shape)
        assert output["range"] == [array.min(), array.max()]
    assert document["written"] is None


def test_random_inputs_repeat_with_their_seed() -> None:
    ranges = [report(f"run small.tw --random --seed {s}")["outputs"] for s in (1, 1, 2)]
    assert ranges[0] == ranges[1] != ranges[2]


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_bench_measures_engines_in_turns() -> None:
    pytest.importorskip("onnxruntime")
    command = "bench small.onnx --vs onnxruntime --duration 0.3 --threads 1"
    document = report(command)
    assert [c["engine"] for c in document["contestants"]] == ["tilewright", "onnxruntime"]
    for contestant in document["contestants"]:
        assert contestant["error"] is None
        assert contestant["timing"]["runs_ms"]
        assert contestant["max_error"] < 1e-4
    assert document["contestants"][1]["ratio"]["low"] <= document["contestants"][1]["ratio"]["median"]
    assert document["num_threads"] == 1
    table = done(command).out
    assert "verdict" in table
    assert re.search(r"onnxruntime +\d+\.\d+\.\d+ ", table)
    bound = document["bound"]
    assert sum(bound[part] for part in ("compute", "memory", "overhead", "host")) == pytest.approx(1)
    assert 0 < bound["limits"] <= 1.2
    assert any(line.startswith("bound by ") for line in document["advice"])


@pytest.mark.usefixtures("short_bursts")
def test_bench_takes_an_artifact() -> None:
    document = report("bench small.tw --duration 0.2 --threads 1 --no-advice")
    assert document["bound"] is None
    assert len(document["contestants"]) == 1
    assert document["contestants"][0]["ratio"] is None


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_bench_keeps_streams_of_runs_in_flight() -> None:
    document = report("bench small.tw --streams 2 --threads 2 --duration 0.2 --no-advice")
    assert (document["num_streams"], document["num_threads"]) == (2, 2)
    (contestant,) = document["contestants"]
    assert contestant["queries_per_s"] > 0
    assert set(contestant["percentiles_ms"]) == {"50", "90", "99"}
    table = done("bench small.onnx --hint throughput --threads 2 --duration 0.2 --no-advice").out
    assert "2 streams on 2 threads" in table
    assert "queries/s" in table


def test_compare_finds_engines_equal() -> None:
    document = report("compare small.onnx onnxruntime")
    assert document["ok"]
    assert [t["name"] for t in document["outputs"]] == ["logits", "r1"]
    assert all(t["max_difference"] <= t["allowed"] for t in document["outputs"])
    assert "DIFFERS" not in done("compare small.tw").out


def test_compare_looks_between_kernels() -> None:
    document = report("compare small.onnx --layers")
    assert document["ok"]
    assert len(document["layers"]) >= 2


def test_compare_finds_artifacts_of_other_weights_different() -> None:
    result = tilewright("compare", "small.tw", "twin.tw", "--json")
    assert result.code == 4
    document = result.document
    assert not document["ok"]
    assert all(t["ok"] == (t["max_difference"] <= t["allowed"]) for t in document["outputs"])
    assert "small.tw and twin.tw differ" in result.err


def test_explain_leads_from_every_node_to_its_kernels() -> None:
    document = report("explain small.tw")
    kernels = {k["id"] for k in document["kernels"]}
    assert {n["name"] for n in document["nodes"]} == {n.name for n in small_net().graph.node}
    assert all(set(n["kernels"]) <= kernels for n in document["nodes"])
    assert {e["is_fused"] for e in document["edges"]} == {True, False}
    text = done("explain small.tw").out
    assert all(re.search(rf"^ {k} +\w", text, re.MULTILINE) for k in kernels)
    assert all(n.name in text for n in small_net().graph.node)


def test_explain_tells_of_one_node_why_it_is_where_it_is() -> None:
    text = done("explain small.tw relu1").out
    assert "conv1" in text
    assert "fused" in text
    assert "classify" not in text


def test_explain_prints_what_a_kernel_was_generated_from_and_nothing_else() -> None:
    planned = next(k["id"] for k in report("explain small.tw")["kernels"] if k["plan"])
    assert done(f"explain small.tw --kernel {planned}").out.startswith(
        "product float32 by fma\n  a = input0 "
    )
    for other, flag in (("relu1", "NAME"), ("--json", "--json"), ("--report x.html", "--report")):
        result = tilewright("explain", "small.tw", *other.split(), "--kernel", planned)
        assert result.code == 2
        assert f"{flag} has no effect beside --kernel" in result.err
    assert not Path("x.html").exists()


def test_explain_times_another_plan_of_a_kernel_beside_its_own() -> None:
    planned = next(k["id"] for k in report("explain small.tw")["kernels"] if k["plan"])
    Path("plan.txt").write_text(done(f"explain small.tw --kernel {planned}").out)
    lines = done(f"explain small.tw --kernel {planned} --against plan.txt").out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [planned, "plan.txt"]
    assert " as fast" in lines[1]
    result = tilewright("explain", "small.tw", "--against", "plan.txt")
    assert result.code == 2
    assert "--against has no effect without --kernel" in result.err


@pytest.mark.parametrize("suffix", ["html", "json"])
def test_explain_writes_a_report(suffix: str) -> None:
    done(f"explain small.tw --report report.{suffix}")
    text = Path(f"report.{suffix}").read_text()
    assert "conv1" in text
    assert "http://" not in text


def test_inspect_counts_a_model() -> None:
    document = report("inspect small.onnx")
    model = document["model"]
    weights = {w.name: w for w in small_net().graph.initializer}
    assert model["num_parameters"] == sum(int(np.prod(w.dims)) for w in weights.values())
    assert model["operator_counts"]["Conv"] == 2
    text = done("inspect small.onnx").out
    assert f"{model['num_parameters']:,}" in text
    assert "GlobalAveragePool" in text


def test_inspect_shows_what_a_target_itself_places() -> None:
    arena = report("inspect small.onnx")
    (level,) = arena["planned_levels"]
    assert (level["name"], level["peak_bytes"]) == ("arena", arena["planned_peak_bytes"])
    assert arena["planned_peak_bytes"] == report("compile small.onnx -o same.tw")["memory"]["peak_bytes"]
    inside = report("inspect small.onnx -t stcp920")
    assert [level["name"] for level in inside["planned_levels"]] == ["L1", "LLB", "DDR"]
    assert inside["planned_levels"][0]["capacity_bytes"] == 8 << 20
    compiled = tw.compile("small.onnx", target="stcp920")
    assert compiled.memory is not None
    assert [asdict(level) for level in compiled.memory.levels] == inside["planned_levels"]
    assert {b.level for b in compiled.memory.buffers} == {0, 2}
    text = done("inspect small.onnx -t stcp920").out
    assert re.search(r"L1 memory +\d.* of 8\.0 MiB, \d+ buffers", text)


def test_inspect_counts_an_artifact() -> None:
    document = report("inspect small.tw")
    compiled = tw.open("small.tw")
    assert document["num_kernels"] == len(compiled.kernels)
    assert compiled.memory is not None
    assert document["planned_peak_bytes"] == compiled.memory.peak_bytes
    assert compiled.model_sha256[:16] in done("inspect small.tw").out


def test_check_says_who_runs_what() -> None:
    verdicts = {o["op_type"]: o["verdict"] for o in report("check host.onnx")["operators"]}
    assert verdicts == {"MatMul": "native", "TopK": "host", "Relu": "native"}
    result = done("check host.onnx")
    assert "TopK" in result.out
    assert "slow" in result.err


# What stands around it.


def test_the_cache_is_listed_checked_moved_and_emptied(tmp_path: Path) -> None:
    one, two, archive = tmp_path / "one", tmp_path / "two", tmp_path / "kernels.zip"
    done(f"compile small.onnx -o c.tw --cache {one}")
    listed = report(f"cache ls --cache {one}")
    assert listed["entries"]
    assert listed["total_bytes"] == sum(e["size_bytes"] for e in listed["entries"])
    count = len(listed["entries"])
    found = report(f"cache verify --cache {one}")
    assert (found["num_whole"], found["damaged"]) == (count, [])
    assert report(f"cache export {archive} --cache {one}")["num_entries"] == count
    taken = report(f"cache import {archive} --cache {two}")
    assert (taken["num_imported"], taken["refused"]) == (count, [])
    moved = report(f"cache ls --cache {two}")["entries"]
    assert {e["key"]: e["size_bytes"] for e in moved} == {
        e["key"]: e["size_bytes"] for e in listed["entries"]
    }
    done(f"compile small.onnx -o c2.tw --cache {two} --frozen")
    assert Path("c2.tw").read_bytes() == Path("c.tw").read_bytes()
    damaged = next(p for p in sorted(two.rglob("*")) if p.is_file() and p.stat().st_size > 1000)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    found = tilewright(*f"cache verify --cache {two} --json".split())
    assert found.code == 1
    assert len(found.document["damaged"]) == 1
    assert report(f"cache verify --cache {two}")["damaged"] == []
    assert report(f"cache prune --max-size 0B --cache {one}")["removed_bytes"] == listed["total_bytes"]
    assert report(f"cache ls --cache {one}")["entries"] == []
    for verb in ("ls", "verify", "prune --unusable", f"export {archive}"):
        assert done(f"cache {verb} --cache {two}").out
    assert done(f"cache import {archive} --cache {one}").out


@pytest.mark.sampled(0)
def test_findings_are_listed_moved_and_pruned(tmp_path: Path) -> None:
    one, two, findings = tmp_path / "one", tmp_path / "two", tmp_path / "findings.jsonl"
    done(f"tune small.onnx --budget 3trials --cache {one}")
    listed = report(f"cache ls --cache {one}")["findings"]
    (model,) = listed["models"]
    assert model["name"]
    assert {model["context"], *(site["context"] for site in listed["sites"])} == {
        machine["key"] for machine in listed["machines"]
    }
    count = len(listed["models"]) + sum(site["num_observations"] for site in listed["sites"])
    assert "tuned models" in done(f"cache ls --cache {one}").out
    assert report(f"cache export --tuning {findings} --cache {one}")["num_entries"] == count
    taken = report(f"cache import {findings} --cache {two}")
    assert (taken["num_imported"], taken["num_hints"], taken["num_left_out"]) == (count - 1, count - 1, 1)
    assert report(f"compile small.onnx -o c.tw --cache {two}")["tuning"] is None, "hints are not used"
    trusted = report(f"cache import --trust {findings} --cache {two}")
    assert (trusted["num_imported"], trusted["num_hints"], trusted["refused"]) == (count, 0, [])
    assert report(f"compile small.onnx -o c.tw --cache {two}")["tuning"]["is_stored"]
    assert report(f"cache import {findings} --cache {two}")["num_known"] == count - 1
    before = (two / "tuning.db").read_bytes()
    assert tilewright("cache", "prune", "--cache", two).code == 2
    assert (two / "tuning.db").read_bytes() == before
    assert report(f"cache prune --older-than 1d --unusable --cache {two}")["num_removed_findings"] == 0
    assert report(f"cache prune --model {model['name']} --cache {two}")["num_removed_findings"] == 1
    assert report(f"cache prune --older-than 0s --cache {two}")["num_removed_findings"] == count - 1
    assert report(f"cache ls --cache {two}")["findings"] == {"machines": [], "models": [], "sites": []}


@pytest.mark.parametrize(("option", "num_removed"), [("imported", 1), ("failures", 1), ("site group", 3)])
def test_each_option_of_prune_removes_what_it_names(option: str, num_removed: int, tmp_path: Path) -> None:
    database = TuningDatabase.in_folder(tmp_path)
    hint = replace(seen({"rows": 2}, 50.0), provenance=Provenance(Source.IMPORTED, "elsewhere"))
    database.record(CONTEXT, [seen({"rows": 1}, 80.0), hint, FAILURE])
    assert report(f"cache prune --{option} --cache {tmp_path}")["num_removed_findings"] == num_removed
    left = database.summary()
    assert left.num_trials + left.num_failures == 3 - num_removed


@pytest.mark.sampled(0)
def test_forms_are_searched_unless_another_search_is_named(tmp_path: Path) -> None:
    tune = f"tune small.onnx --cache {tmp_path}"
    assert report(f"{tune} --budget 1trial")["search"] == "reformer"
    flat = report(f"{tune} --budget 1trial --search flat")
    forms = report(f"{tune} --budget 2trials --search evolutionary --afresh")
    assert (flat["search"], forms["search"]) == ("flat", "evolutionary")
    assert forms["subgraphs"] or not forms["num_trials"]


def test_the_zoo_lists_and_builds(tmp_path: Path) -> None:
    assert [n["name"] for n in report("zoo list")["networks"]] == list(zoo.names())
    assert "mobilenet_v2" in done("zoo list").out
    path = tmp_path / "net.onnx"
    document = report(f"zoo build squeezenet1_1 --image 64 -o {path}")
    assert document["size_bytes"] == path.stat().st_size
    built = onnx.load(path)
    assert len(built.graph.node) == document["num_nodes"]
    assert built == zoo.build("squeezenet1_1", image=64)


def test_targets_are_listed_and_this_machine_described() -> None:
    from tilewright.hardware.machine_file import load_machine
    from tilewright.targets import TARGETS

    assert {t["name"] for t in report("targets")["targets"]} == set(TARGETS.names())
    assert len(report("targets cpu")["targets"]) == 1
    assert report("targets host")["machine"]["name"]
    Path("host.yaml").write_text(done("targets host").out)
    assert load_machine(Path("host.yaml")).name == report("targets host")["machine"]["name"]


def test_planners_are_listed_with_their_options() -> None:
    document = report("planners")
    assert document["problems"] == []
    listed = {(m["family"], m["name"]) for m in document["members"]}
    families = {key: family for key, family in FAMILIES.items() if key != "targets"}
    assert listed == {(key, name) for key, family in families.items() for name in family.names()}
    (member,) = report("planners graphturbo")["members"]
    alpha = {"name": "alpha", "type": "number", "default": "1.0", "about": member["options"][0]["about"]}
    assert member["options"][0] == alpha
    assert {m["family"] for m in report("planners schedule")["members"]} == {"schedule"}
    assert "Options of graphturbo" in done("planners graphturbo").out
    assert done("planners passes").out.startswith("passes: passes\n")
    assert done("planners memory").out.startswith("memory: memory planners\n")
    wrong = tilewright("planners", "graphturb")
    assert (wrong.code, "did you mean graphturbo" in wrong.complaint) == (2, True)


def test_doctor_finds_this_machine_well() -> None:
    document = report("doctor")
    assert document["ok"]
    assert all(c["found"] for c in document["checks"])
    assert document["versions"]["numpy"] == np.__version__
    assert "generated code" in done("doctor").out


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_a_json_schema(name: str) -> None:
    document = json.loads(done(f"schema {name}").out)
    assert document["type"] == "object"
    assert document["properties"]
    if name not in INPUTS:
        assert {"kind", "schema_version", "tilewright_version"} <= set(document["required"])


def test_schemas_are_listed() -> None:
    text = done("schema").out
    assert all(kind in text for kind in KINDS)
    assert set(json.loads(done("schema --json").out)) == set(SCHEMAS)


@pytest.mark.usefixtures("short_bursts")
def test_the_demo_shows_the_whole_way(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "demo squeezenet1_1 --image 64 --duration 0.2 --threads 1"
    found: list[Any] = []  # once for both forms

    def demonstrated(*args: Any, **settings: Any) -> Any:
        found[:] = found or [demonstrate(*args, **settings)]
        return found[0]

    monkeypatch.setattr("tilewright.api.demo.demonstrate", demonstrated)
    document = report(command)
    assert document["max_error"] < 1e-5
    assert document["median_ms"] > 0
    text = done(command).out
    assert "largest error" in text
    assert max(map(len, text.partition("Try next")[2].splitlines())) <= 80


def test_the_list_of_verbs_has_the_first_paragraph_of_their_help() -> None:
    listed = cast(Any, typer.main.get_group(app)).commands
    for verb, panel in VERBS.items():
        made = listed[verb]
        begins = " ".join(cleandoc(made.help).split("\n\n")[0].split())
        assert (panel, first_paragraph(verb)) == (made.rich_help_panel, begins)


def test_every_kind_of_document_has_a_schema() -> None:
    sources = [p.read_text() for p in Path(cli.__file__).parent.glob("*_verb.py")]
    printed = {k for text in sources for k in re.findall(r'_?print(?:_\w+)?\(\s*"([\w-]+)"', text)}
    named = {k for text in sources for k in re.findall(r'"([\w-]+)"', text)}
    assert printed <= set(KINDS) <= named


# Manners.


def test_quiet_leaves_results_and_errors_only() -> None:
    loud, quiet = done("inspect small.onnx"), done("inspect small.onnx -q")
    assert loud.err
    assert quiet.err == ""
    assert quiet.out == loud.out
    assert tilewright("inspect", "nowhere.onnx", "-q").complaint


def test_verbose_says_what_is_being_done() -> None:
    result = done("compile small.onnx -o v.tw -v --no-cache")
    assert "tilewright: partition" in result.err
    assert "template" in result.out


@pytest.mark.sampled(3)
@pytest.mark.parametrize("verb", VERBS)
def test_every_help_has_an_example(verb: str) -> None:
    result = done(f"{verb} --help")
    assert "Example" in result.out
    assert f"tilewright {verb}" in result.out


def test_without_a_verb_there_is_help() -> None:
    result = tilewright()
    assert result.code == 2
    assert all(verb in result.out + result.err for verb in VERBS)


def test_the_version_is_that_of_the_package() -> None:
    assert done("--version").out == f"tilewright {tw.__version__}\n"
