"""Which kernels of networks of the zoo the matrix unit computes, at each accuracy, by the estimates.

    python -m benchmarks matrix_kernels
    PYTHONPATH=BEFORE/src python -m benchmarks matrix_kernels          # of another source tree

For a server of the Emerald Rapids generation, wherever this runs: models are planned, nothing is run. Prints
a table for docs/benchmarks_amx.md: kernels on the unit of all that are products, and their share of the
multiply-accumulates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from tests.support.matrix_unit import steady_matrix_unit
from tests.support.processors import on_machine

from benchmarks.command import Namespace, Parser
from tilewright import zoo
from tilewright.compiler import plan
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.instruction_sets import instruction_set_by_name
from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.processor import promised_machine
from tilewright.options import Accuracy, Options
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch
from tilewright.targets.cpu.target import CpuTarget

NETWORKS = (
    "resnet50", "inception_v3", "densenet121", "mobilenet_v2", "convnext_tiny", "vit_b_16", "bert_base",
    "swin_t", "gpt2_small", "yolov5s",
)  # fmt: skip
CACHES = (("L1", 48 << 10), ("L2", 2 << 20), ("L3", 256 << 20))


def server() -> Machine:
    """A machine with the unit."""
    machine = promised_machine(instruction_set_by_name("avx512+amx"))
    caches = (Level(name=n, capacity_bytes=size, managed_by="hardware", line_bytes=64) for n, size in CACHES)
    return machine.model_copy(update={"levels": (*caches, *machine.levels)})


def products(name: str, accuracy: Accuracy, *, is_steady: bool = False) -> list[Kernel]:
    """The kernels of a network that multiply, those within fused ones too; for a unit that is never slow."""
    if is_steady:
        with steady_matrix_unit():
            return products(name, accuracy)
    options = Options(no_cache=True, threads=2, accuracy=accuracy)
    program = plan(load_onnx(zoo.build(name)), options).program
    lowered = lower_partition(program.partition, CpuTarget().isa(options), accuracy=accuracy)
    launches = (step for steps in lowered.work for step in steps if isinstance(step, KernelLaunch))
    kernels = (part for launch in launches for part in launch.kernel.all_kernels() if not part.parts)
    return [kernel for kernel in kernels if kernel.macs and kernel.signature]


def cell(kernels: Iterable[Kernel]) -> str:
    """How many kernels are on the unit, and their share of the work."""
    kernels = list(kernels)
    on_unit = [kernel for kernel in kernels if kernel.template.startswith(("matrix-", "slices-"))]
    share = sum(k.macs for k in on_unit) / max(1, sum(k.macs for k in kernels))
    return f"{len(on_unit)} of {len(kernels)}, {share:.0%}"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--networks", default=",".join(NETWORKS))


def main(arguments: Namespace) -> None:
    """Print the table."""
    accuracies = get_args(Accuracy)
    print(f"| network | {' | '.join(accuracies)} | default, steady unit |")
    print("|---" * (2 + len(accuracies)) + "|")
    with on_machine(server()):
        for name in arguments.networks.split(","):
            cells = [cell(products(name, accuracy)) for accuracy in accuracies]
            cells.append(cell(products(name, "default", is_steady=True)))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
