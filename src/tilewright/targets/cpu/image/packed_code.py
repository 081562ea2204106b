"""Machine code and its tables as an artifact keeps them: what `CpuStore` reads again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.files import Bytes
from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.graph import Graph, Value
from tilewright.ir.text import constant_digest
from tilewright.targets.cpu.arrangements import FewBitPanels
from tilewright.targets.cpu.image.arrangement_document import encode_arrangement
from tilewright.targets.cpu.image.image import CpuImage
from tilewright.targets.cpu.image.origin import CONSTANTS, OPERATORS_OWN, MadeFor
from tilewright.targets.cpu.lower.lowered import PackedTensor, Storage, Table
from tilewright.targets.cpu.lower.storage import Weights
from tilewright.targets.cpu.runtime.executable import TensorSpec
from tilewright.targets.cpu.runtime.main_code import ArgRef
from tilewright.targets.stored import StoredCode

RUNTIME_OBJECT = "objects/runtime.o"


def packed_image(image: CpuImage, graph: Graph, weights: Weights | None) -> StoredCode:
    """The objects, how the constants of the graph are arranged for them, and the tables of the main.

    Without `weights`, for a reader that has no graph, the arena of constants as it is.
    """
    graph.require_unchanged()
    facts = _tables(image, graph)
    parts: dict[str, tuple[Bytes, ...]] = {}
    if weights is not None:
        facts["constants"], own = _constants(weights)
        if own:
            parts[OPERATORS_OWN] = tuple(own)
    else:
        arena = np.zeros(image.constants.size_bytes, np.uint8)
        image.constants.fill(arena)
        parts[CONSTANTS] = (arena.data,) if arena.size else ()
    names = [f"objects/{number:05d}.o" for number in range(len(image.objects) - 1)] + ["objects/main.o"]
    parts |= {name: (data,) for name, data in zip(names, image.objects, strict=True)}
    facts |= {"objects": names, "runtime": None}
    if image.runtime is not None:
        facts["runtime"] = RUNTIME_OBJECT
        parts[RUNTIME_OBJECT] = (image.runtime,)
    return StoredCode(MadeFor.of(image).to_json(), facts, parts)


def _constants(weights: Weights) -> tuple[dict[str, Any], list[Bytes]]:
    """Which constant lies where in the arena and how; and the bytes of those that are not the graph's."""
    sources: list[dict[str, Any]] = []
    tables: list[Bytes] = []
    end = 0
    digests: dict[Value, str] = {}
    for offset, storage in weights.sources:
        data = _own_data(storage)
        if data is not None:
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            if raw.nbytes:
                sources.append({"offset": offset, "own": [end, end + raw.nbytes]})
                tables.append(raw.data)
                end += raw.nbytes
        else:
            sources.append({"offset": offset, **_arranged(storage, digests)})
    return {"size_bytes": weights.size_bytes, "sources": sources}, tables


def _own_data(storage: Storage) -> Array | None:
    """What is no constant of a stored graph: an operator's own, numbers that the graph has as floats."""
    if isinstance(storage, Table):
        return storage.operand.data
    if not isinstance(storage, PackedTensor):
        return None
    stored, arrangement = storage.value.stored, storage.packed.arrangement
    is_as_stored = isinstance(stored, BlockWeights) and isinstance(arrangement, FewBitPanels)
    return arrangement.arrange(stored) if is_as_stored else None


def _arranged(storage: Storage, digests: dict[Value, str]) -> dict[str, Any]:
    """A constant of the graph by its digest, as what it is read, and its arrangement."""
    value = storage.value if isinstance(storage, PackedTensor) else storage
    assert isinstance(value, Value)
    assert value.data is not None
    if value not in digests:
        digests[value] = constant_digest(value.data)
    packed = storage.packed if isinstance(storage, PackedTensor) else None
    return {
        "constant": digests[value],
        "dtype": str(value.dtype),
        "shape": list(value.shape),
        "size_bytes": value.size_bytes if packed is None else packed.size_bytes,
        "arrangement": None if packed is None else encode_arrangement(packed.arrangement),
    }


def _tables(image: CpuImage, graph: Graph) -> dict[str, Any]:
    position = {node: i for i, node in enumerate(graph.nodes)}
    main = image.main
    return {
        "inputs": [_tensor(t) for t in image.inputs],
        "outputs": [_tensor(t) for t in image.outputs],
        "passthrough": _passthrough(image.passthrough),
        "arena_bytes": image.arena_bytes,
        "scratch_bytes": image.scratch_bytes,
        "row_axes": dict(image.row_axes),
        "rows_share": image.rows_share,
        "host_steps": [
            {"node": position[s.node], "inputs": _refs(s.inputs), "outputs": _refs(s.outputs)}
            for s in image.host_steps
        ],
        "accuracy": None if image.body_options is None else image.body_options.accuracy,
        "index_checks": [asdict(check) for check in image.index_checks],
        "main": {
            "segments": [s if isinstance(s, str) else s.callback_index for s in main.segments],
            "kernel_symbols": list(main.kernel_symbols),
            "arg_table": [[ref.base_index, ref.byte_offset] for ref in main.arg_table],
            "num_bases": main.num_bases,
            "num_steps": main.num_steps,
            "profile": main.profile,
        },
    }


def _passthrough(sources: Mapping[str, Array | str]) -> dict[str, str | None]:
    """None stands for the constant that is the output of that name."""
    return {name: source if isinstance(source, str) else None for name, source in sources.items()}


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)}


def _refs(refs: tuple[ArgRef | None, ...]) -> list[list[int] | None]:
    return [None if ref is None else [ref.base_index, ref.byte_offset] for ref in refs]
