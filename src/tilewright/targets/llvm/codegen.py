"""LLVM IR text to machine code, and machine code into this process.

Kernels arrive as texts that the generator has already vectorised and unrolled, so no LLVM pass runs on them
(measured: O1 to O3 change their speed by less than 1 % and double the compile time). Scalar fallback loops
ask for `optimize=True`. Distinct kernels are distinct modules: objects are cached by content, and large
batches are compiled by helper processes, because llvmlite serialises every call of one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import logging
import queue
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import llvmlite
import llvmlite.binding as llvm

from tilewright.errors import InternalError, NoGeneratedCode, UsageError
from tilewright.hardware.probe import may_run_generated_code
from tilewright.records import dataclass
from tilewright.system.forks import let_forks_pass, process_is_whole
from tilewright.system.worker_process import NoWorker, WorkerDied, WorkerProcess, module_command, serve_texts

if TYPE_CHECKING:
    from tilewright.targets.llvm.cache import ObjectCache

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
"""Part of every key: raise it when the same text must no longer give the same object."""

PARALLEL_THRESHOLD_S = 0.5
"""Estimated compile time per process that pays for its start (measured: 0.17 s until the first object)."""

Progress = Callable[[int, int], None]  # objects done, objects to do

_PROGRESS_INTERVAL_S = 0.1
_HELPER_START_S = 60.0
_HELPER_JOB_S = 3600.0
"""A helper that takes longer hangs; the largest modules take seconds."""
_SECONDS_PER_LINE = 28e-6
_OPTIMIZE_FACTOR = 2.5
_LABEL = re.compile(r"([A-Za-z_$][\w.$]*):")
_COUNTER = re.compile(r"\s+(%[A-Za-z_$][\w.$]*) = (?=phi i64 )")
_LIBM_NAMES = ("libm.so.6", "libm.so", "libSystem.dylib", "ucrtbase.dll")


class CodeTarget(Protocol):
    """What code generation needs of an instruction set: the `Isa` record of `isa.py` has it."""

    @property
    def triple(self) -> str: ...  # noqa: D102

    @property
    def cpu(self) -> str: ...  # noqa: D102

    @property
    def features(self) -> str: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One module to compile. `optimize` runs LLVM's O2 pipeline with both vectorisers."""

    ir_text: str
    optimize: bool = False

    @property
    def estimated_s(self) -> float:
        """Expected compile time, from the number of lines (measured rate, one core)."""
        factor = _OPTIMIZE_FACTOR if self.optimize else 1.0
        return factor * _SECONDS_PER_LINE * (self.ir_text.count("\n") + 1)


@functools.cache
def toolchain_version() -> str:
    """The versions that decide what a text compiles to."""
    return f"llvmlite-{llvmlite.__version__}/llvm-{'.'.join(map(str, llvm.llvm_version_info))}"


def object_key(job: CompileJob, isa: CodeTarget) -> str:
    """The cache key of an object: SHA-256 of everything that decides its bytes."""
    parts = (str(FORMAT_VERSION), toolchain_version(), isa.fingerprint, str(int(job.optimize)), job.ir_text)
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def compile_object(ir_text: str, isa: CodeTarget, *, optimize: bool = False) -> bytes:
    """Parse, verify and compile one module to a relocatable object for `isa` (of any LLVM target).

    Raises:
        InternalError: the text is not valid IR; names the complaint of LLVM's parser or verifier.
    """
    machine, module = prepared_module(ir_text, isa, optimize=optimize)
    try:
        if _architecture(isa.triple) == "nvptx64":  # its object is a text, which a driver assembles
            return str(machine.emit_assembly(module)).encode()
        return bytes(machine.emit_object(module))
    finally:
        module.close()


def emit_assembly(ir_text: str, isa: CodeTarget, *, optimize: bool = False) -> str:
    """The assembly that `compile_object` would encode: for reports and for counting spills."""
    machine, module = prepared_module(ir_text, isa, optimize=optimize)
    try:
        return str(machine.emit_assembly(module))
    finally:
        module.close()


def compile_objects(
    jobs: Sequence[CompileJob],
    isa: CodeTarget,
    *,
    cache: ObjectCache | None = None,
    num_processes: int = 1,
    progress: Progress | None = None,
    frozen: bool = False,
) -> list[bytes]:
    """Objects for all jobs, in order: from the cache where it has them, equal jobs compiled once.

    With `num_processes > 1` and more than `PARALLEL_THRESHOLD_S` of estimated work, helper processes share
    what the cache lacks. The result does not depend on `num_processes`. `progress` is called on the calling
    thread with how many of the missing objects are done and how many there are; it may raise to stop.

    Raises:
        UsageError: `frozen`, and the cache lacks an object.
    """
    keys = [object_key(job, isa) for job in jobs]
    objects: dict[str, bytes] = {}
    missing: dict[str, CompileJob] = {}
    for key, job in zip(keys, jobs, strict=True):
        if key in objects or key in missing:
            continue
        stored = None if cache is None else cache.get(key)
        if stored is None:
            missing[key] = job
        else:
            objects[key] = stored
    if frozen and missing:
        raise UsageError(
            f"{len(missing)} of {len(set(keys))} kernels are not in the cache, which is frozen; "
            "compile once without --frozen."
        )
    finished: dict[str, bytes] = {}
    try:
        _compile_missing(missing, isa, num_processes, finished, progress)
    finally:  # an interrupt keeps what is compiled already
        if cache is not None:
            for key, compiled in finished.items():
                cache.put(key, compiled)
    objects |= finished
    return [objects[key] for key in keys]


