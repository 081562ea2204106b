"""Everything a C program needs of a model, as files in a folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tilewright.embed import marks
from tilewright.embed.folder import FileToWrite, require_folder, write_together
from tilewright.embed.header import example_text, has_c_type, header_text, tensor_bytes
from tilewright.embed.module import Copy, Workspace, link_object, run_text
from tilewright.embed.names import file_name, identifier
from tilewright.embed.weights import HEADER_BYTES, weights_file
from tilewright.errors import UnsupportedOp
from tilewright.ir.control_flow import CONTROL_FLOW
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.results import Result, about
from tilewright.targets.cpu.isa import Isa, isa_by_name
from tilewright.targets.cpu.lower.storage import Weights
from tilewright.targets.cpu.runtime.executable import TensorSpec
from tilewright.targets.cpu.runtime.main_code import build_main
from tilewright.targets.cpu.target import CpuTarget, EmittingTarget


@dataclass(frozen=True, slots=True)
class ExportedModel(Result):
    """Files for a C program, and what it needs at run time."""

    name: str
    isa: str
    object_path: Path = field(metadata=about(key="object"))
    header_path: Path = field(metadata=about(key="header"))
    weights_path: Path = field(metadata=about(key="weights"))
    example_path: Path = field(metadata=about(key="example"))
    workspace_bytes: int
    weights_bytes: int
    num_kernels: int
    tuned: tuple[str, ...] = field(
        default=(), metadata=about("What measurements elsewhere chose, where any did.")
    )

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return self.object_path, self.header_path, self.weights_path, self.example_path


def emitting_target(options: Options) -> EmittingTarget | None:
    """What makes code for the instruction set of options, if this machine lacks it."""
    isa = isa_by_name(options.isas[0]) if options.isas else None
    return None if isa is None or isa.runs_on_host else EmittingTarget(record=isa)


def program_for(isa: Isa, program: Program) -> Program:
    """A compiled program to be exported: what was measured stays where instructions are alike."""
    measured_on = CpuTarget().isa(program.options)
    return (
        program if isa.name == measured_on.name else tuned_for(isa, replace(program.unmeasured(), tuned=()))
    )


def tuned_for(isa: Isa, program: Program) -> Program:
    """A program that was planned for an instruction set, as measurements elsewhere found it best."""
    one_thread = replace(program, options=replace(program.options, threads=1))
    return program if isa.runs_on_host else EmittingTarget(record=isa).tuned(one_thread).program


def export_object(
    program: Program,
    isa: Isa,
    folder: Path,
    *,
    name: str,
    model_sha256: str,
    force: bool = False,
    progress: Progress | None = None,
) -> ExportedModel:
    """Write `NAME.o`, `NAME.h`, `NAME.weights` and `example.c` of a program into a folder: all or none.

    The object is for `isa`, which need not be this machine's. Equal programs give equal bytes.

    Raises:
        UsageError: the folder does not exist, the name is too long, or a file is in the way that export did
            not write (or that was edited since) and `force` does not say to replace it.
        UnsupportedOp: an operator that has no generated code, or a tensor of a type that C lacks.
    """
    require_folder(folder)
    symbol = identifier(name)
    graph = program.graph
    for value in (*graph.inputs, *graph.outputs):
        if not has_c_type(value.dtype):
            raise UnsupportedOp(f"{value.name!r} holds {value.dtype} values, which C has no type for.")
    placed = CpuTarget().place(program, isa, progress=progress, has_rows=False)
    if placed.host_steps:
        node = placed.host_steps[0].node
        reason = CpuTarget().supports(node).reason.removeprefix("runs on the host: ")
        if node.op_type in CONTROL_FLOW:
            reason = "its bodies are called from Python"
        raise UnsupportedOp(f"{node.op_type} {node.name!r} has no generated code to export: {reason}.")
    main = build_main(placed.steps, isa)
    copies = _copies(graph, placed.weights)
    inputs, outputs = ([TensorSpec.of(v) for v in values] for values in (graph.inputs, graph.outputs))
    args_bytes = 8 * max(1, len(main.arg_table))
    workspace = Workspace(placed.arena_bytes, len(placed.index_checks), placed.scratch_bytes, args_bytes)
    function = f"{symbol}_run"
    run = run_text(function, main, workspace, len(inputs), len(outputs), copies, isa)
    if progress is not None:
        progress("link", 0, 1)
    image = link_object(run, function, main, tuple(placed.kernels.values()), isa)
    data = np.zeros(placed.weights.size_bytes, np.uint8)
    placed.weights.fill(data)
    identity = hashlib.sha256(hashlib.sha256(image).digest() + hashlib.sha256(data.data).digest()).digest()
    header = header_text(
        symbol,
        isa,
        inputs,
        outputs,
        workspace_bytes=workspace.size_bytes,
        weights_bytes=data.nbytes,
        identity=identity,
        model_sha256=model_sha256,
    )
    example = example_text(symbol, inputs, outputs)
    exported = ExportedModel(
        name=symbol,
        isa=isa.name,
        object_path=folder / file_name(symbol, "o"),
        header_path=folder / file_name(symbol, "h"),
        weights_path=folder / file_name(symbol, "weights"),
        example_path=folder / "example.c",
        workspace_bytes=workspace.size_bytes,
        weights_bytes=HEADER_BYTES + data.nbytes,
        num_kernels=len(placed.kernels),
        tuned=program.tuned,
    )
    files = (
        FileToWrite(exported.object_path.name, (image,), marks.is_our_object),
        FileToWrite(exported.header_path.name, (marks.marked(header),), marks.is_our_text),
        FileToWrite(exported.weights_path.name, weights_file(data, identity), marks.are_our_weights),
        FileToWrite(exported.example_path.name, (marks.marked(example),), marks.is_our_text),
    )
    write_together(folder, files, force=force)
    return exported


def _copies(graph: Graph, weights: Weights) -> list[Copy]:
    """Outputs that no kernel computes: an input, a constant, an output given twice."""
    inputs = {v: i for i, v in enumerate(graph.inputs)}
    copies: list[Copy] = []
    for position, value in enumerate(graph.outputs):
        size_bytes = tensor_bytes(TensorSpec.of(value))
        if value in inputs:
            copies.append(Copy(position, size_bytes, input=inputs[value]))
        elif value.is_constant:
            copies.append(Copy(position, size_bytes, weights_offset=weights.offset(value)))
        elif value in graph.outputs[:position]:
            raise UnsupportedOp(f"output {value.name!r} is given twice; C programs can copy it themselves.")
    return copies
