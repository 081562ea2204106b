"""One object file of a model: its kernels, its main and the function that C calls, linked as LLVM modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.embed.marks import OBJECT_MARK
from tilewright.errors import InternalError
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import REPORT_BYTES, Kernel
from tilewright.targets.cpu.runtime.main_code import FIRST_CALLER_BASE, MainCode
from tilewright.targets.cpu.runtime.stage_ir import (
    GROUP_WORDS,
    HEAD_WORDS,
    LAUNCH_WORDS,
    NUM_LAUNCHES_WORD,
    STAGE_EXPORT,
)
from tilewright.targets.llvm.codegen import prepared_module
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import I64, PTR, Int, Type, Val, vec

ALIGNMENT_BYTES = 64
# What the function returns.
OK, UNALIGNED, MISSING, BAD_INDEX = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Copy:
    """An output that no kernel computes: `size_bytes` from an input, or from the weights at an offset."""

    output: int
    size_bytes: int
    input: int | None = None
    weights_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """What lies where in the memory that the caller gives: activations, the reports of `num_checks` checks of
    indices, kernels' scratch, argument blocks."""

    arena_bytes: int
    num_checks: int
    scratch_bytes: int
    args_bytes: int

    @property
    def reports_offset(self) -> int:
        """Start of the reports."""
        return self.arena_bytes

    @property
    def num_report_words(self) -> int:
        """Words of 64 bits that are not zero where an index lies outside its axis."""
        return self.num_checks * REPORT_BYTES // 8

    @property
    def scratch_offset(self) -> int:
        """Start of the kernels' scratch."""
        return _rounded(self.reports_offset + 8 * self.num_report_words)

    @property
    def args_offset(self) -> int:
        """Start of the argument blocks."""
        return self.scratch_offset + _rounded(self.scratch_bytes)

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return self.args_offset + _rounded(self.args_bytes)


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def run_text(
    function: str,
    main: MainCode,
    workspace: Workspace,
    num_inputs: int,
    num_outputs: int,
    copies: Sequence[Copy],
    isa: Isa,
) -> str:
    """IR of `int function(weights, workspace, inputs, outputs)` and of the serial loop behind regions."""
    e = Emitter(attributes=isa.function_attributes)
    _serial_for(e)
    if STAGE_EXPORT in main.ir_text:
        _serial_stage(e)
    i32 = vec("i32")
    params = [Param(name, PTR) for name in ("weights", "workspace", "inputs", "outputs")]
    with e.function(function, params, result=i32) as (weights, area, inputs, outputs):
        callers = [e.load(PTR, e.gep(inputs, 8 * i)) for i in range(num_inputs)]
        callers += [e.load(PTR, e.gep(outputs, 8 * i)) for i in range(num_outputs)]
        missing = _any_null(e, callers)
        unaligned = _any_unaligned(e, (weights, area))
        wrong = e.select(
            unaligned, e.constant(i32, UNALIGNED), e.select(missing, e.constant(i32, MISSING), OK)
        )

        def run() -> list[Val]:
            bases = e.alloca(PTR, FIRST_CALLER_BASE + len(callers))
            for number, base in enumerate((area, weights, *callers)):
                e.store(base, e.gep(bases, 8 * number))
            args = e.gep(area, workspace.args_offset)
            _resolve(e, main, bases, args)
            scratch = e.gep(area, workspace.scratch_offset)
            null = Val("null", PTR)
            reports = [
                e.gep(area, workspace.reports_offset + 8 * i) for i in range(workspace.num_report_words)
            ]
            for report in reports:
                e.store(e.constant(I64, 0), report)
            for symbol in main.symbols:
                e.call(symbol, (null, args, scratch, null))
            for copy in copies:
                target = callers[num_inputs + copy.output]
                source = (
                    e.gep(weights, copy.weights_offset or 0) if copy.input is None else callers[copy.input]
                )
                e.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
                operands = f"ptr {target}, ptr {source}, i64 {copy.size_bytes}, i1 false"
                e.line(f"call void @llvm.memcpy.p0.p0.i64({operands})")

            reported = e.constant(I64, 0)
            for report in reports:
                reported = e.op(f"or i64 {reported}, {e.load(I64, report)}", I64)
            return [e.select(e.icmp("ne", reported, 0), e.constant(i32, BAD_INDEX), OK)]

        (status,) = e.if_(e.icmp("eq", wrong, 0), run, lambda: [wrong], [i32])
        e.ret(status)
    return f'{e.text()}\n!llvm.ident = !{{!0}}\n!0 = !{{!"{OBJECT_MARK}"}}\n'


