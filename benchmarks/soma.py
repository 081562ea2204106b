"""Plans of the networks that SoMa (HPCA 2025) has results for, on its machine: cycles and bytes of DRAM.

`python -m benchmarks soma --reference reference.json --trials 60` plans ResNet-50 and a block of GPT-2 on a
machine of 8,192 products and 512 other operations a cycle with a buffer of 8 MiB, all data of 8 bits, weights
fetched in each run, and prints a line of a table for each beside what the file says of SoMa. Equal arguments
give equal lines, but for processor seconds.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.command import Namespace, Parser
from tilewright import zoo
from tilewright.comparison import seed_partitions
from tilewright.compiler import optimise
from tilewright.errors import TilewrightError
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.machine_file import load_machine
from tilewright.options import Options
from tilewright.planner import Planner
from tilewright.planning import Budget
from tilewright.planning.member_options import with_options
from tilewright.planning.spec import Spec
from tilewright.program import Program
from tilewright.progress import PhaseClock
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.nest_judge import improved
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.target import NpuTarget

MACHINE = """\
name: soma
description: The machine of SoMa's published results, 16 arrays of 512 multipliers as one core.
clock_hz: {value: 1 GHz, source: "public: SoMa-HPCA2025, read off its results"}
num_cores_per_cluster: {value: 1, source: "public: all arrays read one buffer"}
launches: {value: once, source: "public: its tiles of all layers are one sequence"}
levels:
  - name: L1
    per: core
    capacity_bytes: 896 KiB
    word_bits: 8
    words_per_access: 64
    source: "public: 16 arrays with 56 KiB for operands and results"
  - name: Buffer
    per: core
    capacity_bytes: 8 MiB
    word_bits: 8
    words_per_access: 64
    read_bytes_per_cycle: 256
    write_bytes_per_cycle: 256
    source: "public: arguments of the published run"
  - name: DRAM
    per: machine
    capacity_bytes: 4 GiB
    word_bits: 8
    words_per_access: 64
    has_shared_port: true
    read_bytes_per_cycle: 16
    write_bytes_per_cycle: 16
    source: "public: arguments of the published run"
units:
  - name: PE
    kind: matrix
    level: L1
    runs: [contraction]
    macs_per_cycle: {int8: 8192}
    source: "public: arguments of the published run"
  - name: Vector
    kind: vector
    level: Buffer
    runs: [depthwise, elementwise, reduction, special]
    macs_per_cycle: {int8: 512}
    ops_per_cycle: {int8: 512}
    source: "public: arguments of the published run"
"""
EXECUTION = "dtype=int8"
"""How the machine runs: 8-bit data; weights are fetched in each run."""

WIDTH, HEADS, HIDDEN = 768, 12, 3072
"""Of GPT-2 small."""
PARTITIONS = (
    "graphturbo", "graphturbo{capacity_bytes=4194304}", "graphturbo{capacity_bytes=2097152}",
    "graphturbo{capacity_bytes=1048576}", "graphturbo{group=false}", "layerwise", "none",
)  # fmt: skip
MEMORIES = (
    "longest-liveness", "longest-liveness{most_bytes=6291456}", "longest-liveness{most_bytes=4194304}",
    "longest-liveness{most_bytes=2097152}", "longest-liveness{pack=next-fit, most_bytes=4194304}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan's cycles, the bytes that pass DRAM, and a lower bound on the cycles of all plans."""

    cycles: float
    dram_bytes: int
    bound_cycles: float


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--reference", type=Path, required=True, help="Results of SoMa, as JSON.")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--trials", type=int, default=60)


