"""Artifacts of whole models: what comes back, what damage and forgeries are refused, what is stored once."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.hostile import artifacts
from tests.support.artifacts import refusal, rewritten, same, small_artifact
from tests.support.models import feed_for, host_net, mixed_outputs, small_net

import tilewright as tw
from tilewright import artifact
from tilewright.artifact.container import Archive
from tilewright.errors import UsageError
from tilewright.hardware.probe import num_threads_default

pytestmark = pytest.mark.sampled(32)

NUM_FLIPS = 300


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_artifact(tmp_path)


# What comes back.


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
@pytest.mark.parametrize("make", [small_net, host_net, mixed_outputs])
def test_an_artifact_computes_and_explains_as_the_model_it_is_of(
    make: Any, target: str, tmp_path: Path
) -> None:
    compiled = tw.compile(make(), target)
    opened = tw.open(compiled.save(tmp_path / "m.tw"))
    assert opened.remarks == ()
    feed = feed_for(make())
    assert same(compiled.run(None, feed), opened.run(None, feed))
    assert opened.facts == compiled.facts
    assert opened.explain().to_json() == compiled.explain().to_json()
    assert {**opened.to_json(), "phase_s": {}} == {**compiled.to_json(), "phase_s": {}}
    assert opened.report().html() == compiled.report().html()
    assert opened.schedule.stages == compiled.schedule.stages
    again = opened.save(tmp_path / "again.tw")
    assert again.read_bytes() == (tmp_path / "m.tw").read_bytes()


@pytest.mark.sampled(0)
def test_options_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is tuned here for two threads is not for the tests that share the other cache.
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    compiled = tw.compile(
        small_net(),
        hint="throughput",
        budget="500trials",
        threads=2,
        seed=3,
        shapes={"image": (1, 3, 12, 12)},
    )
    assert tw.open(compiled.save(tmp_path / "m.tw")).options.to_json() == compiled.options.to_json()


def test_threads_are_those_asked_when_opening_or_else_when_compiling(path: Path) -> None:
    assert tw.open(path).num_threads == 1
    assert tw.open(path, threads=2).num_threads == 2
    assert tw.open(path, threads=1).num_threads == 1


def test_a_model_for_throughput_runs_on_one_thread_unless_told(tmp_path: Path) -> None:
    compiled = tw.compile(small_net(), hint="throughput")
    assert compiled.num_threads == 1
    path = compiled.save(tmp_path / "m.tw")
    assert tw.open(path).num_threads == 1
    assert tw.open(path, threads=2).num_threads == 2


def test_what_the_cpu_cannot_optimise_for_is_refused() -> None:
    with pytest.raises(UsageError, match="hint energy: energy is unavailable on the cpu target"):
        tw.compile(small_net(), hint="energy")


def test_nothing_in_an_artifact_is_a_pickle(path: Path) -> None:
    sources = Path(artifact.__file__).parent.glob("*.py")
    assert not any(
        "pickle" in line for s in sources for line in s.read_text().splitlines() if "import" in line
    )
    archive = Archive(path)
    assert {name.rpartition(".")[2] for name in archive.names} == {"json", "txt", "safetensors", "o"}


# Damage.


def test_every_flipped_bit_of_a_model_is_found(path: Path) -> None:
    raw = path.read_bytes()
    rng = random.Random(0)
    for _ in range(NUM_FLIPS):
        position, bit = rng.randrange(len(raw)), 1 << rng.randrange(8)
        path.write_bytes(raw[:position] + bytes([raw[position] ^ bit]) + raw[position + 1 :])
        with pytest.raises(tw.ArtifactCorrupt):
            Archive(path).verify()


def test_a_damaged_member_is_refused_where_it_is_used(path: Path) -> None:
    archive = Archive(path)
    raw = bytearray(path.read_bytes())
    for name in archive.names[1:]:
        place = archive._places[name]
        damaged = bytearray(raw)
        damaged[place.data_offset + place.entry.size_bytes // 2] ^= 1
        path.write_bytes(damaged)
        assert name in refusal(path)


def test_a_newer_format_is_refused_and_an_older_one_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = artifact.FORMAT_VERSION + 1
    newer = rewritten(path, path, lambda manifest, members: manifest.update(format_version=version))
    assert f"made by a newer tilewright (format {version}" in refusal(newer)
    monkeypatch.setattr(artifact, "FORMAT_VERSION", version + 1)
    assert tw.open(newer).run(None, feed_for(small_net()))


def _without(name: str) -> Any:
    return lambda manifest, members: members.pop(name)


def _facts(**changes: Any) -> Any:
    return lambda manifest, members: manifest.update(changes)


def _plan(change: Any) -> Any:
    def edit(manifest: dict, members: dict) -> None:
        document = json.loads(members["plan.json"])
        change(document)
        members["plan.json"] = json.dumps(document).encode()

    return edit


def _graph(old: str, new: str) -> Any:
    def edit(manifest: dict, members: dict) -> None:
        text = members["graph.txt"].decode()
        assert old in text
        members["graph.txt"] = text.replace(old, new, 1).encode()

    return edit


NONSENSE = {
    "no graph": _without("graph.txt"),
    "no plan": _without("plan.json"),
    "no weights": _without("weights.safetensors"),
    "no target": lambda manifest, members: manifest.pop("target"),
    "steps of text": _facts(steps="many"),
    "shape of text": _facts(inputs=[{"name": "image", "dtype": "float32", "shape": ["a"]}]),
    "unknown type": _facts(inputs=[{"name": "image", "dtype": "float99", "shape": [1]}]),
    "unknown option": _facts(options={"effort": 99}),
    "version zero": _facts(format_version=0),
    "version of text": _facts(format_version="1"),
    "a node twice": _plan(lambda plan: plan["partition"]["subgraphs"].append([0])),
    "a node missing": _plan(lambda plan: plan["partition"]["subgraphs"].pop()),
    "a node beyond": _plan(lambda plan: plan["partition"]["subgraphs"].append([99])),
    "backwards": _plan(lambda plan: plan["schedule"]["stages"].reverse()),
    "negative": _plan(lambda plan: plan["partition"]["subgraphs"][0].append(-1)),
    "no JSON": lambda manifest, members: members.update({"plan.json": b"[" * 100_000}),
    "no text": lambda manifest, members: members.update({"graph.txt": b"\xff\xfe"}),
    "no graph text": lambda manifest, members: members.update({"graph.txt": b"graph"}),
    "a larger result": _graph("%r1: float32[1, 24, 12, 12]", "%r1: float32[1, 24, 12, 9999]"),
    "a smaller operand": _graph("%image: float32[1, 3, 12, 12]", "%image: float32[1, 3, 2, 2]"),
    "another type": _graph("%image: float32[", "%image: float64["),
    "an operand missing": _graph(
        "%r1: float32[1, 24, 12, 12] = Relu(%c1)", "%r1: float32[1, 24, 12, 12] = Tile(%c1)"
    ),
    "an unknown value": _graph("Relu(%c1)", "Relu(%c99)"),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_with_the_right_digests_is_refused(what: str, path: Path, tmp_path: Path) -> None:
    refusal(rewritten(path, tmp_path / "bad.tw", NONSENSE[what]))


def test_tables_of_nonsense_are_refused_even_if_trusted(path: Path, tmp_path: Path) -> None:
    def edit(manifest: dict, members: dict) -> None:
        members["code/0/facts.json"] = b"{}"

    refusal(rewritten(path, tmp_path / "bad.tw", edit), trust=True)


# Weights and instruction sets.


def test_weights_are_stored_once(tmp_path: Path) -> None:
    model = small_net(channels=256)
    path = tw.compile(model, threads=1).save(tmp_path / "m.tw")
    archive = Archive(path)
    weights = sum(numpy_helper.to_array(t).nbytes for t in model.graph.initializer)
    assert weights > 100_000
    others = sum(archive.size_of(n) for n in archive.names if not n.endswith((".o", ".json", ".txt")))
    assert others <= 1.05 * weights


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_constants_of_equal_bytes_keep_their_own_types_and_shapes(target: str, tmp_path: Path) -> None:
    data = np.arange(600, dtype=np.float32)
    constants = {"a": data.reshape(20, 30), "b": data.reshape(30, 20), "c": data.view(np.int32)}
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")]
    outputs.append(helper.make_tensor_value_info("w", TensorProto.INT32, None))
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "a"], ["y"]),
            helper.make_node("Identity", ["b"], ["z"]),
            helper.make_node("Identity", ["c"], ["w"]),
        ],
        "equal_bytes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [20, 30])],
        outputs,
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    compiled = tw.compile(model, target=target)
    feed = {"x": np.ones((20, 30), np.float32)}
    opened = tw.open(compiled.save(tmp_path / "m.tw"))
    for expected, found in zip(compiled.run(None, feed), opened.run(None, feed), strict=True):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
        assert expected.tobytes() == found.tobytes()


def test_code_for_several_instruction_sets_shares_weights(tmp_path: Path) -> None:
    from tilewright.targets.cpu.isa import host_isa

    one = tw.compile(small_net(channels=64), threads=1)
    several = tw.compile(
        small_net(channels=64),
        threads=1,
        isa=f"host,{'avx2' if host_isa().arch == 'x86_64' else 'neon'},aarch64",
    )
    path = several.save(tmp_path / "several.tw")
    made_for = Archive(path).manifest["native"]
    assert len({m["isa"] for m in made_for}) == len(made_for) >= 2
    size = Archive(one.save(tmp_path / "one.tw")).size_of("weights.safetensors")
    assert Archive(path).size_of("weights.safetensors") == size
    feed = feed_for(small_net(channels=64))
    want = several.run(None, feed)
    for code in made_for:
        if code["system"].startswith(host_isa().arch):
            opened = tw.open(path, isa=code["isa"])
            assert opened.remarks == ()
            for a, b in zip(want, opened.run(None, feed), strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
        else:
            with pytest.raises(UsageError, match="another processor"):
                tw.open(path, isa=code["isa"])


OPENS_ALONE = """
import sys, numpy as np, tilewright as tw
opened = tw.open(sys.argv[1])
feed = {i.name: np.zeros(i.shape, i.dtype.numpy) for i in opened.get_inputs()}
opened.run(None, feed)
heavy = {"tilewright.compiler", "tilewright.targets.cpu.lower.lower", "onnx", "numba", "pydantic"}
heavy |= {f"tilewright.{name}" for name in ("cost", "ir.nest", "memory", "partition", "passes", "schedule")}
assert not opened.remarks, opened.remarks
assert not sys.modules.keys() & heavy
"""


def test_stored_code_starts_without_what_generates_code(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path / "none")}
    subprocess.run([sys.executable, "-c", OPENS_ALONE, str(path)], check=True, env=environment)
    assert not (tmp_path / "none").exists()


def test_the_code_of_the_other_instruction_set_of_this_machine_is_run(tmp_path: Path) -> None:
    from tilewright.targets.cpu.isa import ISA_NAMES, host_isa, isa_by_name

    others = [n for n in ISA_NAMES if n != host_isa().name and isa_by_name(n).runs_on_host]
    if not others:
        pytest.skip("this machine runs one instruction set only")
    compiled = tw.compile(small_net(), isa=others[0])
    (code,) = compiled.stored_code()
    assert code.made_for["isa"] == others[0]
    assert tw.open(compiled.save(tmp_path / "m.tw")).remarks == ()


def test_opening_in_a_fresh_process_gives_the_same_bits(path: Path, tmp_path: Path) -> None:
    feed = feed_for(small_net())
    np.savez(tmp_path / "in.npz", **feed)
    code = (
        "import sys, numpy as np, tilewright as tw\n"
        "opened = tw.open(sys.argv[1]); assert not opened.remarks, opened.remarks\n"
        "np.save(sys.argv[3], opened.run(['logits'], dict(np.load(sys.argv[2])))[0])\n"
    )
    arguments = [str(path), str(tmp_path / "in.npz"), str(tmp_path / "out.npy")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=dict(os.environ))
    assert np.array_equal(np.load(tmp_path / "out.npy"), tw.open(path).run(["logits"], feed)[0])


# Forgeries: `python -m tests.hostile.artifacts 2000` is the long run.


def test_forged_artifacts_are_refused_or_run_as_they_say() -> None:
    outcome = artifacts.hunt(8, seed=2)
    assert outcome["found"] == []
    assert outcome["refused"]
    assert outcome["ran"]


FIELDS = {
    "steps[0].index: expected a whole number": lambda m: m["steps"][0].update(index="0"),
    "steps[0].kernels[0].macs: expected a whole number": lambda m: m["steps"][0]["kernels"][0].update(
        macs=-1
    ),
    "steps[0].kernels: expected a list, found an object": lambda m: m["steps"][0].update(kernels={}),
    "inputs[0].shape[0]: expected a whole number": lambda m: m["inputs"][0].update(shape=[True, 3, 12, 12]),
    "inputs[0].dtype: expected a text": lambda m: m["inputs"][0].update(dtype=5),
    "memory.buffers[0].offset_bytes: is missing": lambda m: m["memory"]["buffers"][0].pop("offset_bytes"),
    "options.threads: expected a whole number": lambda m: m["options"].update(threads="two"),
    "options.budget.evaluations: is missing": lambda m: m["options"].update(budget={}),
    "options.hint: expected one of latency": lambda m: m["options"].update(hint="hurry"),
    "expected a SHA-256 in hex, found '*/ evil'": lambda m: m.update(model_sha256="*/ evil"),
    "native[0].isa: expected a text, found null": lambda m: m["native"][0].update(isa=None),
    "origins: expected a list, found 5": lambda m: m.update(origins=5),
    "found a number of 3000 bits": lambda m: m.update(target=1 << 2999),
}


@pytest.mark.parametrize("words", FIELDS)
def test_a_field_that_does_not_fit_is_named(words: str, path: Path, tmp_path: Path) -> None:
    message = refusal(rewritten(path, tmp_path / "bad.tw", lambda manifest, members: FIELDS[words](manifest)))
    assert words in message
    assert "manifest.json: " in message


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("stated", "forged", "words"),
    [
        ("%h: float32", "%h: int64", "MatMul 'h': Y cannot be a tensor(int64)"),
        ("%k: int64[1] = [3]", "%k: float32[1] = [3.0]", "TopK 'v': K cannot be a tensor(float)"),
        ("TopK(%h, %k)", "TopK(%h)", "TopK 'v' has 1 operands"),
    ],
)
def test_a_graph_of_types_that_its_operators_do_not_have_is_refused(
    stated: str, forged: str, words: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("TopK", ["h", "k"], ["v", "i"])]
    float_shapes = {"x": (2, 4), "v": (2, 3)}
    x, v = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in float_shapes.items())
    i = helper.make_tensor_value_info("i", TensorProto.INT64, (2, 3))
    arrays = {"w": np.ones((4, 5), np.float32), "k": np.array([3])}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", [x], [v, i], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tw.compile(proto, "stcp920").save(tmp_path / "topk.tw")

    def forge(manifest: dict, members: dict) -> None:
        text = members["graph.txt"].decode()
        assert stated in text
        members["graph.txt"] = text.replace(stated, forged).encode()

    assert words in refusal(rewritten(path, tmp_path / "forged.tw", forge))


@pytest.mark.parametrize("trust", [False, True])
def test_native_parts_belong_to_targets_that_make_code(path: Path, tmp_path: Path, trust: bool) -> None:
    def to(**facts: Any) -> Any:
        return rewritten(path, tmp_path / "other.tw", lambda manifest, members: manifest.update(facts))

    assert "has native parts, which target interpreter makes none" in refusal(
        to(target="interpreter"), trust=trust
    )
    assert "lacks the native parts that target cpu makes" in refusal(to(native=[]), trust=trust)
    with pytest.raises(tw.UsageError, match=r"other\.tw: manifest\.json: target: Unknown target 'gpu'"):
        tw.open(to(target="gpu"), trust=trust)


def test_an_artifact_gets_no_more_threads_than_the_machine_has(path: Path, tmp_path: Path) -> None:
    greedy = rewritten(path, tmp_path / "greedy.tw", lambda m, _: m["options"].update(threads=1024))
    opened = tw.open(greedy)
    assert opened.num_threads == num_threads_default()
    assert any("asks for 1024 threads" in remark for remark in opened.remarks)
    before = threading.active_count()
    opened.run(None, feed_for(small_net()))
    assert threading.active_count() - before < num_threads_default()
    with pytest.raises(UsageError, match="1025"):
        tw.open(path, threads=1025)


def test_an_artifact_says_nothing_about_cache_and_time(path: Path, tmp_path: Path) -> None:
    wanted = {"cache_dir": "/nowhere", "frozen": True, "timeout_s": 1e-9, "dump_after": ["dead-code"]}
    opened = tw.open(rewritten(path, tmp_path / "m.tw", lambda m, _: m["options"].update(wanted)))
    assert same(opened.run(None, feed_for(small_net())), tw.open(path).run(None, feed_for(small_net())))
    assert (opened.options.cache_dir, opened.options.frozen, opened.options.dump_after) == (None, False, ())


def test_tables_are_checked_even_if_trusted(path: Path, tmp_path: Path) -> None:
    def edit(**changes: Any) -> Any:
        def change(manifest: dict, members: dict) -> None:
            tables = json.loads(members["code/0/facts.json"])
            for name, value in changes.items():
                (tables["main"] if name in tables["main"] else tables)[name] = value
            members["code/0/facts.json"] = json.dumps(tables).encode()

        return rewritten(path, tmp_path / "bad.tw", change)

    assert "code/0/facts.json: main.arg_table[0]: lies outside" in refusal(
        edit(arg_table=[[0, 1 << 40]]), trust=True
    )
    assert "code/0/facts.json: main.segments[0]: host step 7" in refusal(edit(segments=[7]), trust=True)
    assert "code/0/facts.json: main.num_bases: 4000" in refusal(edit(num_bases=4000), trust=True)
    assert "code/0/facts.json: inputs: are not those" in refusal(edit(inputs=[]), trust=True)
    assert "code/0/facts.json: outputs[0]: nothing writes it" in refusal(edit(arg_table=[]), trust=True)
    assert "code/0/facts.json: passthrough.x: is no output" in refusal(
        edit(passthrough={"x": "image"}), trust=True
    )
