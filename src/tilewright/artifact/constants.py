"""The constants of a graph beside its text: tensors by name, and which digest of the text each one is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.text import constants_of

Array = np.ndarray[Any, Any]


def named_constants(graph: Graph) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
    """Tensors under names that a person knows, and `{digest: {"tensor", "dtype", "shape"}}`.

    What is not an initializer, such as the body of a loop, is named by its digest.
    """
    names = {id(v.data): v.name for v in graph.values() if v.data is not None}
    tensors: dict[str, Array] = {}
    table: dict[str, dict[str, Any]] = {}
    for digest, data in constants_of(graph).items():
        name = names.get(id(data), "")
        if not name or name in tensors or name == "__metadata__":
            name = f"sha256:{digest}"
        if isinstance(data, bytes):
            tensors[name] = np.frombuffer(data, np.uint8)
            table[digest] = {"tensor": name}
        else:
            dtype = DType.from_numpy(data.dtype)
            tensors[name] = _strings(data) if dtype is DType.STRING else data
            table[digest] = {"tensor": name, "dtype": str(dtype), "shape": list(data.shape)}
    return tensors, table


def resolved_constants(
    tensors: Mapping[str, Array], table: Mapping[str, Mapping[str, Any]]
) -> dict[str, Array | bytes]:
    """What `named_constants` took apart: constants by digest."""
    return {digest: _resolved(tensors[entry["tensor"]], entry) for digest, entry in table.items()}


def _resolved(tensor: Array, entry: Mapping[str, Any]) -> Array | bytes:
    if "dtype" not in entry:
        return tensor.tobytes()
    dtype = DType[entry["dtype"].upper()]
    if dtype is DType.STRING:
        return np.array(json.loads(tensor.tobytes()), dtype=object).reshape(entry["shape"])
    return tensor.view(dtype.numpy).reshape(entry["shape"])


def _strings(data: Array) -> Array:
    return np.frombuffer(json.dumps([str(x) for x in data.reshape(-1)]).encode(), np.uint8)