class JitLibrary:
    """Objects loaded into this process. Addresses are valid until `close` (or until it is collected).

    Symbols of the objects see each other, `imports`, and the process (libm, libc). An undefined symbol,
    or two objects that define the same one, is an InternalError here rather than a crash later.
    """

    def __init__(
        self,
        objects: Iterable[bytes],
        exports: Iterable[str],
        *,
        imports: Mapping[str, int] | None = None,
        keep_alive: Sequence[object] = (),
    ) -> None:
        let_forks_pass()
        if not may_run_generated_code():  # LLVM would end the process
            raise NoGeneratedCode
        _initialize(native_only=True)
        _load_libm()
        # One LLJIT per library: closing it returns all memory, where closing a library of a shared one
        # leaks its name and symbol table (measured: 10 kB each).
        jit = llvm.create_lljit_compiler(None, use_jit_link=True)
        self._keep_alive = tuple(keep_alive)
        builder = llvm.JITLibraryBuilder().add_current_process()
        for image in objects:
            builder.add_object_img(image)
        for name, address in (imports or {}).items():
            builder.import_symbol(name, address)
        names = tuple(dict.fromkeys(exports))
        for name in names:
            builder.export_symbol(name)
        try:
            tracker = builder.link(jit, "library")
        except RuntimeError as error:
            jit.close()
            raise InternalError(f"Cannot link generated code: {_one_line(error)}.") from error
        self._addresses = {name: int(tracker[name]) for name in names}
        self._unload = weakref.finalize(self, _unload, tracker, jit)
        self._unload.atexit = False  # threads may still be in it; the process gives its memory back anyway

    def __getitem__(self, symbol: str) -> int:
        """Address of an exported symbol."""
        if symbol not in self._addresses:
            raise InternalError(f"Symbol {symbol!r} is not exported by this library or it is closed.")
        return self._addresses[symbol]

    @property
    def symbols(self) -> Mapping[str, int]:
        """Exported symbols and their addresses."""
        return dict(self._addresses)

    def close(self) -> None:
        """Unload the code. No thread may be inside it."""
        self._addresses = {}
        self._unload()
        self._keep_alive = ()


def _unload(tracker: llvm.ResourceTracker, jit: llvm.LLJIT) -> None:
    """Give the memory of a library back: first its code, then what linked it."""
    if process_is_whole():
        tracker.close()
        jit.close()


def _compile_missing(
    missing: Mapping[str, CompileJob],
    isa: CodeTarget,
    num_processes: int,
    done: dict[str, bytes],
    progress: Progress | None,
) -> None:
    """Compile all of `missing` into `done`."""
    progress = progress or (lambda num_done, num_jobs: None)
    total_s = sum(job.estimated_s for job in missing.values())
    num_helpers = min(num_processes, len(missing), int(total_s / PARALLEL_THRESHOLD_S) + 1) - 1
    if num_helpers <= 0 or getattr(sys, "frozen", False):
        for key, job in missing.items():
            done[key] = compile_object(job.ir_text, isa, optimize=job.optimize)
            progress(len(done), len(missing))
        return
    _compile_with_helpers(missing, isa, num_helpers, done, progress)


