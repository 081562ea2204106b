"""A package of someone else's adds a pass and planners, which run by name and options in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.models import small_net

pytestmark = pytest.mark.sampled(3)

SRC = Path(__file__).parents[2] / "src"

MODULE = '''
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.memory.levels import place_levels
from tilewright.memory.packing import Packing
from tilewright.partition import Reason
from tilewright.partition.base import build_partition
from tilewright.passes import PassResult, Remark
from tilewright.passes.edit import Editor
from tilewright.planning import Provenance, option
from tilewright.schedule.base import build_schedule, single


@dataclass(frozen=True)
class LeakyRelus:
    """Every Relu lets a share of negative values through."""

    slope: float = option(0.0, "How much of them.")
    name: ClassVar[str] = "leaky-relus"

    def run(self, graph):
        editor = Editor(graph)
        nodes = [n for n in graph.nodes if n.op_type == "Relu"]
        for node in nodes:
            editor.become(node, "LeakyRelu", [node.require(0)], {"alpha": self.slope}, since=16)
        return PassResult(len(nodes), tuple(Remark(n.name, "leaks") for n in nodes))


@dataclass(frozen=True)
class Pairs:
    """So many nodes in a row form a subgraph."""

    length: int = option(2, "Nodes of a subgraph.")
    name: ClassVar[str] = "rows"

    def solve(self, problem, budget):
        nodes, n = problem.graph.nodes, self.length
        rows = [list(nodes[i : i + n]) for i in range(0, len(nodes), n)]

        def reason(producer, consumer, value, fused):
            return Reason.CLUSTER if fused else Reason.NO_FUSION

        return build_partition(problem, rows, reason, Provenance(f"rows of {n}"))


@dataclass(frozen=True)
class Plain:
    """One subgraph after another."""

    label: str = option("plain", "What to call the schedule.")
    name: ClassVar[str] = "one-by-one"

    def solve(self, problem, budget):
        stages = tuple(single(s.id) for s in problem.partition.subgraphs)
        return build_schedule(problem, stages, Provenance(f"one-by-one {self.label}"))


@dataclass(frozen=True)
class Failing:
    """Fails at work."""

    name: ClassVar[str] = "failing"

    def solve(self, problem, budget):
        return build_schedule(problem, (single(problem.partition.subgraphs[None].id),), Provenance("failing"))


@dataclass(frozen=True)
class Wrong:
    """Answers with what nobody asked for."""

    name: ClassVar[str] = "wrong"

    def solve(self, problem, budget):
        return ["a plan"]

    def run(self, graph):
        return None


@dataclass(frozen=True)
class Hollow:
    """Gives a schedule of nothing that is one."""

    name: ClassVar[str] = "hollow"

    def solve(self, problem, budget):
        stages = tuple(single(s.id) for s in problem.partition.subgraphs)
        return replace(build_schedule(problem, stages, Provenance("hollow")), stages=(3,))


@dataclass(frozen=True)
class Careless:
    """Leaves nodes that read what is gone."""

    name: ClassVar[str] = "careless"

    def run(self, graph):
        graph.inputs.clear()
        return PassResult(1)


@dataclass(frozen=True)
class Spaced:
    """One buffer behind another, with space between."""

    gap_bytes: int = option(0, "Bytes between two buffers.")
    name: ClassVar[str] = "spaced"

    def solve(self, problem, budget):
        return place_levels(problem, budget, self)

    def pack_level(self, buffers, capacity_bytes, meter):
        offsets, end = {}, 0
        for buffer in buffers:
            offsets[buffer.name] = end
            end += buffer.size_bytes + self.gap_bytes
            end += -end % 64
        return Packing(offsets)
'''

BROKEN = "raise RuntimeError('this package needs\\na newer Python')\n"


def install(folder: Path, name: str, module: str, entries: dict[str, list[str]]) -> None:
    """What an installer leaves behind of a wheel: the module and its entry points."""
    (folder / f"{name}.py").write_text(module)
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "INSTALLER").write_text("pip\n")
    lines = [line for group, members in entries.items() for line in (f"[tilewright.{group}]", *members, "")]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (info / "RECORD").write_text("".join(f"{p.relative_to(folder)},,\n" for p in folder.rglob("*.py")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages, and a model in it."""
    folder = tmp_path_factory.mktemp("site")
    install(
        folder,
        "tw_rows",
        MODULE,
        {
            "passes": [
                *("careless = tw_rows:Careless", "leaky-relus = tw_rows:LeakyRelus", "wrong = tw_rows:Wrong"),
            ],
            "partition": ["rows = tw_rows:Pairs", "layerwise = tw_rows:Pairs", "wrong = tw_rows:Wrong"],
            "schedule": [
                *("failing = tw_rows:Failing", "hollow = tw_rows:Hollow", "one-by-one = tw_rows:Plain"),
                "wrong = tw_rows:Wrong",
            ],
            "memory": ["spaced = tw_rows:Spaced"],
        },
    )
    install(
        folder, "tw_broken", BROKEN, {"schedule": ["fast = tw_broken:Fast"], "passes": ["x = tw_broken:X"]}
    )
    (folder / "small.onnx").write_bytes(small_net().SerializeToString())
    return folder


