"""The C side of an exported model: its header and an example program, from the files in `templates/`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from math import prod
from string import Template

from tilewright.embed.names import CText, comment, joined, macro
from tilewright.embed.weights import HEADER_BYTES, MAGIC, VERSION
from tilewright.ir.dtype import DType
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.runtime.executable import TensorSpec
from tilewright.version import __version__

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
