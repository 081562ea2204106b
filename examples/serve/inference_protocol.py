"""The texts of the open inference protocol (version 2): requests to tensors, tensors to answers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from batching import Arrays

TYPES = {
    "BOOL": np.dtype(bool),
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
LENGTH = "Inference-Header-Content-Length"
"""The header that says where the JSON ends and bytes begin."""


class BadRequest(Exception):
    """A request that is not one of the protocol; says what is wrong."""


@dataclass(frozen=True)
class Asked:
    """A request: its tensors, and the outputs that it names, each with whether it is wanted as bytes.

    Outputs that it does not name are wanted where it names none, as bytes if `all_binary`.
    """

    id: str
    feed: Arrays
    outputs: dict[str, bool]
    all_binary: bool


def read_request(body: bytes, length: str | None) -> Asked:
    """What a body asks for, of which JSON has the `length` that a header states, else all of it.

    Raises:
        BadRequest: it is not one of the protocol.
    """
    try:
        at = len(body) if length is None else int(length)
        if not 0 <= at <= len(body):
            raise ValueError(f"{LENGTH} is {at} of {len(body)} bytes")
        head, feed = json.loads(body[:at]), {}
        for tensor in head["inputs"]:
            feed[str(tensor["name"])], at = _tensor(tensor, body, at)
        all_binary = bool(head.get("parameters", {}).get("binary_data_output", False))
        outputs = {
            str(output["name"]): bool(output.get("parameters", {}).get("binary_data", all_binary))
            for output in head.get("outputs") or ()
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise BadRequest(f"no request of the protocol: {error!r}") from error
    return Asked(str(head.get("id", "")), feed, outputs, all_binary)


def _tensor(tensor: dict[str, Any], body: bytes, at: int) -> tuple[np.ndarray[Any, Any], int]:
    """A tensor, in the JSON or `at` a byte of the body, and where the next one would begin."""
    dtype, shape = TYPES[tensor["datatype"]], [int(extent) for extent in tensor["shape"]]
    if min(shape, default=0) < 0:
        raise ValueError(f"{tensor['name']}: shape {shape} has a negative extent")
    size = tensor.get("parameters", {}).get("binary_data_size")
    if size is None:
        return np.array(tensor["data"], dtype).reshape(shape), at
    if size != math.prod(shape) * dtype.itemsize or at + size > len(body):
        raise ValueError(f"{tensor['name']}: {size} bytes are not a tensor of shape {shape}")
    return np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape), at + size


def write_answer(asked: Asked, name: str, found: Arrays) -> tuple[bytes, dict[str, str]]:
    """The body of an answer with the outputs that are asked for, as JSON or as bytes behind it; its headers.

    Raises:
        BadRequest: an output is asked for that there is not.
    """
    tensors, parts = [], []
    for output, is_binary in (asked.outputs or dict.fromkeys(found, asked.all_binary)).items():
        if output not in found:
            raise BadRequest(f"no output {output!r}: there are {', '.join(found)}")
        array = np.ascontiguousarray(found[output])
        tensor: dict[str, Any] = {
            "name": output,
            "datatype": NAMES[array.dtype],
            "shape": found[output].shape,
        }
        if is_binary:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            parts.append(array.tobytes())
        else:
            tensor["data"] = array.ravel().tolist()
        tensors.append(tensor)
    text = json.dumps({"model_name": name, "id": asked.id, "outputs": tensors}).encode()
    if not parts:
        return text, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", LENGTH: str(len(text))}
    return b"".join([text, *parts]), headers
