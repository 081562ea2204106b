"""Models as C programs: for this machine and others, the object, its header, its weights and its mistakes."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.hostile import names
from tests.support.choices import with_choices
from tests.support.cli import tilewright
from tests.support.models import F32, host_net, model, small_net

import tilewright as tw
from tilewright import zoo
from tilewright.compiler import plan
from tilewright.embed import folder, package
from tilewright.embed.folder import FileToWrite, write_together
from tilewright.embed.names import MAX_NAME_CHARS, identifier
from tilewright.embed.package import header_text
from tilewright.embed.weights import HEADER_BYTES
from tilewright.ir.dtype import DType
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.partition.form import Form, KernelForm
from tilewright.planning.choice import Choice
from tilewright.targets.cpu.isa import isa_by_name, isa_for_export
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.product.select import product_neighbours
from tilewright.targets.cpu.runtime.executable import TensorSpec

pytestmark = pytest.mark.sampled(12)

CC = shutil.which("gcc") or shutil.which("cc")
CROSS_CC, QEMU = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler (gcc) on this machine")
needs_arm = pytest.mark.skipif(
    CROSS_CC is None or QEMU is None,
    reason="needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user",
)
STRICT = ("-O2", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")


def call(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(c) for c in command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def build(folder: Path, name: str, *compiler: str) -> None:
    made = call(*compiler, *STRICT, "example.c", f"{name}.o", "-o", name, "-lm", folder=folder)
    assert made.returncode == 0, made.stderr


def run(folder: Path, name: str, loaded: tw.Model, feed: dict[str, Any], *emulator: str) -> dict[str, Any]:
    """The outputs of the example program."""
    graph = loaded.graph
    inputs, outputs = [], []
    for i, value in enumerate(graph.inputs):
        np.ascontiguousarray(feed[value.name]).tofile(folder / f"in{i}.bin")
        inputs.append(f"in{i}.bin")
    outputs = [f"out{i}.bin" for i in range(len(graph.outputs))]
    result = call(*emulator, f"./{name}", f"{name}.weights", *inputs, *outputs, folder=folder)
    assert result.returncode == 0, result.stderr
    return {
        v.name: np.fromfile(folder / file, v.dtype.numpy).reshape(v.shape)
        for v, file in zip(graph.outputs, outputs, strict=True)
    }


def check_outputs(loaded: tw.Model, feed: dict[str, Any], got: dict[str, Any]) -> None:
    for name, want in run_graph(loaded.graph, feed).items():
        np.testing.assert_allclose(got[name], want, rtol=0, atol=1e-4 * np.abs(want).max())


def network(name: str, **settings: int) -> tuple[tw.Model, dict[str, Any]]:
    proto = zoo.build(name, **settings)
    return tw.load(proto), zoo.example_inputs(proto, 0)


@pytest.mark.sampled(1)
@needs_compiler
@pytest.mark.parametrize("isa", ["host", "avx2"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("resnet18", {"image": 64}),
        ("mobilenet_v2", {"image": 96}),
        ("shufflenet_v2_x1_0", {"image": 64}),
        ("bert_tiny", {}),
    ],
)
def test_networks_run_as_programs(name: str, settings: dict[str, int], isa: str, tmp_path: Path) -> None:
    loaded, feed = network(name, **settings)
    made = tw.export(loaded, tmp_path, isa, name=name)
    build(tmp_path, name, str(CC))
    check_outputs(loaded, feed, run(tmp_path, name, loaded, feed))
    assert made.weights_path.stat().st_size == made.weights_bytes


@needs_compiler
def test_stages_run_as_programs(tmp_path: Path) -> None:
    """Group after group: a program has one thread."""
    loaded, feed = network("squeezenet1_1", image=64)
    program = plan(loaded.graph, Options(schedule="greedy")).program
    assert any(len(stage.groups) > 1 for stage in program.schedule.stages)
    tw.export(loaded, tmp_path, name="staged", schedule="greedy")
    build(tmp_path, "staged", str(CC))
    check_outputs(loaded, feed, run(tmp_path, "staged", loaded, feed))


@needs_arm
@pytest.mark.parametrize(
    ("name", "settings"),
    [("squeezenet1_1", {"image": 64}), ("mobilenet_v2", {"image": 64}), ("bert_tiny", {})],
)
def test_networks_run_on_arm(name: str, settings: dict[str, int], tmp_path: Path) -> None:
    loaded, feed = network(name, **settings)
    tw.export(loaded, tmp_path, "aarch64", name=name)
    build(tmp_path, name, str(CROSS_CC), "-static")
    check_outputs(loaded, feed, run(tmp_path, name, loaded, feed, str(QEMU)))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with a small model and its export for this machine."""
    onnx.save(small_net(), tmp_path / "small.onnx")
    tw.export(tmp_path / "small.onnx", tmp_path)
    return tmp_path