def python(site: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that finds the packages."""
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join((str(SRC), str(site))),
        "TILEWRIGHT_CACHE": str(site / "cache"),
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=site, env=environment, capture_output=True, text=True, timeout=120
    )


COMPILE = ("-m", "tilewright", "compile", "small.onnx", "-o", "small.tw")


@pytest.mark.sampled(0)
def test_the_command_line_runs_a_plugins_pass_and_planners_with_options(site: Path) -> None:
    flags = [
        *("--partition", "rows{length=3}"),
        *("--schedule", "one-by-one{label=mine}"),
        *("--memory", "spaced{gap_bytes=1KiB}"),
        *("--pass", "leaky-relus{slope=0.5}"),
    ]
    result = python(site, *COMPILE, *flags, "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    options = document["options"]
    assert options["partition"] == "rows{length=3}"
    assert options["memory"] == "spaced{gap_bytes=1KiB}"
    assert options["passes"] == ["leaky-relus{slope=0.5}"]
    narrow = json.loads(python(site, *COMPILE, *flags[:4], "--memory", "spaced", "--json").stdout)
    assert document["memory"]["peak_bytes"] > narrow["memory"]["peak_bytes"] + 1024


API = """
import numpy as np
import tilewright as tw

settings = dict(partition="rows{length=1}", schedule="one-by-one{label=mine}", memory="spaced{}")
feed = {"image": np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)}
plain, leaky = (
    tw.compile("small.onnx", passes=passes, **settings) for passes in ((), ("leaky-relus{slope=0.5}",))
)
relu = plain.run(["r1"], feed)[0]
leaked = leaky.run(["r1"], feed)[0]
assert relu.min() == 0 > leaked.min()
np.testing.assert_allclose(np.maximum(leaked, 0), relu, rtol=1e-5, atol=1e-6)
program = plain.program
assert program.partition.provenance.planner == "rows of 1", program.partition.provenance
assert program.schedule.provenance.planner == "one-by-one mine"
leaky.save("leaky.tw")
again = tw.open("leaky.tw", trust=True).run(["r1"], feed)[0]
assert np.array_equal(again, leaked)
"""


def test_the_api_runs_them_too_and_artifacts_remember(site: Path) -> None:
    result = python(site, "-c", API)
    assert result.returncode == 0, result.stderr


def test_a_wrong_option_of_a_plugin_is_one_line(site: Path) -> None:
    result = python(site, *COMPILE, "--pass", "leaky-relus{slop=1}")
    assert result.returncode == 2
    assert result.stderr == "tilewright: leaky-relus: unknown option 'slop'; did you mean slope?\n"


@pytest.mark.sampled(0)
def test_a_broken_plugin_is_one_line_where_it_is_asked_for_and_nothing_elsewhere(site: Path) -> None:
    result = python(site, *COMPILE, "--schedule", "fast")
    assert result.returncode == 2
    assert result.stderr == (
        "tilewright: scheduler 'fast' is a plugin (tw_broken 1.5: tw_broken:Fast) that cannot be loaded: "
        "RuntimeError: this package needs a newer Python. Reinstall or remove the package that provides it.\n"
    )
    assert python(site, *COMPILE, "--schedule", "greedy").returncode == 0


def test_a_plugin_that_fails_at_work_is_named(site: Path) -> None:
    result = python(site, *COMPILE, "--schedule", "failing")
    assert result.returncode == 1
    assert result.stderr == (
        "tilewright: scheduler 'failing', a plugin (tw_rows 1.5: tw_rows:Failing), raised TypeError: tuple "
        "indices must be integers or slices, not NoneType. Report it to its authors.\n"
    )


WRONG = """
import tilewright as tw

