"""Everything a C program needs of a model, as files in a folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from math import prod
from pathlib import Path
from string import Template

import numpy as np

from tilewright.embed import marks
from tilewright.embed.folder import FileToWrite, require_folder, write_together
from tilewright.embed.module import Copy, Workspace, link_object, run_text
from tilewright.embed.names import CText, comment, file_name, identifier, joined, macro
from tilewright.embed.weights import HEADER_BYTES, MAGIC, VERSION, weights_file
from tilewright.errors import UnsupportedOp
from tilewright.ir.control_flow import CONTROL_FLOW
from tilewright.ir.dtype import DType
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
from tilewright.version import __version__


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


_C_TYPES = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT16: "uint16_t",
    DType.BFLOAT16: "uint16_t",
    DType.BOOL: "uint8_t",
    **{d: f"{d}_t" for d in DType if re.fullmatch(r"u?int(8|16|32|64)", str(d))},
}


def has_c_type(dtype: DType) -> bool:
    """Whether C can be given tensors of this type."""
    return dtype in _C_TYPES


def tensor_bytes(spec: TensorSpec) -> int:
    """Size of an input or output in bytes."""
    return prod(spec.shape) * spec.dtype.size_bytes


def header_text(
    name: CText,
    isa: Isa,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    workspace_bytes: int,
    weights_bytes: int,
    identity: bytes,
    model_sha256: str,
) -> str:
    """The header of a model: sizes, tensors, the function, and the check of its weights."""
    tensors = [*_tensors(name, "INPUT", inputs), *_tensors(name, "OUTPUT", outputs)]
    numbers = [CText(f"0x{byte:02x}") for byte in identity]
    rows = [joined(", ", numbers[i : i + 8]) for i in range(0, len(numbers), 8)]
    facts: dict[str, CText | int] = {
        "isa": comment(isa.name),
        "arch": comment(isa.arch),
        "version": comment(__version__),
        "model_sha256": comment(model_sha256),
        "workspace_bytes": workspace_bytes,
        "weights_bytes": weights_bytes,
        "weights_file_bytes": HEADER_BYTES + weights_bytes,
        "weights_version": VERSION,
        "header_bytes": HEADER_BYTES,
        "magic": CText(MAGIC.decode()),
        "num_inputs": len(inputs),
        "num_outputs": len(outputs),
        "tensors": joined("\n", tensors),
        "identity": joined(",\n        ", rows),
    }
    return _filled("model.h", name, facts)


def example_text(name: CText, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """A program that runs the model on raw tensor files."""
    files = [f" input_{i}.bin" for i in range(len(inputs))]
    files += [f" output_{i}.bin" for i in range(len(outputs))]
    upper = macro(name)
    facts: dict[str, CText | int] = {
        "arguments": CText("".join(files)),
        "input_bytes": CText(", ".join(f"{upper}_INPUT_{i}_BYTES" for i in range(len(inputs))) or "0"),
        "output_bytes": CText(", ".join(f"{upper}_OUTPUT_{i}_BYTES" for i in range(len(outputs))) or "0"),
    }
    return _filled("example.c", name, facts)


def _filled(template: str, name: CText, facts: Mapping[str, CText | int]) -> str:
    text = resources.files("tilewright.embed").joinpath("templates", template).read_text("utf-8")
    return Template(text).substitute(facts, name=name, upper=macro(name))


def _tensors(name: CText, kind: str, specs: Sequence[TensorSpec]) -> list[CText]:
    lines: list[CText] = []
    for number, spec in enumerate(specs):
        shape = "".join(f"[{extent}]" for extent in spec.shape)
        label = f"{kind.lower()} {number}: {_C_TYPES[spec.dtype]} {comment(spec.name)}{shape}"
        lines.append(CText(f"/* {label} */"))
        lines.append(CText(f"#define {macro(name)}_{kind}_{number}_BYTES {tensor_bytes(spec)}u"))
    return lines