@needs_compiler
def test_the_header_is_c_and_cpp_without_a_warning(small: Path) -> None:
    (small / "use.c").write_text('#include "small.h"\nint main(void) { return SMALL_OK; }\n')
    shutil.copy(small / "use.c", small / "use.cpp")
    assert call(str(CC), *STRICT, "use.c", "-o", "use", folder=small).stderr == ""
    if cpp := shutil.which("g++"):
        flags = ("-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic")
        made = call(cpp, *flags, "use.cpp", "small.o", "-o", "use", "-lm", folder=small)
        assert made.stderr == ""


@needs_compiler
def test_nothing_but_the_function_is_visible(small: Path) -> None:
    listed = call("nm", "-g", "--defined-only", "small.o", folder=small).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["small_run"]


@needs_compiler
def test_calls_that_cannot_work_say_so_and_do_nothing(small: Path) -> None:
    (small / "use.c").write_text(
        """
#include <stdio.h>
#include "small.h"
static _Alignas(64) char file[SMALL_WEIGHTS_FILE_BYTES + 64];
static _Alignas(64) char workspace[SMALL_WORKSPACE_BYTES + 64];
static _Alignas(64) char in[SMALL_INPUT_0_BYTES], out[SMALL_OUTPUT_0_BYTES], r1[SMALL_OUTPUT_1_BYTES];
int main(void)
{
    const void *inputs[] = {in}, *none[] = {NULL};
    void *outputs[] = {out, r1}, *nowhere[] = {out, NULL};
    FILE *f = fopen("small.weights", "rb");
    const void *w;
    if (fread(file, 1, SMALL_WEIGHTS_FILE_BYTES, f) != SMALL_WEIGHTS_FILE_BYTES)
        return 1;
    w = small_open_weights(file, SMALL_WEIGHTS_FILE_BYTES);
    printf("%d %d %d %d %d %d ", w != NULL, small_run(NULL, workspace, inputs, outputs),
           small_run(w, workspace + 8, inputs, outputs), small_run(w, workspace, none, outputs),
           small_run(w, workspace, inputs, nowhere), small_run(w, workspace, inputs, outputs));
    printf("%d %d ", small_open_weights(file, 100) == NULL, small_open_weights(NULL, 1000) == NULL);
    printf("%d\\n", small_open_weights(file + 8, SMALL_WEIGHTS_FILE_BYTES) == NULL);
    return 0;
}
"""
    )
    assert call(str(CC), "-std=c11", "use.c", "small.o", "-o", "use", "-lm", folder=small).returncode == 0
    assert call("./use", folder=small).stdout.split() == ["1", "1", "1", "2", "2", "0", "1", "1", "1"]