for flag, name in (
    ("partition", "wrong"), ("schedule", "wrong"), ("schedule", "hollow"), ("passes", "wrong"),
    ("passes", "careless"),
):
    try:
        tw.compile("small.onnx", **{flag: name if flag != "passes" else (name,)})
    except tw.PluginFailed as error:
        print(error)
"""


def test_what_a_plugin_gives_that_it_should_not_is_the_plugins_error(site: Path) -> None:
    result = python(site, "-c", WRONG)
    assert result.returncode == 0, result.stderr
    partition, schedule, hollow, gave_none, careless = result.stdout.splitlines()
    assert partition == (
        "partitioner 'wrong', a plugin (tw_rows 1.5: tw_rows:Wrong), gave a list where a Partition is asked "
        "for. Report it to its authors."
    )
    assert schedule.startswith("scheduler 'wrong', a plugin (tw_rows 1.5: tw_rows:Wrong), gave a list ")
    assert hollow.startswith(
        "scheduler 'hollow', a plugin (tw_rows 1.5: tw_rows:Hollow), gave a Schedule that"
    )
    assert "pass 'wrong', a plugin (tw_rows 1.5: tw_rows:Wrong), gave a NoneType" in gave_none
    assert "pass 'careless', a plugin (tw_rows 1.5: tw_rows:Careless), left a graph" in careless


def test_plugins_are_listed_with_what_is_wrong_with_them(site: Path) -> None:
    result = python(site, "-m", "tilewright", "planners", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    (spaced,) = [m for m in document["members"] if m["name"] == "spaced"]
    assert spaced["plugin"] == "tw_rows 1.5: tw_rows:Spaced"
    assert spaced["options"] == [
        {"name": "gap_bytes", "type": "size", "default": "0", "about": "Bytes between two buffers."}
    ]
    shadow, *broken = document["problems"]
    assert shadow == (
        "partitioner 'layerwise' of tw_rows 1.5: tw_rows:Pairs is not used: that name is built in. "
        "It needs another one."
    )
    assert len(broken) == 2
    assert all("tw_broken" in line for line in broken)


def test_the_shell_completes_names_of_plugins_too(site: Path) -> None:
    def completions(words: str) -> set[str]:
        asked = {"_TILEWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
        return set(python(site, "-m", "tilewright", **asked).stdout.split())

    assert {"auto", "greedy", "one-by-one", "fast"} <= completions("tilewright compile --schedule ")
    assert completions("tilewright compile --schedule o") == {"one-by-one"}


def test_a_plugin_does_not_shadow_a_built_in(site: Path) -> None:
    result = python(
        site,
        "-c",
        "from tilewright.partition import PARTITIONERS as p; print(type(p.get('layerwise')).__module__)",
    )
    assert result.stdout.strip() == "tilewright.partition.layerwise"
