"""Commands that start measuring processes, on this machine or others, as a fleet.

A *runner* is a command whose standard input and output are the pipes of a measuring process, such as
`ssh board tilewright worker`. Code is compiled here; the process loads it, checks what it computes and times
it. It says first what it is; what it answers is data of a bounded size. A runner that ends loses what it was
measuring, and is started again for the next candidate.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path

from tilewright.fields import FieldError, decoded, parsed_json
from tilewright.hardware.probe import cpu_name
from tilewright.records import dataclass
from tilewright.system.ray_cluster import NoCluster
from tilewright.system.worker_process import NoWorker, WorkerProcess
from tilewright.text.printable import printable
from tilewright.tuning.cluster import BatchResult, MachineDied, measured_batch
from tilewright.tuning.observation import EMULATED
from tilewright.tuning.workers import MeasureRequest, ProcessMeasuringPool
from tilewright.version import __version__

logger = logging.getLogger(__name__)

PROTOCOL = 1
"""Version of requests and answers of a measuring process."""
_START_S = 120.0
_MAX_ANSWER_BYTES = 64 << 20
_MAX_NAME = 200


class NoRunner(NoCluster):
    """No command that was given starts a process that can measure."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a measuring process says of itself: versions, and the processor that it runs on.

    `emulator` is the program that stands in for the processor; empty where none is seen. `instruction_sets`
    are those of which it runs code, `fingerprints` those of contexts of measurements (`PlanContext`).
    """

    protocol: int
    version: str
    interface: str
    processor: str
    emulator: str
    instruction_sets: tuple[str, ...]
    fingerprints: tuple[str, ...]

    @classmethod
    def of_host(
        cls, interface: str, instruction_sets: Sequence[str], fingerprints: Sequence[str]
    ) -> Greeting:
        """That of this process."""
        emulator = emulator_here()
        processor = cpu_name()[:_MAX_NAME]
        return cls(
            PROTOCOL,
            __version__,
            interface,
            processor,
            emulator,
            tuple(sorted(instruction_sets)),
            tuple(sorted(fingerprints)),
        )

    def texts(self) -> list[bytes]:
        """What a process says after it is ready."""
        return [json.dumps(asdict(self)).encode()]

    @classmethod
    def read(cls, texts: Sequence[bytes]) -> Greeting:
        """What `texts` gave.

        Raises:
            NoRunner: they are none of this version.
        """
        try:
            (text,) = texts
            document = parsed_json(text)
            if document["protocol"] != PROTOCOL:
                raise NoRunner(
                    f"it speaks version {document['protocol']!r:.20} of the protocol, this is {PROTOCOL}: "
                    "install one version of tilewright on both machines"
                )
            return decoded(cls, document)
        except (FieldError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise NoRunner("its greeting cannot be read: it is of another version of tilewright") from error

    @property
    def place(self) -> str:
        """Where it measures, in words."""
        processor = printable(self.processor[:_MAX_NAME])
        emulator = printable(self.emulator[:_MAX_NAME])
        return f"{EMULATED} ({emulator} on {processor})" if emulator else processor


def emulator_here(root: Path = Path("/")) -> str:
    """The program that runs this one for another processor; empty where none is seen.

    An emulator of programs, such as qemu-user, shows the program in `/proc/self/exe`; the kernel's own link
    of the thread names the emulator. One of whole machines cannot be seen this way.
    """
    try:
        shown, actual = (os.readlink(root / "proc" / name / "exe") for name in ("self", "thread-self"))
    except OSError:
        return ""
    return "" if shown == actual else Path(actual).name


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which machines may measure: those that run code of an instruction set, or, where a fingerprint is
    given, those that have it. `interface` is that of the runtime that code expects."""

    interface: str
    instruction_set: str
    fingerprint: str = ""

    def refusal(self, greeting: Greeting) -> str:
        """Why a process is not one of them; empty where it is."""
        if greeting.interface != self.interface:
            return (
                f"it has tilewright {printable(greeting.version[:20])}, which runs other code than "
                f"{__version__}: install one version on both machines"
            )
        if self.fingerprint and self.fingerprint not in greeting.fingerprints:
            names = printable("|".join(greeting.instruction_sets)[:60])
            return (
                f"{greeting.place} is another processor, compiler or version than here, where its times say "
                f"nothing: name its instruction set ({names}) with --isa"
            )
        if not self.fingerprint and self.instruction_set not in greeting.instruction_sets:
            return f"{greeting.place} does not run {self.instruction_set} code"
        return ""

    def place_of(self, texts: Sequence[bytes], others: str) -> str:
        """Where a process measures that says so of itself, like `others`, if there are any.

        Raises:
            NoRunner: it is not one of the machines wanted, or of another kind than the others.
        """
        greeting = Greeting.read(texts)
        if problem := self.refusal(greeting):
            raise NoRunner(problem)
        if others not in ("", greeting.place):
            raise NoRunner(f"it measures on {greeting.place}, others on {others}: tune for one at a time")
        return greeting.place