def _serial_for(e: Emitter) -> None:
    """The region of a machine with one thread: chunk after chunk."""
    params = (
        Param("pool", PTR),
        Param("kernel", PTR),
        Param("args", PTR),
        Param("chunks", I64),
        Param("scratch", PTR),
    )
    with e.function("tw_parallel_for", params) as (_, kernel, args, chunks, scratch):

        def chunk(number: Int, _: Sequence[Val]) -> None:
            e.line(f"call void {kernel}(ptr {args}, i64 {number}, ptr {scratch})")

        e.loop(0, chunks, 1, chunk)


def _serial_stage(e: Emitter) -> None:
    """The stage of a machine with one thread: group after group, launch after launch."""
    params = [Param(name, PTR) for name in ("pool", "run", "table", "args", "scratch")]
    with e.function(STAGE_EXPORT, params) as (_, run, table, args, scratch):

        def word(position: Int) -> Val:
            return e.op(f"zext i32 {e.load(vec('i32'), e.gep(table, e.mul(position, 4)))} to i64", I64)

        chunks_from = e.add(e.mul(word(0), GROUP_WORDS), HEAD_WORDS)

        def launch(number: Int, _: Sequence[Val]) -> None:
            def chunk(index: Int, _: Sequence[Val]) -> None:
                e.line(f"call void {run}(ptr {args}, i64 {number}, i64 {index}, ptr {scratch})")

            e.loop(0, word(e.add(chunks_from, e.mul(number, LAUNCH_WORDS))), 1, chunk)

        e.loop(0, word(NUM_LAUNCHES_WORD), 1, launch)


def _resolve(e: Emitter, main: MainCode, bases: Val, args: Val) -> None:
    """Write the argument blocks: each an offset from a base."""
    if not main.arg_table:
        return
    numbers = e.constant_array("i64", [8 * ref.base_index for ref in main.arg_table])
    offsets = e.constant_array("i64", [ref.byte_offset for ref in main.arg_table])

    def one(number: Int, _: Sequence[Val]) -> None:
        at = e.mul(number, 8)
        base = e.load(PTR, e.gep(bases, e.load(I64, e.gep(numbers, at))))
        e.store(e.gep(base, e.load(I64, e.gep(offsets, at))), e.gep(args, at))

    e.loop(0, len(main.arg_table), 1, one)


def _any_null(e: Emitter, pointers: Sequence[Val]) -> Val:
    is_null = e.constant(vec("i1"), 0)
    for pointer in pointers:
        is_null = e.op(f"or i1 {is_null}, {e.op(f'icmp eq ptr {pointer}, null', vec('i1'))}", vec("i1"))
    return is_null


def _any_unaligned(e: Emitter, pointers: Sequence[Val]) -> Val:
    """Whether a pointer is null or no multiple of the alignment."""
    flag: Type = vec("i1")
    is_unaligned = _any_null(e, pointers)
    for pointer in pointers:
        address = e.op(f"ptrtoint ptr {pointer} to i64", I64)
        rest = e.op(f"and i64 {address}, {ALIGNMENT_BYTES - 1}", I64)
        is_unaligned = e.op(f"or i1 {is_unaligned}, {e.op(f'icmp ne i64 {rest}, 0', flag)}", flag)
    return is_unaligned


def link_object(run: str, function: str, main: MainCode, kernels: Sequence[Kernel], isa: Isa) -> bytes:
    """The object file: everything but `function` is private to it.

    Raises:
        InternalError: the parts do not fit together.
    """
    machine, whole = prepared_module(run, isa)
    try:
        for text, optimize in _texts(main, kernels):
            _, part = prepared_module(text, isa, optimize=optimize)
            whole.link_in(part)
        for defined in whole.functions:
            if not defined.is_declaration and defined.name != function:
                defined.linkage = "internal"
        whole.verify()
        return bytes(machine.emit_object(whole))
    except RuntimeError as error:
        raise InternalError(f"the parts of the object do not link: {' '.join(str(error).split())}") from error
    finally:
        whole.close()


def _texts(main: MainCode, kernels: Sequence[Kernel]) -> Iterator[tuple[str, bool]]:
    yield main.ir_text, False
    for kernel in kernels:
        yield kernel.text, kernel.needs_optimizer
