"""Texts to objects to addresses."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.errors import InternalError
from tilewright.system.worker_process import WorkerProcess
from tilewright.targets.cpu.isa import host_isa, isa_by_name
from tilewright.targets.llvm import codegen
from tilewright.targets.llvm.cache import ObjectCache
from tilewright.targets.llvm.codegen import (
    CodeTarget,
    CompileJob,
    JitLibrary,
    compile_object,
    compile_objects,
    emit_assembly,
    object_key,
)

UNARY = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)
BINARY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)


def adder(name: str = "add", constant: int = 0) -> str:
    return f"""
define i32 @{name}(i32 %a, i32 %b) {{
  %c = add i32 %a, %b
  %d = add i32 %c, {constant}
  ret i32 %d
}}
"""


def unary(function: str) -> str:
    return f"""
declare float @{function}(float)
define float @call_{function}(float %x) {{
  %y = call float @{function}(float %x)
  ret float %y
}}
"""


SUM_LOOP = """
define float @total(ptr %x, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %acc = phi float [0.0, %entry], [%acc1, %loop]
  %at = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %at
  %acc1 = fadd reassoc float %acc, %v
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %loop, label %exit
exit:
  ret float %acc1
}
"""


def test_a_compiled_function_computes() -> None:
    library = JitLibrary([compile_object(adder(constant=5), host_isa())], ["add"])
    assert BINARY(library["add"])(20, 3) == 28


@pytest.mark.parametrize(
    ("name", "reference"), [("expf", math.exp), ("tanhf", math.tanh), ("erff", math.erf)]
)
def test_libm_functions_resolve(name: str, reference: object) -> None:
    library = JitLibrary([compile_object(unary(name), host_isa())], [f"call_{name}"])
    assert callable(reference)
    assert UNARY(library[f"call_{name}"])(0.5) == pytest.approx(reference(0.5), rel=1e-6)


def test_objects_of_one_library_and_imports_link_to_each_other() -> None:
    outer = """
