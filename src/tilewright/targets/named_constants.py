"""The constants of a graph beside its text: tensors by name, and which digest of the text each one is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.arrays import Array
from tilewright.fields import FieldError, decoded, parsed_json
from tilewright.ir.dtype import DType
from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph


def named_constants(
    graph: Graph, digests: Callable[[Array], str] | None = None
) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
    """Tensors under names that a person knows, and `{digest: {"tensor", "dtype", "shape"}}`.

    `digests` gives those of constants, which may be known. What is not an initializer, such as the body of a
    loop, is named by its digest.
    """
    from tilewright.ir.text import constant_digest, constants_of

    graph.require_unchanged()
    # Held, as those that are made of numbers of few bits are gone otherwise, and their place is another's.
    held = [(v.data, v.name) for v in graph.values() if v.is_constant]
    names = {id(data): name for data, name in held}
    tensors: dict[str, Array] = {}
    table: dict[str, dict[str, Any]] = {}
    for digest, data in constants_of(graph, digests or constant_digest).items():
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


@dataclass(frozen=True, slots=True)
class _ConstantFields:
    tensor: str
    dtype: DType | None = None
    shape: tuple[int, ...] | None = None


def resolved_constants(tensors: Mapping[str, Array], document: Any) -> dict[str, Array | bytes]:
    """What `named_constants` took apart: constants by digest.

    Raises:
        FieldError: naming the entry that is none, or whose tensor does not fit it.
    """
    table = decoded(dict[str, _ConstantFields], document)
    return {digest: _resolved(tensors, digest, entry) for digest, entry in table.items()}


def _resolved(tensors: Mapping[str, Array], digest: str, entry: _ConstantFields) -> Array | bytes:
    tensor = tensors.get(entry.tensor)
    if tensor is None:
        raise FieldError(f"tensor {entry.tensor[:40]!r} is missing", f".constants.{digest[:40]}")
    if entry.dtype is None:
        return tensor.tobytes()
    shape = entry.shape or ()
    if entry.dtype is DType.STRING:
        texts = decoded(tuple[str, ...], parsed_json(tensor.tobytes()))
        if len(texts) == math.prod(shape):
            return np.array(texts, dtype=object).reshape(shape)
    elif tensor.nbytes == math.prod(shape) * entry.dtype.size_bytes:
        flat = tensor.reshape(-1).view(np.uint8)
        if entry.dtype is DType.BOOL and flat.size and int(flat.max()) > 1:  # code computes with the byte
            raise FieldError("a byte that is neither true nor false", f".constants.{digest[:40]}")
        return flat.view(entry.dtype.numpy).reshape(shape)
    raise FieldError(
        f"tensor {entry.tensor[:40]!r} is not {entry.dtype}{list(shape)}", f".constants.{digest[:40]}"
    )


def _strings(data: Array) -> Array:
    return np.frombuffer(json.dumps([str(x) for x in data.reshape(-1)]).encode(), np.uint8)
