"""What onnx's C++ does to a process is done to the worker: crash, hang, memory, signals, forks."""

# mypy: disable-error-code="func-returns-value"

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from onnx import NodeProto, helper
from onnx.parser import parse_model

from tilewright.errors import ModelRejected
from tilewright.frontend.onnx import load_onnx, native
from tilewright.system.worker_process import WorkerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes as Linux has them")


def infer(node: NodeProto, shapes: list[tuple[int, ...]], opset: int = 17) -> tuple[bytes, ...]:
    """Shape inference of a node, with none of our checks before it."""
    kinds = [helper.make_tensor_type_proto(1 if i == 0 else 7, s) for i, s in enumerate(shapes)]
    texts = [t for n, k in zip(node.input, kinds, strict=True) for t in (n.encode(), k.SerializeToString())]
    counts = b"%d 0 1" % len(shapes)
    request = (node.SerializeToString(), counts, *texts, b"", b"%d" % opset)
    return native.call("infer_outputs", node.op_type.encode(), b"%d" % opset, *request)


def sound() -> tuple[bytes, ...]:
    return infer(helper.make_node("Relu", ["x"], ["y"]), [(2, 3)])


def length(number: int) -> bytes:
    """A length as protocol buffers write it."""
    text = b""
    while number > 127:
        text, number = text + bytes([number & 127 | 128]), number >> 7
    return text + bytes([number])


def crash() -> None:
    infer(helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-7), [(2, 2), (2, 2)])


def endless() -> None:
    infer(helper.make_node("Einsum", ["x"], ["y"], equation="..i"), [(2,)])


def children() -> set[int]:
    """Processes of ours, dead ones that nobody waited for included."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(entry.name))
    return found


@pytest.mark.sampled(0)
def test_a_crash_is_one_line_and_the_next_call_is_answered() -> None:
    for _ in range(2):
        with pytest.raises(ModelRejected, match=r"shape inference crashed on it \(SIG(SEGV|ABRT)\)"):
            crash()
        assert sound()


def test_after_a_crash_an_import_asks_another_process_not_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: object) -> None:
        raise AssertionError("asked here")

    monkeypatch.setattr(native, "_call_here", never)
    with native.session(1, 1):
        for _ in range(2):
            with pytest.raises(ModelRejected, match="crashed on it"):
                crash()
            assert sound()


def test_answers_of_many_texts_are_read_in_time_that_grows_with_their_number() -> None:
    outputs = [f"y{i}" for i in range(20_000)]
    node = helper.make_node("Split", ["x"], outputs, num_outputs=len(outputs))
    started_s = time.process_time()
    assert len(infer(node, [(len(outputs),)], opset=18)) == 2 * len(outputs)
    assert time.process_time() - started_s < 2  # a sum over all texts before each one takes several


def test_a_call_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MAX_NATIVE_CALL_S", 0.3)
    started = time.monotonic()
    with pytest.raises(ModelRejected, match="takes longer than 0 s"):
        endless()
    assert time.monotonic() - started < 10
    assert sound()


def test_time_in_which_the_worker_waits_for_a_processor_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, used_ns = WorkerProcess.ask, 0

    def late(self: WorkerProcess, request: Sequence[bytes | memoryview], limit_s: float) -> list[bytes]:
        time.sleep(0.2)
        kind, own_ns, *rest = ask(self, request, limit_s)
        return [kind, b"%d" % (int(own_ns) + used_ns), *rest]

    monkeypatch.setattr(native, "MAX_IMPORT_S", 0.15)
    monkeypatch.setattr(WorkerProcess, "ask", late)
    with native.session(0, 0):
        sound()
        native.check_time()
    used_ns = 150_000_000
    with native.session(0, 0):
        sound()
        with pytest.raises(ModelRejected, match="reading the model takes longer"):
            native.check_time()


def test_a_call_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MAX_NATIVE_BYTES", 200 << 20)
    monkeypatch.setattr(native, "NATIVE_BYTES_PER_BYTE", 0)
    nodes = b"\x0a\x00" * 5_000_000  # as many empty messages
    with pytest.raises(ModelRejected, match=r"memory"):
        native.call("check_model", b"\x3a" + length(len(nodes)) + nodes)
    assert sound()


def test_errors_of_onnx_are_told_in_its_words() -> None:
    with pytest.raises(native.NativeError, match="dimension"):
        infer(helper.make_node("MatMul", ["x", "x"], ["y"]), [(2, 3), (2, 3)])
    assert sound()


def test_no_process_is_left_behind_by_crashes() -> None:
    sound()
    before = children()
    for _ in range(3):
        with pytest.raises(ModelRejected):
            crash()
    assert len(children()) <= len(before)


def test_a_worker_that_was_killed_while_idle_is_replaced() -> None:
    sound()
    for worker in list(native._IDLE.workers):
        os.kill(worker._process.pid, signal.SIGKILL)
        while worker._process.poll() is None:
            time.sleep(0.01)
    assert sound()


def test_equal_calls_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    ask = WorkerProcess.ask
    monkeypatch.setattr(WorkerProcess, "ask", lambda self, t, s: asked.append(t[0]) or ask(self, t, s))
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { %s }'
    chain = " ".join(f"v{i} = Relu(v{i - 1})" for i in range(1, 50)).replace("v0", "x").replace("v49", "y")
    load_onnx(parse_model(text % chain))
    assert asked.count(b"infer_outputs") == 1


def test_threads_import_side_by_side() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Softmax(x) }'
    )
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(str(load_onnx(model).outputs))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert len(set(results)) == 1
    assert len(native._IDLE.workers) <= 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_workers_of_its_own() -> None:
    sound()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: [sound() for _ in range(20)])
    child.start()
    for _ in range(20):
        assert sound()
    child.join(60)
    assert child.exitcode == 0


def test_without_another_process_the_calls_are_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    native._end_idle()
    monkeypatch.setattr(native._IDLE, "num_kept", 1)
    monkeypatch.setattr(sys, "executable", "")
    before = children()
    assert sound()
    with pytest.raises(native.NativeError):
        infer(helper.make_node("MatMul", ["x", "x"], ["y"]), [(2, 3), (2, 3)])
    assert children() <= before


def test_a_program_that_ends_leaves_no_worker_and_says_nothing() -> None:
    program = (
        "import atexit, os\n"
        "from tests.unit.frontend.onnx import test_native as t\n"
        "atexit.register(t.sound)\n"  # runs before the worker is ended
        "t.sound(); print(t.native._IDLE.workers[0]._process.pid)\n"
    )
    command = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert not Path(f"/proc/{int(done.stdout)}").exists()


def test_ctrl_c_ends_a_call_and_its_worker() -> None:
    program = (
        "import signal, sys, threading, os, time\n"
        "from tests.unit.frontend.onnx import test_native as t\n"
        "t.sound()\n"
        "threading.Timer(0.5, lambda: os.killpg(0, signal.SIGINT)).start()\n"
        "try: t.endless()\n"
        "except KeyboardInterrupt: print('stopped', t.children(), bool(t.sound()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )
    assert done.stdout.split() == ["stopped", "set()", "True"]
    assert done.stderr == ""