def _compile_with_helpers(
    missing: Mapping[str, CompileJob],
    isa: CodeTarget,
    num_helpers: int,
    done: dict[str, bytes],
    progress: Progress,
) -> None:
    """Longest jobs first from one queue; this process compiles too, and takes over if a helper dies."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for key in sorted(missing, key=lambda k: (-missing[k].estimated_s, k)):
        todo.put(key)
    helpers = _helpers(num_helpers)

    def feed(helper: WorkerProcess) -> None:
        if not helper.is_ready():
            return
        with contextlib.suppress(queue.Empty):
            while True:
                key = todo.get_nowait()
                compiled = _compiled_by(helper, missing[key], isa)
                if compiled is None:  # dead, or it rejects the module: here the error gets its message
                    todo.put(key)
                    return
                done[key] = compiled

    threads = [threading.Thread(target=feed, args=(helper,), daemon=True) for helper in helpers]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:  # the system, or an interpreter that ends, starts none: all is done here
                break
            started.append(thread)
        _drain(todo, missing, isa, done, progress)
        for thread in started:
            while thread.is_alive():
                thread.join(_PROGRESS_INTERVAL_S)
                progress(len(done), len(missing))
        _drain(todo, missing, isa, done, progress)
    finally:
        for helper in helpers:
            helper.kill()
        for thread in started:
            thread.join()
        for helper in helpers:
            helper.end()


def _drain(
    todo: queue.SimpleQueue[str],
    missing: Mapping[str, CompileJob],
    isa: CodeTarget,
    done: dict[str, bytes],
    progress: Progress,
) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            key = todo.get_nowait()
            done[key] = compile_object(missing[key].ir_text, isa, optimize=missing[key].optimize)
            progress(len(done), len(missing))


def _helpers(num_helpers: int) -> list[WorkerProcess]:
    """Processes that compile what they are asked, as many as the system starts."""
    command, environment = module_command(__spec__.name)
    helpers: list[WorkerProcess] = []
    try:
        while len(helpers) < num_helpers:
            helpers.append(WorkerProcess(command, start_s=_HELPER_START_S, environment=environment))
    except NoWorker as error:
        logger.info("no compile helper (%s): compiling in this process", error)
    return helpers


def _compiled_by(helper: WorkerProcess, job: CompileJob, isa: CodeTarget) -> bytes | None:
    """The object, or None if the helper died or could not compile the job."""
    target = {"triple": isa.triple, "cpu": isa.cpu, "features": isa.features, "fingerprint": ""}
    order = {"target": target, "optimize": job.optimize}
    try:
        (compiled,) = helper.ask([json.dumps(order).encode(), job.ir_text.encode()], _HELPER_JOB_S)
    except (WorkerDied, TimeoutError, OSError):
        return None
    return compiled or None


@dataclass(frozen=True, slots=True)
class _SentTarget:
    triple: str
    cpu: str
    features: str
    fingerprint: str


def answer(texts: Sequence[bytes]) -> list[bytes]:
    """In a helper: the object of a module; nothing if the module is not accepted."""
    order = json.loads(texts[0])
    isa = _SentTarget(**order["target"])
    try:
        return [compile_object(texts[1].decode(), isa, optimize=order["optimize"])]
    except InternalError:
        return [b""]


def prepared_module(
    ir_text: str, isa: CodeTarget, *, optimize: bool = False
) -> tuple[llvm.TargetMachine, llvm.ModuleRef]:
    """The code generator and the module of a text, checked and ready to be compiled.

    Raises:
        InternalError: the text is not valid IR.
    """
    let_forks_pass()
    _initialize(native_only=_architecture(isa.triple) == _architecture(llvm.get_default_triple()))
    machine = _target_machine(isa.triple, isa.cpu, isa.features)
    try:
        module = llvm.parse_assembly(ir_text if optimize else hide_outer_counters(ir_text))
        module.triple = isa.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"Generated IR is invalid: {_one_line(error)}.") from error
    if optimize:
        _run_o2(module, machine)
    return machine, module


def hide_outer_counters(ir_text: str) -> str:
    """Freeze the integer counters of all loops but the innermost, which changes no value.

    Code generation strength-reduces addresses over whole loop nests. On unrolled tiles that search takes most
    of the compile time and gains nothing: generated loops already address from one pointer with constant
    offsets. It cannot see through `freeze`, and keeps to the innermost loops, where it pays. Measured on six
    convolutions: 12-650 ms become 10-100 ms, and the kernels are as fast.
    """
    lines: list[str] = []
    frozen: list[str] = []
    label = ""
    for line in ir_text.split("\n"):
        if found := _LABEL.match(line):
            label = found[1]
        counter = _COUNTER.match(line)
        if counter and f"%{label}]" not in line.replace(" ", ""):
            frozen.append(counter[1])
            line = f"  {counter[1]}.phi = {line[counter.end() :]}"
        elif frozen and " = phi " not in line:
            lines += [f"  {name} = freeze i64 {name}.phi" for name in frozen]
            frozen = []
        lines.append(line)
    return "\n".join(lines)


def _run_o2(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    options.slp_vectorization = True
    options.loop_unrolling = True
    options.loop_interleaving = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _target_machine(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    # Small code model with PIC: JITLink places a library in one block, so 32-bit offsets always reach, and
    # constants are addressed directly instead of through 64-bit immediates.
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small")


@functools.cache
def _initialize(native_only: bool) -> None:
    if native_only:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
        return
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _load_libm() -> None:
    """Make expf and its like resolvable where the interpreter itself does not bring libm along."""
    if llvm.address_of_symbol("expf"):
        return
    for name in _LIBM_NAMES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        llvm.load_library_permanently(name)
        return


def _architecture(triple: str) -> str:
    return triple.partition("-")[0]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


if __name__ == "__main__":
    serve_texts(lambda: answer)