declare i32 @inner(i32, i32)
declare i32 @imported(i32, i32)
define i32 @outer(i32 %a, i32 %b) {
  %c = call i32 @inner(i32 %a, i32 %b)
  %d = call i32 @imported(i32 %c, i32 %b)
  ret i32 %d
}
"""
    product = BINARY(lambda a, b: a * b)
    address = ctypes.cast(product, ctypes.c_void_p).value
    assert address
    isa = host_isa()
    library = JitLibrary(
        [compile_object(outer, isa), compile_object(adder("inner"), isa)],
        ["outer"],
        imports={"imported": address},
    )
    assert BINARY(library["outer"])(3, 4) == (3 + 4) * 4


def test_undefined_and_duplicate_symbols_are_errors_and_not_crashes() -> None:
    isa = host_isa()
    missing = compile_object(unary("tw_no_such_function"), isa)
    with pytest.raises(InternalError, match="tw_no_such_function"):
        JitLibrary([missing], ["call_tw_no_such_function"])
    twice = [compile_object(adder("same", k), isa) for k in (1, 2)]
    with pytest.raises(InternalError, match="same"):
        JitLibrary(twice, ["same"])
    with pytest.raises(InternalError, match="'absent' is not exported"):
        JitLibrary([twice[0]], ["same"])["absent"]


@pytest.mark.parametrize(
    "text",
    [
        "this is not IR",
        "define void @f() {\n  ret i32 0\n}",
        "define i32 @f(i32 %a) {\n  %b = add i32 %c, 1\n  %c = add i32 %a, 1\n  ret i32 %b\n}",
    ],
)
def test_invalid_text_is_one_line(text: str) -> None:
    with pytest.raises(InternalError, match=r"^Generated IR is invalid: [^\n]+$"):
        compile_object(text, host_isa())


def test_equal_texts_give_equal_bytes() -> None:
    first, second = (compile_object(SUM_LOOP, host_isa(), optimize=True) for _ in range(2))
    assert first == second


def test_no_pass_runs_unless_asked_and_the_vectoriser_does_if_asked() -> None:
    if host_isa().arch != "x86_64":
        pytest.skip("reads x86 assembly")
    plain = emit_assembly(SUM_LOOP, host_isa())
    optimized = emit_assembly(SUM_LOOP, host_isa(), optimize=True)
    assert "vaddps" not in plain
    assert "addss" in plain
    assert "vaddps" in optimized


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_every_instruction_set_gets_its_own_object(name: str) -> None:
    machines = {"avx512": 62, "avx2": 62, "neon": 183}  # e_machine of the ELF header
    image = compile_object(adder(), isa_by_name(name))
    assert image[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", image, 18) == (machines[name],)


def test_a_key_changes_with_everything_that_decides_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    job, isa = CompileJob(adder()), isa_by_name("avx2")
    key = object_key(job, isa)
    others = [
        object_key(CompileJob(adder(constant=1)), isa),
        object_key(replace(job, optimize=True), isa),
        object_key(job, isa_by_name("avx512")),
        object_key(job, replace(isa, features="+avx")),
    ]
    monkeypatch.setattr(codegen, "toolchain_version", lambda: "llvmlite-99/llvm-1")
    others.append(object_key(job, isa))
    assert len({key, *others}) == len(others) + 1


def test_a_cached_object_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isa, cache = host_isa(), ObjectCache(tmp_path)
    jobs = [CompileJob(adder("a")), CompileJob(adder("b")), CompileJob(adder("a"))]
    cold = compile_objects(jobs, isa, cache=cache)
    assert cold[0] == cold[2] != cold[1]
    assert len(cache.entries()) == 2

    def never(*_: object, **__: object) -> bytes:
        raise AssertionError("compiled although cached")

    monkeypatch.setattr(codegen, "compile_object", never)
    assert compile_objects(jobs, isa, cache=cache) == cold


def test_an_interrupt_keeps_the_objects_that_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isa, cache = host_isa(), ObjectCache(tmp_path)
    original = codegen.compile_object

    def interrupted(text: str, isa: codegen.CodeTarget, *, optimize: bool) -> bytes:
        if "@c(" in text:
            raise KeyboardInterrupt
        return original(text, isa, optimize=optimize)

    monkeypatch.setattr(codegen, "compile_object", interrupted)
    jobs = [CompileJob(adder(name)) for name in "abcd"]
    with pytest.raises(KeyboardInterrupt):
        compile_objects(jobs, isa, cache=cache)
    assert {entry.key for entry in cache.entries()} == {object_key(job, isa) for job in jobs[:2]}


def test_equal_jobs_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def record(text: str, isa: object, *, optimize: bool) -> bytes:
        compiled.append(text)
        return text.encode()

    monkeypatch.setattr(codegen, "compile_object", record)
    jobs = [CompileJob(text) for text in ("x", "y", "x", "x")]
    assert compile_objects(jobs, host_isa()) == [b"x", b"y", b"x", b"x"]
    assert compiled == ["x", "y"]


def test_helper_processes_give_the_same_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = host_isa()
    jobs = [CompileJob(adder(f"f{i}", i), optimize=i % 2 == 0) for i in range(12)]
    alone = compile_objects(jobs, isa)
    monkeypatch.setattr(codegen, "PARALLEL_THRESHOLD_S", 1e-9)
    # This process must not be quicker than the helper's start, or the helper would have nothing to do.
    helped: list[CompileJob] = []
    original = codegen._compiled_by

    def record(helper: WorkerProcess, job: CompileJob, isa: CodeTarget) -> bytes | None:
        helped.append(job)
        return original(helper, job, isa)

    monkeypatch.setattr(codegen, "_compiled_by", record)
    monkeypatch.setattr(codegen, "_drain", lambda *arguments: None)
    assert compile_objects(jobs, isa, num_processes=3) == alone
    assert len(helped) == len(jobs)


def test_a_helper_that_dies_costs_time_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    isa = host_isa()
    jobs = [CompileJob(adder(f"f{i}")) for i in range(4)]
    alone = compile_objects(jobs, isa)
    monkeypatch.setattr(codegen, "PARALLEL_THRESHOLD_S", 1e-9)
    dying = tmp_path / "python"
    dying.symlink_to("/bin/false")
    monkeypatch.setattr(sys, "executable", str(dying))
    assert compile_objects(jobs, isa, num_processes=2) == alone
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert compile_objects(jobs, isa, num_processes=2) == alone


def test_invalid_text_among_many_names_its_complaint_with_helpers_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codegen, "PARALLEL_THRESHOLD_S", 1e-9)
    jobs = [CompileJob(adder()), CompileJob("nonsense"), CompileJob(adder("g"))]
    with pytest.raises(InternalError, match="Generated IR is invalid"):
        compile_objects(jobs, host_isa(), num_processes=2)


def test_a_helper_answers_every_request() -> None:
    isa = host_isa()
    facts = {"triple": isa.triple, "cpu": isa.cpu, "features": isa.features, "fingerprint": ""}
    order = json.dumps({"target": facts, "optimize": False}).encode()
    assert codegen.answer([order, adder().encode()]) == [compile_object(adder(), isa)]
    assert codegen.answer([order, b"nonsense"]) == [b""]


NESTED_LOOPS = """
define i64 @table(ptr %out, i64 %rows, i64 %columns) {
entry:
  br label %outer
outer:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %total = phi i64 [0, %entry], [%sum1, %next]
  %row = mul i64 %i, %columns
  br label %inner
inner:
  %j = phi i64 [0, %outer], [%j1, %inner]
  %sum = phi i64 [%total, %outer], [%sum1, %inner]
  %index = add i64 %row, %j
  %at = getelementptr i64, ptr %out, i64 %index
  store i64 %index, ptr %at
  %sum1 = add i64 %sum, %index
  %j1 = add i64 %j, 1
  %more = icmp ult i64 %j1, %columns
  br i1 %more, label %inner, label %next
next:
  %i1 = add i64 %i, 1
  %again = icmp ult i64 %i1, %rows
  br i1 %again, label %outer, label %exit
exit:
  ret i64 %sum1
}
"""


def test_outer_counters_are_frozen_inner_ones_are_not_and_values_stay() -> None:
    hidden = codegen.hide_outer_counters(NESTED_LOOPS)
    frozen = [line.split()[0] for line in hidden.splitlines() if " = freeze " in line]
    assert frozen == ["%i", "%total"]
    library = JitLibrary([compile_object(NESTED_LOOPS, host_isa())], ["table"])
    table = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        library["table"]
    )
    out = (ctypes.c_int64 * 20)()
    assert table(ctypes.addressof(out), 4, 5) == sum(range(20))
    assert list(out) == list(range(20))


def test_numbered_values_keep_their_numbers() -> None:
    """LLVM requires `%0, %1, ...` in order of definition: nothing may be put between them."""
    text = "define i64 @f(i1 %c) {\nentry:\n  br label %a\na:\n  %0 = phi i64 [1, %entry]\n  ret i64 %0\n}\n"
    assert codegen.hide_outer_counters(text) == text
    compile_object(text, host_isa())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's memory counters")
def test_closed_libraries_return_their_memory() -> None:
    image = compile_object(adder(), host_isa())

    def load(number: int) -> None:
        for _ in range(number):
            JitLibrary([image], ["add"]).close()
        gc.collect()

    load(50)
    before = resident_bytes()
    load(200)
    assert resident_bytes() - before < 1 << 20


def test_a_closed_library_gives_no_addresses() -> None:
    library = JitLibrary([compile_object(adder(), host_isa())], ["add"])
    library.close()
    library.close()
    with pytest.raises(InternalError, match="closed"):
        library["add"]
