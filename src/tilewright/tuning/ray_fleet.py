"""Machines of a Ray cluster as a fleet: on each that fits, a process that measures.

Ray runs what it is sent: a cluster is as trusted as the user's own account. Each machine needs this version
of tilewright; one that lacks it, or does not run the code, is left out with a line that says why.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.files import Bytes
from tilewright.records import dataclass
from tilewright.system.ray_cluster import NoCluster, check_address, connect, last_line
from tilewright.tuning.cluster import BatchResult, MachineDied, measured_batch
from tilewright.tuning.runners import NoRunner, Wanted
from tilewright.tuning.workers import LocalMeasuringPool, MeasureRequest, PackedCode

logger = logging.getLogger(__name__)

_START_S = 120.0
_MARGIN_S = 60.0
"""What a batch may take beside the limits of its requests, before its machine counts as gone."""
_MAX_RESTARTS = 3


@dataclass(frozen=True, slots=True)
class Measuring:
    """What machines run: the module of the measuring process, and what tells of a machine (`Greeting.texts`).

    `greeting` is a function of a module, as `module:function`.
    """

    module: str
    greeting: str
    wanted: Wanted


def ray_fleet(workers: str, measuring: Measuring, num_per_machine: int = 1) -> RayFleet:
    """The machines of a cluster that measure, connected.

    `workers` is `ray` for the cluster that runs on this machine (RAY_ADDRESS names another), one that is
    started here if there is none; or `ray://host:port`.

    Raises:
        NoCluster: Ray is not installed, there is no such cluster, or no machine of it fits.
    """
    return RayFleet(check_address(workers), measuring, num_per_machine)


class Measurer:
    """On a machine, in a process of Ray's: measures batches in a process that it may lose."""

    def __init__(self, measuring: Measuring) -> None:
        self._pool = LocalMeasuringPool(measuring.module)
        self._greeting = measuring.greeting

    def hello(self) -> tuple[int, Sequence[bytes]]:
        """Number of this process, and what it says of the machine."""
        module, _, function = self._greeting.partition(":")
        tell: Callable[[], list[bytes]] = getattr(importlib.import_module(module), function)
        return os.getpid(), tell()

    def measure(self, codes: Sequence[Any], batch: Sequence[Sent]) -> BatchResult:
        """See `measured_batch`; codes are references to what the batch's requests name by digest."""
        import ray

        fetched: list[PackedCode] = ray.get(list(codes))
        by_digest = {code.digest: code for code in fetched}
        return measured_batch(self._pool, [sent.request(by_digest) for sent in batch])


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it travels: codes by their digests."""

    rest: MeasureRequest
    candidate: str
    baseline: str | None

    @classmethod
    def of(cls, request: MeasureRequest) -> Sent:
        """A request without its codes."""
        baseline = None if request.baseline is None else request.baseline.digest
        return cls(replace(request, candidate=_NO_CODE, baseline=None), request.candidate.digest, baseline)

    def request(self, codes: Mapping[str, PackedCode]) -> MeasureRequest:
        """The request with its codes."""
        baseline = None if self.baseline is None else codes[self.baseline]
        return replace(self.rest, candidate=codes[self.candidate], baseline=baseline)


_NO_CODE = PackedCode({}, {})


class RayFleet:
    """See above."""

    def __init__(self, address: str, measuring: Measuring, num_per_machine: int = 1) -> None:
        import ray
        import ray.exceptions

        self._ray: Any = ray
        self._measuring = measuring
        self._numbers = itertools.count()
        self._actors: dict[int, Any] = {}
        self._nodes: dict[int, str] = {}
        self._restarts: dict[str, int] = {}
        self.running: dict[Any, tuple[int, float]] = {}  # machines, and until when they must have answered
        self._codes: dict[str, Any] = {}
        self.pids: dict[int, int] = {}
        self.place = ""
        self._is_connected_here = not self._ray.is_initialized()
        if self._is_connected_here:
            connect(address)
        try:
            for node in sorted(n["NodeID"] for n in self._ray.nodes() if n["Alive"]):
                for _ in range(num_per_machine):
                    self._start(node)
            if not self._actors:
                raise NoCluster(
                    f"workers {address}: no machine of the cluster can measure; see the messages above, or "
                    "measure here, without --workers."
                )
        except BaseException:
            self.close()
            raise

    def machines(self) -> Sequence[int]:
        """Those that can be asked now."""
        return tuple(self._actors)

    def submit(self, machine: int, requests: Sequence[MeasureRequest]) -> None:
        """Let a machine begin with a batch. Codes travel once, as long as they are in use."""
        codes = {
            code.digest: code for r in requests for code in (r.candidate, r.baseline) if code is not None
        }
        held = {
            **self._codes,
            **{d: self._ray.put(_whole(c)) for d, c in codes.items() if d not in self._codes},
        }
        baselines = {r.baseline.digest for r in requests if r.baseline is not None}
        self._codes = {digest: held[digest] for digest in baselines}
        future = self._actors[machine].measure.remote(
            [held[digest] for digest in codes], [Sent.of(request) for request in requests]
        )
        self.running[future] = machine, time.monotonic() + _limit_s(requests)

    def wait(self) -> Sequence[tuple[int, BatchResult | MachineDied]]:
        """What machines say, once there is one that says something."""
        soonest = min(self.running, key=lambda future: self.running[future][1])
        left_s = max(0.0, self.running[soonest][1] - time.monotonic())
        ready, _ = self._ray.wait(list(self.running), num_returns=1, timeout=left_s)
        return [self._said(future) for future in ready or [soonest]]

    def abandon(self) -> None:
        """End the processes that work on batches, and start others."""
        for machine, _ in self.running.values():
            self._replace(machine, is_broken=False)
        self.running.clear()

    def close(self) -> None:
        """End all processes, and the connection if it was made here."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self.running.clear()
        self._codes.clear()
        if self._is_connected_here:
            self._ray.shutdown()

    def _start(self, node: str) -> None:
        """A process on a machine, if it is one of those wanted."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = (
            self._ray.remote(Measurer).options(scheduling_strategy=place, num_cpus=0).remote(self._measuring)
        )
        try:
            pid, texts = self._ray.get(actor.hello.remote(), timeout=_START_S)
            self.place = self._measuring.wanted.place_of(texts, self.place)
        except (NoRunner, self._ray.exceptions.RayError) as error:
            logger.warning("machine %s of the cluster is left out: %s", node[:8], last_line(error))
            self._ray.kill(actor)
            return
        number = next(self._numbers)
        self._actors[number], self._nodes[number], self.pids[number] = actor, node, pid

    def _replace(self, machine: int, *, is_broken: bool = True) -> None:
        """Another process in place of one, if its machine is still there and does not break too often."""
        node = self._nodes.pop(machine)
        self._ray.kill(self._actors.pop(machine))
        del self.pids[machine]
        self._restarts[node] = self._restarts.get(node, 0) + is_broken
        is_alive = any(n["NodeID"] == node and n["Alive"] for n in self._ray.nodes())
        if is_alive and self._restarts[node] <= _MAX_RESTARTS:
            self._start(node)

    def _said(self, future: Any) -> tuple[int, BatchResult | MachineDied]:
        machine, _ = self.running.pop(future)
        try:
            result: BatchResult = self._ray.get(future, timeout=0)
        except self._ray.exceptions.GetTimeoutError:
            self._replace(machine)
            return machine, MachineDied("it gave no answer in time")
        except self._ray.exceptions.RayError as error:
            self._replace(machine)
            return machine, MachineDied(last_line(error))
        return machine, result


def _limit_s(requests: Sequence[MeasureRequest]) -> float:
    """Two runs that calibrate, and each request with its second attempt."""
    limits_s = [request.limit_s for request in requests]
    return _MARGIN_S + 2 * (sum(limits_s) + 2 * limits_s[0])


def _whole(code: PackedCode) -> PackedCode:
    """Code whose parts are single pieces that can be pickled."""
    parts: dict[str, tuple[Bytes, ...]] = {name: (b"".join(pieces),) for name, pieces in code.parts.items()}
    return PackedCode(dict(code.facts), parts)
