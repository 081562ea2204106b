"""Workers on a Ray cluster: a process for each of its processors."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any

from tilewright.mapping.sweep.workers import LAYERS
from tilewright.system.ray_cluster import NoCluster, check_address, connect, last_line
from tilewright.system.worker_process import NoWorker, WorkerDied
from tilewright.version import __version__

logger = logging.getLogger(__name__)

_START_S = 300.0


class Answering:
    """In a process of Ray's: answers tasks as a module does."""

    def __init__(self, module: str) -> None:
        self._answer = importlib.import_module(module).answer

    def hello(self) -> tuple[int, str]:
        """The number of this process, and the version that it runs."""
        return os.getpid(), __version__

    def answer(self, task: str) -> str:
        """A task answered."""
        answered: str = self._answer(task)
        return answered


class RayWorker:
    """A process of Ray's, seen from here."""

    def __init__(self, ray: Any, actor: Any, limit_s: float) -> None:
        self._ray, self._actor, self._limit_s = ray, actor, limit_s
        try:
            self.pid, version = ray.get(actor.hello.remote(), timeout=_START_S)
        except ray.exceptions.RayError as error:
            self.end()
            raise NoWorker(f"a process of the cluster did not come up: {last_line(error)}") from None
        if version != __version__:
            self.end()
            raise NoWorker(f"the cluster has tilewright {version}, this machine {__version__}")

    def ask(self, task: str) -> str:
        """See `Worker`."""
        try:
            said: str = self._ray.get(self._actor.answer.remote(task), timeout=self._limit_s)
        except self._ray.exceptions.RayError as error:
            raise WorkerDied(last_line(error)) from None
        return said

    def end(self) -> None:
        """See `Worker`."""
        self._ray.kill(self._actor)

    def interrupt(self) -> None:
        """See `Worker`."""
        self.end()


class RayCrew:
    """As many processes as a cluster has processors.

    Raises:
        NoCluster: Ray is not installed, there is no such cluster, or it has no processor.
    """

    def __init__(self, address: str, limit_s: float, module: str = LAYERS) -> None:
        check_address(address)
        import ray
        import ray.exceptions

        self._ray: Any = ray
        self._limit_s, self._module = limit_s, module
        self._is_connected_here = not ray.is_initialized()
        self._lock = threading.Lock()
        self.started: list[RayWorker] = []
        if self._is_connected_here:
            connect(address)
        self._num_workers = int(ray.cluster_resources().get("CPU", 0))
        if not self._num_workers:
            self.close()
            raise NoCluster(f"workers {address}: the cluster has no processor; start it with --num-cpus.")

    @property
    def num_workers(self) -> int:
        """See `Crew`."""
        return self._num_workers

    def start(self) -> RayWorker:
        """See `Crew`."""
        actor = self._ray.remote(Answering).options(num_cpus=1).remote(self._module)
        worker = RayWorker(self._ray, actor, self._limit_s)
        with self._lock:
            self.started.append(worker)
        return worker

    def close(self) -> None:
        """See `Crew`."""
        if self._is_connected_here:
            self._ray.shutdown()