@pytest.mark.sampled(1)
@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "magic", "version", "identity", "data", "other"])
def test_weights_that_do_not_belong_are_refused(small: Path, damage: str) -> None:
    build(small, "small", str(CC))
    loaded = tw.load(small / "small.onnx")
    feed = {v.name: np.zeros(v.shape, v.dtype.numpy) for v in loaded.graph.inputs}
    run(small, "small", loaded, feed)
    path = small / "small.weights"
    data = bytearray(path.read_bytes())
    match damage:
        case "cut":
            del data[-8:]
        case "magic" | "version" | "identity" | "data":
            at = {"magic": 3, "version": 8, "identity": 40, "data": HEADER_BYTES + 5}[damage]
            data[at] ^= 1
        case "other":
            proto = small_net()
            other = proto.graph.initializer[0]
            values = onnx.numpy_helper.to_array(other) + 1
            other.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float32), other.name))
            (small / "other").mkdir()
            tw.export(tw.load(proto), small / "other", name="small")
            data = bytearray((small / "other" / "small.weights").read_bytes())
    path.write_bytes(bytes(data))
    result = call("./small", "small.weights", "in0.bin", "out0.bin", "out1.bin", folder=small)
    assert result.returncode == 1
    assert "small.weights" in result.stderr


def test_equal_models_give_equal_bytes(small: Path) -> None:
    (small / "again").mkdir()
    (small / "artifact").mkdir()
    tw.export(small / "small.onnx", small / "again")
    tw.compile(small / "small.onnx").save(small / "small.tw")
    tw.export(tw.open(small / "small.tw"), small / "artifact", name="small")
    for file in ("small.o", "small.weights", "small.h", "example.c"):
        assert (small / "again" / file).read_bytes() == (small / file).read_bytes()
        assert (small / "artifact" / file).read_bytes() == (small / file).read_bytes()


def test_what_was_measured_stays_with_its_instruction_set(small: Path) -> None:
    """The tuned object differs from the plain one here, and for other instructions is the plain one."""
    (small / "tuned").mkdir()
    host = isa_for_export("host").name
    other = "avx2" if host != "avx2" else "neon"
    compiled = tw.compile(small / "small.onnx", isa=host)
    program = compiled.program
    exported = isa_for_export(host)
    lowered = lower_partition(program.partition, exported)
    choices = {}
    for signature, product in lowered.products.items():
        choices[signature] = product_neighbours(product.nest, product.context)[-1]
    tuned = with_choices(program, choices)
    compiled._program = tuned
    for isa, is_plain in ((host, False), (other, True)):
        tw.export(small / "small.onnx", small, isa=isa, name="small", force=True)
        tw.export(compiled, small / "tuned", isa=isa, name="small", force=True)
        plain = (small / "small.o").read_bytes()
        assert ((small / "tuned" / "small.o").read_bytes() == plain) is is_plain


def test_choices_of_forms_are_measured_ones_too() -> None:
    program = plan(tw.load(small_net()).graph, Options()).program
    subgraph = next(s for s in program.partition.subgraphs if len(s.nodes) > 1)
    kernels = (KernelForm(tuple(range(len(subgraph.nodes))), choices=(("8f00", Choice("contraction", ())),)),)
    tuned = program.with_forms({subgraph.id: Form(kernels)})
    assert tuned.partition.subgraphs[subgraph.id].form is not None
    assert tuned.unmeasured().partition.subgraphs[subgraph.id].form is None


@needs_compiler
def test_outputs_that_no_kernel_computes_are_copied(tmp_path: Path) -> None:
    x, y, same = (helper.make_tensor_value_info(n, F32, [2, 3]) for n in ("x", "y", "x2"))
    constant = onnx.numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "c")
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["x"], ["x2"])]
    nodes.append(helper.make_node("Identity", ["c"], ["c2"]))
    outputs = [y, same, helper.make_tensor_value_info("c2", F32, [2, 3])]
    loaded = tw.load(model(nodes, [x], outputs, [constant]))
    tw.export(loaded, tmp_path, name="copies")
    build(tmp_path, "copies", str(CC))
    feed = {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    got = run(tmp_path, "copies", loaded, feed)
    np.testing.assert_array_equal(got["x2"], feed["x"])
    np.testing.assert_array_equal(got["y"], np.maximum(feed["x"], 0))
    np.testing.assert_array_equal(got["c2"], np.arange(6).reshape(2, 3))


def test_names_become_identifiers() -> None:
    assert identifier("../../etc/passwd") == "etc_passwd"
    assert identifier("") == "model"
    assert identifier("é*/") == "model"
    assert identifier("__a__b__") == "a_b"
    for word in ("int", "Class", "STDIO", "example", "tw_main", "4d"):
        assert identifier(word) == f"model_{word}"


def test_hostile_names_reach_neither_compiler_nor_symbols() -> None:
    """`python -m tests.hostile.names 1000` is the long run."""
    outcome = names.hunt(6, seed=1)
    assert outcome["found"] == []
    assert outcome["exported"]


@needs_compiler
def test_the_hunt_for_hostile_names_finds_an_escape_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "comment", lambda text: text.replace("*/", "* /").replace("\\", "/"))
    assert any("-Werror" in problem or "plain text" in problem for problem in names.hunt(3)["found"])


