"""Machine code and its tables in an artifact: `native.json`, `objects/*.o`, `constants.bin`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.artifact.container import Archive, Member
from tilewright.artifact.facts import decode_tensor
from tilewright.ir.graph import Graph
from tilewright.targets.cpu.executable import HostStep, TensorSpec
from tilewright.targets.cpu.image import CpuImage
from tilewright.targets.cpu.runtime import ArgRef, HostCall, MainCode

Array = np.ndarray[Any, Any]

TABLES = "native.json"
CONSTANTS = "constants.bin"
_MAIN_OBJECT = "objects/main.o"


def native_members(image: CpuImage, graph: Graph) -> tuple[dict[str, Any], tuple[Member, ...]]:
    """The tables as plain values, and the binary members."""
    constants = np.zeros(image.constants.size_bytes, np.uint8)
    image.constants.fill(constants)
    names = [f"objects/{number:05d}.o" for number in range(len(image.objects) - 1)] + [_MAIN_OBJECT]
    members = [Member(CONSTANTS, (constants.data,) if constants.size else ())]
    members += [Member(name, (data,)) for name, data in zip(names, image.objects, strict=True)]
    return _encode_tables(image, graph, names), tuple(members)


def read_image(archive: Archive, graph: Callable[[], Graph]) -> CpuImage:
    """The image of an artifact whose code may be loaded. `graph` is called only for host operators."""
    tables = archive.json(TABLES)
    with archive.decoding():
        objects = tuple(archive.read(name) for name in tables["objects"])
        nodes = graph().nodes if tables["host_steps"] else ()
        return CpuImage(
            isa_name=tables["isa"],
            isa_fingerprint=tables["isa_fingerprint"],
            toolchain=tables["toolchain"],
            inputs=tuple(TensorSpec(*decode_tensor(t)) for t in tables["inputs"]),
            outputs=tuple(TensorSpec(*decode_tensor(t)) for t in tables["outputs"]),
            passthrough=_read_passthrough(tables["passthrough"], graph),
            main=_read_main(tables["main"]),
            objects=objects,
            constants=StoredConstants(archive),
            host_steps=tuple(
                HostStep(nodes[step["node"]], _read_refs(step["inputs"]), _read_refs(step["outputs"]))
                for step in tables["host_steps"]
            ),
            arena_bytes=int(tables["arena_bytes"]),
            scratch_bytes=int(tables["scratch_bytes"]),
        )


@dataclass(frozen=True, slots=True)
class StoredConstants:
    """The arena of constants, read straight to where it is used."""

    archive: Archive

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.archive.size_of(CONSTANTS)

    def fill(self, target: Array) -> None:
        """Read all of it."""
        if self.size_bytes:
            self.archive.read_into(CONSTANTS, target[: self.size_bytes].data)


def _encode_tables(image: CpuImage, graph: Graph, object_names: list[str]) -> dict[str, Any]:
    position = {node: i for i, node in enumerate(graph.nodes)}
    main = image.main
    return {
        "isa": image.isa_name,
        "isa_fingerprint": image.isa_fingerprint,
        "toolchain": image.toolchain,
        "inputs": [_tensor(t) for t in image.inputs],
        "outputs": [_tensor(t) for t in image.outputs],
        "passthrough": {
            name: source if isinstance(source, str) else None for name, source in image.passthrough.items()
        },
        "objects": object_names,
        "arena_bytes": image.arena_bytes,
        "scratch_bytes": image.scratch_bytes,
        "host_steps": [
            {"node": position[s.node], "inputs": _refs(s.inputs), "outputs": _refs(s.outputs)}
            for s in image.host_steps
        ],
        "main": {
            "segments": [s if isinstance(s, str) else s.callback_index for s in main.segments],
            "kernel_symbols": list(main.kernel_symbols),
            "arg_table": [[ref.base_index, ref.byte_offset] for ref in main.arg_table],
            "num_bases": main.num_bases,
            "num_steps": main.num_steps,
            "profile": main.profile,
        },
    }


def _read_main(document: Mapping[str, Any]) -> MainCode:
    return MainCode(
        ir_text="",
        segments=tuple(s if isinstance(s, str) else HostCall(int(s)) for s in document["segments"]),
        kernel_symbols=tuple(document["kernel_symbols"]),
        arg_table=tuple(ArgRef(int(base), int(offset)) for base, offset in document["arg_table"]),
        num_bases=int(document["num_bases"]),
        num_steps=int(document["num_steps"]),
        profile=bool(document["profile"]),
    )


def _read_passthrough(
    document: Mapping[str, str | None], graph: Callable[[], Graph]
) -> dict[str, Array | str]:
    """None stands for the constant that is the output of that name."""
    result: dict[str, Array | str] = {}
    for name, source in document.items():
        if source is not None:
            result[name] = source
            continue
        data = next(v.data for v in graph().outputs if v.name == name)
        if data is None:
            raise ValueError(f"output {name!r} is not constant")
        result[name] = data
    return result


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)}


def _refs(refs: tuple[ArgRef | None, ...]) -> list[list[int] | None]:
    return [None if ref is None else [ref.base_index, ref.byte_offset] for ref in refs]


def _read_refs(document: list[list[int] | None]) -> tuple[ArgRef | None, ...]:
    return tuple(None if ref is None else ArgRef(int(ref[0]), int(ref[1])) for ref in document)