class RunnerFleet:
    """Measuring processes that commands start, one for each command; see `Fleet`."""

    def __init__(self, commands: Sequence[str], wanted: Wanted) -> None:
        """Start all of them, side by side.

        Raises:
            NoRunner: none of them can measure what is wanted; says why.
        """
        self._wanted = wanted
        self._is_stopped = threading.Event()
        self._accepting = threading.Lock()
        self._pools: dict[int, ProcessMeasuringPool] = {}
        self._running: dict[Future[BatchResult], int] = {}
        self._threads = ThreadPoolExecutor(max(1, len(commands)), thread_name_prefix="runner")
        self.place = ""
        problems: list[str] = []
        pools = [self._pool(split_command(command)) for command in commands]
        try:
            for number, (pool, started) in enumerate(
                [(pool, self._threads.submit(pool.wait_until_ready)) for pool in pools]
            ):
                try:
                    started.result()
                    self._pools[number] = pool
                except (NoRunner, NoWorker) as error:
                    problems.append(f"--runner {shown_command(commands[number])}: {error}")
            if not self._pools:
                raise NoRunner("; ".join(problems) + ".")
        except BaseException:
            for pool in pools:
                pool.kill()
            self.close()
            raise
        for problem in problems:
            logger.warning("%s; it is left out", problem)

    def machines(self) -> Sequence[int]:
        """Those that can be asked now."""
        return tuple(self._pools)

    def submit(self, machine: int, requests: Sequence[MeasureRequest]) -> None:
        """Let a machine begin with a batch."""
        self._running[self._threads.submit(measured_batch, self._pools[machine], requests)] = machine

    def wait(self) -> Sequence[tuple[int, BatchResult | MachineDied]]:
        """What machines say, once there is one that says something."""
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        return [self._said(future) for future in sorted(done, key=self._running.__getitem__)]

    def abandon(self) -> None:
        """End the processes that work on batches; others are started when they are needed."""
        self._is_stopped.set()
        while self._running:
            for machine in self._running.values():
                self._pools[machine].kill()
            done, _ = wait(self._running, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                self._said(future)
        self._is_stopped.clear()

    def close(self) -> None:
        """End all processes."""
        self.abandon()
        self._threads.shutdown()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool(self, arguments: Sequence[str]) -> ProcessMeasuringPool:
        def start() -> WorkerProcess:
            if self._is_stopped.is_set():
                raise NoWorker("measuring was ended")
            return WorkerProcess(
                arguments, start_s=_START_S, is_python=False, max_answer_bytes=_MAX_ANSWER_BYTES
            )

        return ProcessMeasuringPool(start, "the worker", is_far=True, accept=self._accept)

    def _accept(self, texts: Sequence[bytes]) -> None:
        """Take a process that measures what is wanted, on a machine like that of the others."""
        with self._accepting:
            self.place = self._wanted.place_of(texts, self.place)

    def _said(self, future: Future[BatchResult]) -> tuple[int, BatchResult | MachineDied]:
        machine = self._running.pop(future)
        try:
            return machine, future.result()
        except (NoRunner, NoWorker) as error:
            if not self._is_stopped.is_set():
                self._pools.pop(machine).close()
                logger.warning("a runner is gone: %s", error)
            return machine, MachineDied(str(error))


def split_command(command: str) -> list[str]:
    """The words of a command, as a shell takes them.

    Raises:
        NoRunner: there is no such program, or a quotation does not end.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise NoRunner(f"--runner {shown_command(command)}: {str(error).lower()}.") from error
    if not words or shutil.which(words[0]) is None:
        missing = f"no program {words[0]!r} is found" if words else "it is empty"
        raise NoRunner(
            f"--runner {shown_command(command)}: {missing}; expected a command that starts a worker, such as "
            "'ssh board tilewright worker'."
        )
    return words


def shown_command(command: str) -> str:
    """A command in a message."""
    return repr(printable(command if len(command) <= _MAX_NAME else command[: _MAX_NAME - 3] + "..."))
