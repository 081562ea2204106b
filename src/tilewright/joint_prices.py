"""Prices of blocks of joint plans as tasks: texts that processes answer, or those of a Ray cluster.

A task holds the block as a network of its own, so that a worker needs nothing else, and any worker gives the
same answer. What is known ahead changes no search: it asks for the same prices in the same order, and counts
those that it asks for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from math import inf
from typing import Any

import numpy as np

from tilewright.fields import decoded
from tilewright.hardware.machine import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.mapping.chains.plan import ChainPlan
from tilewright.mapping.sweep.answered import Kind, Task, TaskSettings, answer_with, answered
from tilewright.options import Options
from tilewright.partition.split import Split, split_of, tiled_jointly
from tilewright.planner import machine_of
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.base import Stage
from tilewright.system.worker_process import serve_texts
from tilewright.targets import find_target
from tilewright.version import __version__

_LIMIT_S = 3600.0
"""What a block may take."""
_MODULE = "tilewright.joint_prices"
_CONSTANT = re.compile(r"const \S+: (\w+)\[([\d, ]*)\] = sha256:([0-9a-f]+)")


def price_ahead(
    pricer: LaunchedPricer, contents: Iterable[Content], options: Options, settings: TaskSettings
) -> None:
    """Let workers price the blocks whose costs are not known yet, each structure once.

    Raises:
        NoWorker: none can be had.
        UsageError: the journal is none.
    """
    asked = _asked(options)
    texts: dict[str, str] = {}
    blocks: dict[str, Content] = {}
    for content in pricer.unknown(contents):
        checkpoint()
        with contextlib.suppress(ValueError):  # it is no plan; seen where it is asked for
            text = _task(pricer.numbered, content, asked)
            key = hashlib.sha256(text.encode()).hexdigest()
            texts[key], blocks[key] = text, content
    found: dict[str, float] = {}
    # A block that a worker could not price is priced where it is asked for, or is none there.
    kind = Kind(_MODULE, _LIMIT_S, _cost_of, loses_failed=True)
    tasks = {key: Task(text, {"machine": str(options.target)}) for key, text in texts.items()}
    with contextlib.closing(answered(tasks, kind, settings)) as come:
        for key, cost in come:
            found[key] = cost
            checkpoint()
    for key in sorted(found):
        pricer.know(blocks[key], found[key])


def _asked(options: Options) -> dict[str, Any]:
    """What every block is priced for. The machine is described whole: its file may change or be elsewhere."""
    return {
        "target": str(options.target),
        "machine": find_target(options.target).machine.model_dump_json(exclude_defaults=True),
        "hint": options.hint,
        "accuracy": options.accuracy,
    }


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel with its slices as cuts, as `split_of` takes them, and its layers that are tiled jointly."""

    layers: tuple[tuple[int, ...], ...]
    cuts: tuple[tuple[int, int], ...]
    keeps_rows: bool
    tilings: tuple[tuple[int, ChainPlan], ...] = ()

    @property
    def split(self) -> Split:
        """How the kernel runs."""
        if self.tilings:
            return tiled_jointly(dict(self.tilings))
        return split_of(self.cuts, keeps_rows=self.keeps_rows)


def _task(numbered: Numbered, content: Content, asked: dict[str, Any]) -> str:
    """A block, as a network with the numbers of its nodes, and what is asked of it."""
    part = numbered.part(content).partition.graph
    place = {
        number: n for n, number in enumerate(i for i in range(len(numbered.nodes)) if content.mask >> i & 1)
    }
    kernels = [
        asdict(
            _Kernel(
                tuple(tuple(place[i] for i in layer) for layer in kernel.layers),
                kernel.split.cuts,
                kernel.split.chain_length > 1,
                kernel.split.tilings,
            )
        )
        for kernel in content.kernels
    ]
    stages = [asdict(stage) for stage in content.stages]
    document = {"version": __version__, "graph": print_graph(part), "kernels": kernels, "stages": stages}
    return json.dumps(document | asked)


def _cost_of(text: str) -> float:
    """What a worker said.

    Raises:
        FieldError: it is no answer, or says why it could not price the block.
    """
    document = json.loads(text)
    cost = decoded(_Answer, document).cost
    return inf if cost is None else cost


@dataclass(frozen=True, slots=True)
class _Answer:
    cost: float | None  # None: it does not fit


def answer(task: str) -> str:
    """A task answered; an error as the line it is."""
    return answer_with(_priced_text, task)


def _priced_text(task: str) -> str:
    cost = _priced(json.loads(task))
    return json.dumps(asdict(_Answer(None if cost == inf else cost)))


def _priced(document: dict[str, Any]) -> float:
    graph = _graph_of(document["graph"])
    options = Options(**{name: document[name] for name in ("target", "hint", "accuracy")})
    machine = Machine.model_validate_json(document["machine"])
    backend = find_target(options.target, machine).backend(graph, options)
    kernels = tuple(
        Kernel(kernel.layers, kernel.split) for kernel in decoded(tuple[_Kernel, ...], document["kernels"])
    )
    content = Content(kernels, decoded(tuple[Stage, ...], document["stages"]))
    return LaunchedPricer(Numbered(graph), machine_of(backend, options)).cost(content)


def _graph_of(text: str) -> Graph:
    """A graph whose constants are zeros: they cost the same."""
    zeros = {}
    for name, shape, digest in _CONSTANT.findall(text):
        extents = tuple(int(extent) for extent in shape.split(",") if extent.strip())
        zeros[digest] = np.zeros(extents, DType[name.upper()].numpy)
    return parse_graph(text, constants=zeros)


if __name__ == "__main__":
    serve_texts(lambda: lambda texts: [answer(texts[0].decode()).encode()])
