"""The readable part of a manifest: what was compiled, from what, with which options, into which steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tilewright.compiled import CompiledFacts, MeasuredError, TensorInfo
from tilewright.explain import NodeOrigin
from tilewright.ir.dtype import DType
from tilewright.options import Options
from tilewright.planning import UNLIMITED, Budget
from tilewright.steps import BufferInfo, KernelInfo, MemoryInfo, StepInfo


def encode_facts(facts: CompiledFacts) -> dict[str, Any]:
    """Plain values."""
    return {
        "target": facts.target,
        "tool_version": facts.tool_version,
        "model_sha256": facts.model_sha256,
        "options": json.loads(facts.options.to_json()),
        "inputs": [i.to_json() for i in facts.inputs],
        "outputs": [o.to_json() for o in facts.outputs],
        "steps": [asdict(step) for step in facts.steps],
        "memory": None if facts.memory is None else asdict(facts.memory),
        "origins": [asdict(origin) for origin in facts.origins],
        "error": None if facts.error is None else asdict(facts.error),
    }


def decode_facts(document: Mapping[str, Any]) -> CompiledFacts:
    """What `encode_facts` described.

    Raises:
        ValueError, KeyError, TypeError: something is missing or of another type.
    """
    memory, error = document["memory"], document.get("error")  # the first artifacts have no error
    return CompiledFacts(
        target=_text(document["target"]),
        tool_version=_text(document["tool_version"]),
        model_sha256=_text(document["model_sha256"]),
        options=decode_options(document["options"]),
        inputs=tuple(_tensor(t) for t in document["inputs"]),
        outputs=tuple(_tensor(t) for t in document["outputs"]),
        steps=tuple(
            StepInfo(step["index"], tuple(_kernel(k) for k in step["kernels"])) for step in document["steps"]
        ),
        memory=None if memory is None else _memory(memory),
        origins=tuple(
            NodeOrigin(o["name"], o["op_type"], tuple(o["became"]), o["note"]) for o in document["origins"]
        ),
        error=None if error is None else MeasuredError(**error),
    )


def decode_options(document: Mapping[str, Any]) -> Options:
    """Options from their canonical JSON; fields that this version does not know are left out."""
    known = {f.name for f in fields(Options)}
    settings = {name: value for name, value in document.items() if name in known}
    if settings.get("budget") is not None:
        evaluations, deadline_s = settings["budget"]["evaluations"], settings["budget"]["deadline_s"]
        settings["budget"] = Budget(UNLIMITED if evaluations is None else evaluations, deadline_s)
    if "shapes" in settings:
        settings["shapes"] = {name: tuple(shape) for name, shape in settings["shapes"].items()}
    for name, value in settings.items():
        if isinstance(value, list):
            settings[name] = tuple(value)
    return Options(**settings)


def decode_tensor(document: Mapping[str, Any]) -> tuple[str, DType, tuple[int, ...]]:
    """Name, type and shape."""
    shape = tuple(document["shape"])
    if not all(isinstance(d, int) and d >= 0 for d in shape):
        raise ValueError(f"shape {shape}")
    return _text(document["name"]), DType[document["dtype"].upper()], shape


def _tensor(document: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(*decode_tensor(document))


def _kernel(document: Mapping[str, Any]) -> KernelInfo:
    lists = {name: tuple(document[name]) for name in ("nodes", "notes")}
    return KernelInfo(**{**document, **lists})


def _memory(document: Mapping[str, Any]) -> MemoryInfo:
    return MemoryInfo(**{**document, "buffers": tuple(BufferInfo(**b) for b in document["buffers"])})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
