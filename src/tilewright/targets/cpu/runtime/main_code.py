"""A model as one generated `main`: steps over bases, as text and as loaded code.

A main is a list of steps over *bases*: addresses given at run time (activation arena, weights, each input,
each output). Step arguments are `ArgRef`s, an offset from a base; whoever runs it resolves them into argument
blocks once per set of bases, so that a main is nothing but calls. Base 0 is the activation arena, which each
concurrent run has for itself. Nothing here knows of graphs or operators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import InternalError
from tilewright.records import dataclass
from tilewright.targets.cpu.runtime.pool import runtime_code
from tilewright.targets.cpu.runtime.pool_ir import MAX_CHUNKS, TICK_COUNTER
from tilewright.targets.cpu.runtime.stage_ir import STAGE_EXPORT, UNLIMITED, stage_table
from tilewright.targets.llvm.codegen import CodeTarget, CompileJob, JitLibrary, compile_objects

if TYPE_CHECKING:
    from tilewright.targets.llvm.cache import ObjectCache

ARENA_BASE = 0
"""Index of the base that the executor provides: the activation arena of the run."""
WEIGHTS_BASE = 1
FIRST_CALLER_BASE = 2
"""Of the model's inputs, and behind them its outputs."""
SLOT_BYTES = 64
"""Of what a traced chunk notes: ticks at its start and end, and its thread's scratch, which tells the thread.
A cache line, so that threads do not disturb each other."""


class ArgRef(NamedTuple):
    """One kernel argument: `byte_offset` from the address of base `base_index`."""

    base_index: int
    byte_offset: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """All chunks of one kernel. `inline` keeps them on the calling thread: for work too small to share.

    `work` are estimated cycles of all of it on one core.
    """

    symbol: str
    num_chunks: int
    args: tuple[ArgRef, ...]
    inline: bool = False
    work: float = 1.0

    def __post_init__(self) -> None:
        _check_chunks(self.symbol, self.num_chunks)


@dataclass(frozen=True, slots=True)
class LaunchGroup:
    """Launches one after another, each begun when the one before has ended, by `max_threads` at a time."""

    launches: tuple[Launch, ...]
    max_threads: int | None = None

    def __post_init__(self) -> None:
        if not self.launches:
            raise InternalError("A group needs at least one launch.")
        if self.max_threads is not None and not 1 <= self.max_threads <= UNLIMITED:
            raise InternalError(f"A group on {self.max_threads} threads cannot run.")