def test_what_an_artifact_says_of_its_model_stays_in_its_comment(small: Path) -> None:
    spec = TensorSpec("x", DType.FLOAT32, (2,))
    facts = {"workspace_bytes": 64, "weights_bytes": 0, "identity": bytes(32)}
    evil = "*/ int evil = 1; /*\n#error"
    text = header_text(identifier("net"), isa_by_name("avx2"), [spec], [spec], model_sha256=evil, **facts)
    assert "evil = 1" not in text.replace("int evil = 1<U+003B>", "")
    assert "#error" not in text


def test_a_name_has_a_limit(small: Path) -> None:
    with pytest.raises(tw.UsageError, match=r"300 characters.*at most 100 \(MAX_NAME_CHARS\)"):
        tw.export(small / "small.onnx", small, name="n" * 300)
    assert tw.export(small / "small.onnx", small, name="n" * MAX_NAME_CHARS).header_path.exists()


# What is in the folder already.


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.sampled(0)
def test_only_what_export_wrote_is_replaced(small: Path) -> None:
    before = contents(small)
    tw.export(small / "small.onnx", small)
    assert contents(small) == before
    for file in ("small.o", "small.h", "small.weights", "example.c"):
        ours = (small / file).read_bytes()
        for theirs in (b"", b"somebody's", ours[:-1] if file[-2:] in (".h", ".c") else b"\x7fELF"):
            (small / file).write_bytes(theirs)
            with pytest.raises(tw.UsageError, match=rf"{file}: export did not write.*--force"):
                tw.export(small / "small.onnx", small)
            assert contents(small) == {**before, file: theirs}
        tw.export(small / "small.onnx", small, force=True)
        assert contents(small) == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_what_is_no_regular_file_is_never_touched(small: Path, kind: str, force: bool) -> None:
    path, victim = small / "small.h", small / "victim"
    path.unlink()
    if kind == "link":
        victim.write_bytes((small / "example.c").read_bytes())  # even one of ours
    match kind:
        case "link" | "dangling":
            path.symlink_to(victim)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    before = {p.name: p.lstat().st_mtime_ns for p in small.iterdir()}
    with pytest.raises(tw.UsageError, match=r"small\.h: is (a link|no regular file)"):
        tw.export(small / "small.onnx", small, force=force)
    assert {p.name: p.lstat().st_mtime_ns for p in small.iterdir()} == before


