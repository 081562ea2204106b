"""The C side of an exported model: its header and an example program, from the files in `templates/`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from math import prod
from string import Template

from tilewright import __version__
from tilewright.embed.weights import HEADER_BYTES, MAGIC, VERSION
from tilewright.ir.dtype import DType
from tilewright.targets.cpu.executable import TensorSpec
from tilewright.targets.cpu.isa import Isa

_C_TYPES = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT16: "uint16_t",
    DType.BFLOAT16: "uint16_t",
    DType.BOOL: "uint8_t",
    **{d: f"{d}_t" for d in DType if re.fullmatch(r"u?int(8|16|32|64)", str(d))},
}


def c_name(text: str) -> str:
    """A C identifier made of a name; `model_` keeps it apart from digits and from words of C.

    >>> c_name("resnet50-v1.5"), c_name("3d net"), c_name("main")
    ('resnet50_v1_5', 'model_3d_net', 'main')
    """
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "model"
    return f"model_{name}" if name[0].isdigit() else name


def has_c_type(dtype: DType) -> bool:
    """Whether C can be given tensors of this type."""
    return dtype in _C_TYPES


def tensor_bytes(spec: TensorSpec) -> int:
    """Size of an input or output in bytes."""
    return prod(spec.shape) * spec.dtype.size_bytes


def header_text(
    name: str,
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
    numbers = [f"0x{byte:02x}" for byte in identity]
    facts = {
        "isa": isa.name,
        "arch": isa.arch,
        "version": __version__,
        "model_sha256": model_sha256,
        "workspace_bytes": workspace_bytes,
        "weights_bytes": weights_bytes,
        "weights_file_bytes": HEADER_BYTES + weights_bytes,
        "weights_version": VERSION,
        "header_bytes": HEADER_BYTES,
        "magic": MAGIC.decode(),
        "num_inputs": len(inputs),
        "num_outputs": len(outputs),
        "tensors": "\n".join(tensors),
        "identity": ",\n        ".join(", ".join(numbers[i : i + 8]) for i in range(0, len(numbers), 8)),
    }
    return _filled("model.h", name, facts)


def example_text(name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """A program that runs the model on raw tensor files."""
    upper = name.upper()
    files = [f" input_{i}.bin" for i in range(len(inputs))]
    files += [f" output_{i}.bin" for i in range(len(outputs))]
    facts = {
        "arguments": "".join(files),
        "input_bytes": ", ".join(f"{upper}_INPUT_{i}_BYTES" for i in range(len(inputs))) or "0",
        "output_bytes": ", ".join(f"{upper}_OUTPUT_{i}_BYTES" for i in range(len(outputs))),
    }
    return _filled("example.c", name, facts)


def _filled(template: str, name: str, facts: Mapping[str, object]) -> str:
    text = resources.files("tilewright.embed").joinpath("templates", template).read_text("utf-8")
    return Template(text).substitute(facts, name=name, upper=name.upper())


def _tensors(name: str, kind: str, specs: Sequence[TensorSpec]) -> list[str]:
    lines: list[str] = []
    for number, spec in enumerate(specs):
        shape = "".join(f"[{extent}]" for extent in spec.shape)
        lines.append(f"/* {kind.lower()} {number}: {_C_TYPES[spec.dtype]} {_comment(spec.name)}{shape} */")
        lines.append(f"#define {name.upper()}_{kind}_{number}_BYTES {tensor_bytes(spec)}u")
    return lines


def _comment(text: str) -> str:
    """A tensor's name within a comment: printable, and unable to end it."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/").replace("??", "? ?")