@dataclass(frozen=True, slots=True)
class Stage:
    """Groups that do not depend on each other and progress independently: see `stage_ir`."""

    groups: tuple[LaunchGroup, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise InternalError("A stage needs at least one group.")

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Of all groups, group by group."""
        return tuple(launch for group in self.groups for launch in group.launches)


@dataclass(frozen=True, slots=True)
class HostCall:
    """A step that runs in Python, between two pieces of generated code."""

    callback_index: int


MainStep = Launch | Stage | HostCall


@dataclass(frozen=True, slots=True)
class TracedLaunch:
    """A launch each of whose chunks has a slot: which step it is of, and which of that step's launches."""

    step_index: int
    launch_index: int
    num_chunks: int


@dataclass(frozen=True, slots=True)
class MainCode:
    """The generated main: one function per run of steps without a host call between them.

    Slots of `traced` launches follow each other in one buffer, whose base comes behind the `num_bases` that
    there are without it.
    """

    ir_text: str
    segments: tuple[str | HostCall, ...]  # function symbols and host calls, in order
    kernel_symbols: tuple[str, ...]
    arg_table: tuple[ArgRef, ...]
    num_bases: int
    num_steps: int
    profile: bool
    traced: tuple[TracedLaunch, ...] = ()

    @property
    def num_slots(self) -> int:
        """Chunks that note when and where they run."""
        return sum(launch.num_chunks for launch in self.traced)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Functions that this main defines."""
        return tuple(segment for segment in self.segments if isinstance(segment, str))

    @property
    def num_callbacks(self) -> int:
        """Callbacks an executor must be given."""
        calls = [segment.callback_index for segment in self.segments if isinstance(segment, HostCall)]
        return 1 + max(calls, default=-1)


def build_main(
    steps: Sequence[MainStep], isa: CodeTarget, *, profile: bool = False, trace: bool = False
) -> MainCode:
    """Generate the main of `steps`. With `profile`, each step also stores a time stamp before and after; with
    `trace`, which needs `profile`, each chunk notes when and on which thread it runs.

    Segments have the signature `void (ptr pool, ptr args, ptr scratch, ptr stamps)`; their names derive from
    the text, so equal mains are equal objects in the cache.
    """
    if trace and not profile:
        raise InternalError("A trace needs the time stamps of steps: build the main with profile=True.")
    refs = (ref for step in steps for launch in _launches(step) for ref in launch.args)
    num_bases = 1 + max((ref.base_index for ref in refs), default=ARENA_BASE)
    writer = _MainWriter(num_bases, profile=profile, trace=trace)
    for index, step in enumerate(steps):
        writer.add(index, step)
    return writer.finish(num_steps=len(steps))


class _MainWriter:
    """The text of a main under construction. Equal argument lists share one block."""

    def __init__(self, num_bases: int, *, profile: bool, trace: bool) -> None:
        self._stamps = profile
        self._num_bases = num_bases
        self._traces = trace
        self._traced: list[TracedLaunch] = []
        self._num_slots = 0
        self._noting: dict[str, str] = {}
        self._args: list[ArgRef] = []
        self._block_at: dict[tuple[ArgRef, ...], int] = {}
        self._kernels: dict[str, None] = {}
        self._stage_functions: list[str] = []
        self._segments: list[list[str] | HostCall] = []
        self._lines: list[str] = []
        self._num_values = 0

    def add(self, index: int, step: MainStep) -> None:
        """Append one step."""
        if isinstance(step, HostCall):
            self._end_segment()
            self._segments.append(step)
            return
        self._stamp(2 * index)
        called = [self._called(index, number, launch) for number, launch in enumerate(_launches(step))]
        if isinstance(step, Stage):
            function, table = self._stage_function(called), self._stage_table(step)
            operands = f"ptr %pool, ptr @{function}, ptr @{table}, ptr %args, ptr %scratch"
            self._lines.append(f"  call void @{STAGE_EXPORT}({operands})")
        else:
            ((function, args),) = called
            block = self._block(args)
            if step.num_chunks == 1:
                self._lines.append(f"  call void @{function}(ptr {block}, i64 0, ptr %scratch)")
            else:
                pool = "null" if step.inline else "%pool"
                self._lines.append(_call(f"@{function}", block, step.num_chunks, pool))
        self._stamp(2 * index + 1)

    def _called(self, step_index: int, launch_index: int, launch: Launch) -> tuple[str, tuple[ArgRef, ...]]:
        """What runs a chunk of a launch, and its arguments: the kernel, or what notes when the kernel runs.

        The latter finds the slots of its launch behind the kernel's arguments.
        """
        self._kernels[launch.symbol] = None
        if not self._traces:
            return launch.symbol, launch.args
        slots = ArgRef(self._num_bases, SLOT_BYTES * self._num_slots)
        self._traced.append(TracedLaunch(step_index, launch_index, launch.num_chunks))
        self._num_slots += launch.num_chunks
        name = f"noting_{len(launch.args)}_{launch.symbol}"
        self._noting[name] = _noting_function(name, launch.symbol, len(launch.args))
        return name, (*launch.args, slots)

    def finish(self, num_steps: int) -> MainCode:
        """The whole main."""
        self._end_segment()
        head = [
            *(f"declare void @{kernel}(ptr, i64, ptr)" for kernel in self._kernels),
            "declare void @tw_parallel_for(ptr, ptr, ptr, i64, ptr)",
            *([f"declare void @{STAGE_EXPORT}({', '.join(['ptr'] * 5)})"] if self._stage_functions else []),
            *([f"declare i64 @{TICK_COUNTER}()"] if self._stamps else []),
            *self._noting.values(),
            *self._stage_functions,
        ]
        bodies = [part for part in self._segments if not isinstance(part, HostCall)]
        digest = hashlib.sha256("\n".join((*head, *map("\n".join, bodies))).encode()).hexdigest()[:16]
        segments: list[str | HostCall] = []
        functions: list[str] = []
        for part in self._segments:
            if isinstance(part, HostCall):
                segments.append(part)
                continue
            name = f"main_{digest}_{len(functions)}"
            signature = f"define void @{name}(ptr %pool, ptr %args, ptr %scratch, ptr %stamps) nounwind {{"
            functions.append("\n".join((signature, *part, "  ret void", "}")))
            segments.append(name)
        return MainCode(
            ir_text="\n".join((*head, *functions)) + "\n",
            segments=tuple(segments),
            kernel_symbols=tuple(self._kernels),
            arg_table=tuple(self._args),
            num_bases=self._num_bases,
            num_steps=num_steps,
            profile=self._stamps,
            traced=tuple(self._traced),
        )

    def _stage_function(self, called: Sequence[tuple[str, tuple[ArgRef, ...]]]) -> str:
        """A function that runs a chunk of one of a stage's launches, which are numbered group by group."""
        name = f"stage_{len(self._stage_functions)}"
        cases = " ".join(f"i64 {number}, label %run{number}" for number in range(1, len(called)))
        lines = [
            f"define internal void @{name}(ptr %args, i64 %launch, i64 %chunk, ptr %scratch) nounwind {{",
            f"  switch i64 %launch, label %run0 [ {cases} ]",
        ]
        for number, (function, args) in enumerate(called):
            lines += [
                f"run{number}:",
                f"  %block{number} = getelementptr i8, ptr %args, i64 {self._block_offset(args)}",
                f"  call void @{function}(ptr %block{number}, i64 %chunk, ptr %scratch)",
                "  ret void",
            ]
        self._stage_functions.append("\n".join((*lines, "}")))
        return name

    def _stage_table(self, stage: Stage) -> str:
        """The constants that describe a stage."""
        words = stage_table(
            [
                ([(x.num_chunks, x.work / x.num_chunks) for x in group.launches], group.max_threads)
                for group in stage.groups
            ]
        )
        name = f"groups_{len(self._stage_functions)}"
        listed = ", ".join(f"i32 {word}" for word in words)
        self._stage_functions.append(f"@{name} = internal constant [{len(words)} x i32] [{listed}], align 64")
        return name

    def _block(self, args: tuple[ArgRef, ...]) -> str:
        return self._value(f"getelementptr i8, ptr %args, i64 {self._block_offset(args)}")

    def _block_offset(self, args: tuple[ArgRef, ...]) -> int:
        """Byte offset of the argument block of `args`."""
        if args not in self._block_at:
            self._block_at[args] = 8 * len(self._args)
            self._args += args
        return self._block_at[args]

    def _stamp(self, slot: int) -> None:
        if not self._stamps:
            return
        ticks = self._value(f"call i64 @{TICK_COUNTER}()")
        address = self._value(f"getelementptr i64, ptr %stamps, i64 {slot}")
        self._lines.append(f"  store i64 {ticks}, ptr {address}, align 8")

    def _value(self, operation: str) -> str:
        self._num_values += 1
        name = f"%v{self._num_values}"
        self._lines.append(f"  {name} = {operation}")
        return name

    def _end_segment(self) -> None:
        if self._lines:
            self._segments.append(self._lines)
            self._lines = []


def link_main(
    main: MainCode, kernel_objects: Sequence[bytes], isa: CodeTarget, *, cache: ObjectCache | None = None
) -> JitLibrary:
    """Compile a main (or read it from `cache`) and load it together with its kernels' objects."""
    objects = [*kernel_objects, *compile_objects([CompileJob(main.ir_text)], isa, cache=cache)]
    return load_main(main, objects, cache=cache)


def load_main(
    main: MainCode,
    objects: Sequence[bytes],
    *,
    cache: ObjectCache | None = None,
    runtime_object: bytes | None = None,
) -> JitLibrary:
    """Load a compiled main together with its kernels, all of them among `objects`.

    `runtime_object` is the runtime's code, for a process that has not compiled it yet.
    """
    runtime = runtime_code(cache=cache, compiled=runtime_object)
    return JitLibrary(objects, main.symbols, imports=runtime.imports, keep_alive=(runtime.library,))


def _launches(step: MainStep) -> tuple[Launch, ...]:
    """What a step launches, in the order of its numbers."""
    if isinstance(step, Stage):
        return step.launches
    return (step,) if isinstance(step, Launch) else ()


def _noting_function(name: str, kernel: str, num_args: int) -> str:
    """A function that runs a chunk of a kernel and notes it in the chunk's slot."""
    return "\n".join(
        (
            f"define internal void @{name}(ptr %args, i64 %chunk, ptr %scratch) nounwind {{",
            f"  %start = call i64 @{TICK_COUNTER}()",
            f"  call void @{kernel}(ptr %args, i64 %chunk, ptr %scratch)",
            f"  %end = call i64 @{TICK_COUNTER}()",
            f"  %slots_at = getelementptr ptr, ptr %args, i64 {num_args}",
            "  %slots = load ptr, ptr %slots_at, align 8",
            f"  %slot = getelementptr [{SLOT_BYTES // 8} x i64], ptr %slots, i64 %chunk",
            "  %end_at = getelementptr i64, ptr %slot, i64 1",
            "  %thread_at = getelementptr i64, ptr %slot, i64 2",
            "  store i64 %start, ptr %slot, align 8",
            "  store i64 %end, ptr %end_at, align 8",
            "  store ptr %scratch, ptr %thread_at, align 8",
            "  ret void",
            "}",
        )
    )


def _check_chunks(what: str, num_chunks: int) -> None:
    if not 1 <= num_chunks <= MAX_CHUNKS:
        raise InternalError(
            f"{what}: {num_chunks} chunks in one region; between 1 and {MAX_CHUNKS} are possible."
        )


def _call(function: str, args: str, num_chunks: int, pool: str) -> str:
    passed = f"ptr {pool}, ptr {function}, ptr {args}, i64 {num_chunks}, ptr %scratch"
    return f"  call void @tw_parallel_for({passed})"