def test_a_folder_that_another_process_keeps_locked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "LOCK_WAIT_S", 0.05)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(tw.UsageError, match="another process has had it locked"):
            write_together(tmp_path, [FileToWrite("a", (b"a",), lambda _: True)])
        assert os.listdir(tmp_path) == []
    finally:
        os.close(held)
    write_together(tmp_path, [FileToWrite("a", (b"a",), lambda _: True)])
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("with_old", [True, False])
@pytest.mark.parametrize("failing", ["link", "replace", "fsync"])
def test_a_failure_at_any_call_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, with_old: bool, nameless: bool
) -> None:
    if not nameless:
        monkeypatch.setattr(os, "O_TMPFILE", 0, raising=False)
    files = [FileToWrite(f"f{i}", (b"new", bytes([i])), lambda _: True) for i in range(4)]
    if with_old:
        for file in files[::2]:
            (tmp_path / file.name).write_bytes(b"old")
    before = contents(tmp_path)
    real = getattr(os, failing)
    for number in range(20):
        calls = iter(range(100))

        def sometimes(*arguments: Any, calls: Any = calls, number: int = number, **more: Any) -> Any:
            if next(calls) == number:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **more)

        monkeypatch.setattr(os, failing, sometimes)
        outcome = ""
        try:
            write_together(tmp_path, files)
        except tw.UsageError as error:
            outcome = str(error)
        finally:
            monkeypatch.setattr(os, failing, real)
        if not outcome:
            break
        assert "Input/output error" in outcome
        assert contents(tmp_path) == before
    assert number < 19
    assert contents(tmp_path) == {f.name: b"".join(f.chunks) for f in files}


@pytest.mark.sampled(0)
def test_a_full_disk_leaves_what_was_there(small: Path) -> None:
    before = contents(small)
    code = (
        "import resource, signal, sys, tilewright as tw\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "model = tw.load(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "try: tw.export(model, sys.argv[2], name='small')\n"
        "except tw.UsageError as error: print(error)\n"
    )
    result = call(sys.executable, "-c", code, small / "small.onnx", small, folder=small)
    assert result.stdout.startswith(f"{small}: cannot be written to (File too large)"), result
    assert contents(small) == before


@pytest.mark.sampled(0)
def test_a_kill_at_any_moment_leaves_whole_files(tmp_path: Path) -> None:
    """Old or new, each of them whole; beside them at most a hidden one, whole too, that had no name yet."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tilewright.embed.folder import FileToWrite, write_together\n"
        "print('ready', flush=True)\n"
        "for number in range(10**9):\n"
        "    data = bytes([65 + number % 26]) * 300_000\n"
        "    files = [FileToWrite(f'f{i}', (data,) * 4, lambda _: True) for i in range(4)]\n"
        "    write_together(Path(sys.argv[1]), files)\n"
    )
    for attempt in range(3):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 + 0.013 * attempt)
        process.kill()
        process.wait()
        process.stdout.close()
        for path in tmp_path.iterdir():
            data = path.read_bytes()
            assert len(data) == 1_200_000
            assert data == data[:1] * len(data)


def test_the_verb(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small)
    (small / "out").mkdir()
    result = tilewright("export", "small.onnx", "--isa", "aarch64", "-o", "out", "--name", "my-net")
    assert result.code == 0, result.err
    assert sorted(p.name for p in (small / "out").iterdir()) == [
        "example.c",
        "my_net.h",
        "my_net.o",
        "my_net.weights",
    ]
    assert "caller gives" in result.out
    # An object for another machine: ELF, 64 bits, little-endian, machine 183 (AArch64).
    head = (small / "out" / "my_net.o").read_bytes()[:20]
    assert (head[:6], head[18]) == (b"\x7fELF\x02\x01", 183)


def test_the_verb_replaces_what_is_not_its_own_only_if_told(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small)
    (small / "example.c").write_text("mine")
    result = tilewright("export", "small.onnx")
    assert (result.code, (small / "example.c").read_text()) == (2, "mine")
    assert "example.c: export did not write this file" in result.err
    assert tilewright("export", "small.onnx", "--force").code == 0
    assert (small / "example.c").read_text().startswith("/* tilewright export")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("small.onnx --isa sparc", "sparc"),
        ("small.onnx --to tarball", "tarball"),
        ("small.onnx -o nowhere", "nowhere"),
        ("host.onnx", "TopK"),
        ("missing.onnx", "missing.onnx"),
        ("small.tw --accuracy strict", "small.tw"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str, named: str, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small)
    onnx.save(host_net(), small / "host.onnx")
    tw.compile(small / "small.onnx").save(small / "small.tw")
    result = tilewright("export", *arguments.split())
    assert result.code in (2, 3, 4)
    assert len(result.err.strip().splitlines()) == 1
    assert named in result.err