def main(arguments: Namespace) -> None:
    """Print the table."""
    reference = json.loads(arguments.reference.read_text())["results"]
    print("| network | SoMa, cycles | here | at least | SoMa, DRAM bytes | here | processor, s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in arguments.networks.split(","):
        begun, theirs = time.process_time(), reference[name]
        plan = planned(NETWORKS[name](), arguments.trials)
        print(
            f"| {name} | {theirs['soma_final_stage2']['latency_cycles']:,} | {plan.cycles:,.0f} "
            f"| {plan.bound_cycles:,.0f} | {theirs['dram_bytes']:,.0f} | {plan.dram_bytes:,} "
            f"| {time.process_time() - begun:.0f} |",
            flush=True,
        )


def planned(model: onnx.ModelProto, trials: int) -> Plan:
    """The best plan of a model within so many trials of the search, from the best of a few recipes on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "soma.yaml"
        path.write_text(MACHINE)
        machine = load_machine(path)
    graph, _ = optimise(load_onnx(model), Options())
    target = with_options(NpuTarget(machine), Spec.parse(f"npu{{{EXECUTION}}}"))
    options = Options(budget=Budget(trials))
    backend = target.backend(graph, options)
    planner = Planner(graph, target, backend, options, PhaseClock(None, None))
    best: Program | None = None
    for partition in PARTITIONS:
        for memory in MEMORIES:
            recipe = replace(backend.default_recipe, partition=partition, memory=memory)
            try:
                program = planner.program(recipe)
            except TilewrightError:  # does not fit
                continue
            if best is None or program.schedule.quality.cost < best.schedule.quality.cost:
                best = program
    assert best is not None, "layers one by one fit"
    best = searched(backend, planner, best, Budget(trials))
    simulation = backend.plan(best.schedule, best.recipe).simulation
    traffic = simulation.traffic
    return Plan(
        simulation.time_s * 1e9, traffic.main_read + traffic.main_written, simulation.lower_bound_s * 1e9
    )


def searched(backend: NpuBackend, planner: Planner, best: Program, budget: Budget) -> Program:
    """What the search over plans of one program finds from one on, without weights that stay."""
    judge, seeds = backend.nest_judge(), seed_partitions(planner, budget.start())

    def check(program: Program) -> SimulatedPlan:
        return backend.plan(program.schedule, program.recipe)

    return improved(judge, best, seeds, planner.ordered, check, budget, MEMORIES, ("",), 0).program


def resnet50() -> onnx.ModelProto:
    """ResNet-50 whose stages halve the image in their first 1x1 convolution, as SoMa's."""
    model = zoo.build("resnet50")
    nodes = {node.name: node for node in model.graph.node}
    for node in model.graph.node:
        strides = next((a for a in node.attribute if a.name == "strides"), None)
        if node.name.endswith(".conv2") and strides is not None and list(strides.ints) == [2, 2]:
            first = nodes[node.name.replace(".conv2", ".conv1")]
            other = next(a for a in first.attribute if a.name == "strides")
            strides.ints[:], other.ints[:] = [1, 1], [2, 2]
    del model.graph.value_info[:]
    return model


def gpt2_block(num_new: int, num_past: int) -> onnx.ModelProto:
    """A block of GPT-2 small over new positions, with keys and values of those before as inputs."""
    block = _Block()
    size = WIDTH // HEADS
    x = block.input("x", 1, num_new, WIDTH)
    normed = block.norm(x)
    query, key, value = (block.heads(block.dense(normed, WIDTH, WIDTH), num_new) for _ in range(3))
    if num_past:
        key = block.node("Concat", block.input("keys", 1, HEADS, num_past, size), key, axis=2)
        value = block.node("Concat", block.input("values", 1, HEADS, num_past, size), value, axis=2)
    scores = block.node("MatMul", query, block.node("Transpose", key, perm=[0, 1, 3, 2]))
    context = block.node("MatMul", block.node("Softmax", scores, axis=-1), value)
    context = block.shaped(block.node("Transpose", context, perm=[0, 2, 1, 3]), 1, num_new, WIDTH)
    x = block.node("Add", x, block.dense(context, WIDTH, WIDTH))
    hidden = block.node("Relu", block.dense(block.norm(x), WIDTH, HIDDEN))  # one operation an element
    return block.model(block.node("Add", x, block.dense(hidden, HIDDEN, WIDTH)), num_new)


class _Block:
    """A graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def input(self, name: str, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def node(self, kind: str, *operands: str, **attributes: object) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, operands, [name], name, **attributes))
        return name

    def constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def dense(self, x: str, inner: int, outer: int) -> str:
        weight = self.random.standard_normal((inner, outer), np.float32) / inner**0.5
        return self.node("MatMul", x, self.constant(weight.astype(np.float32)))

    def norm(self, x: str) -> str:
        return self.node("LayerNormalization", x, self.constant(np.ones(WIDTH, np.float32)))

    def shaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def heads(self, x: str, length: int) -> str:
        return self.node("Transpose", self.shaped(x, 1, length, HEADS, WIDTH // HEADS), perm=[0, 2, 1, 3])

    def model(self, result: str, length: int) -> onnx.ModelProto:
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, (1, length, WIDTH))
        graph = helper.make_graph(self.nodes, "gpt2_block", self.inputs, [output], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "gpt2_small_prefill_block": lambda: gpt2_block(512, 0),
    "gpt2_small_decode_block": lambda: gpt2_block(1, 512),
}
