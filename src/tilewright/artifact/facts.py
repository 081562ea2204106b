"""The readable part of a manifest: what was compiled, from what, with which options, into which steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

from tilewright.artifact.members import SHAPES
from tilewright.artifact.qualities import decode_cost, encode_cost
from tilewright.compiled_facts import (
    CompiledFacts,
    MeasuredError,
    ModelMetadata,
    OpenTensorInfo,
    TensorInfo,
    tensor_info,
)
from tilewright.edges import NO_EDGES, Edges
from tilewright.errors import UsageError
from tilewright.fields import FieldError, field_of, inside, sha256_text
from tilewright.options import Options
from tilewright.planning import UNLIMITED, Budget
from tilewright.requests import types_of
from tilewright.steps import MemoryInfo, NodeOrigin, StepInfo
from tilewright.target_ref import TargetRef


def encode_facts(facts: CompiledFacts) -> dict[str, Any]:
    """Plain values."""
    return {
        "target": str(facts.target),
        "tool_version": facts.tool_version,
        "model_sha256": facts.model_sha256,
        "options": json.loads(facts.options.to_json()),
        "inputs": [i.to_json() for i in facts.inputs],
        "outputs": [o.to_json() for o in facts.outputs],
        "steps": [asdict(step) for step in facts.steps],
        "memory": None if facts.memory is None else _memory(facts.memory),
        "origins": [asdict(origin) for origin in facts.origins],
        "error": None if facts.error is None else asdict(facts.error),
        "cost": None if facts.cost is None else encode_cost(facts.cost),
        "metadata": asdict(facts.metadata),
        **({"edges": asdict(facts.edges)} if facts.edges else {}),
    }


def _memory(memory: MemoryInfo) -> dict[str, Any]:
    """Levels are said where the other fields do not say all, as they do of an arena without a limit."""
    document = asdict(memory)
    if memory == replace(memory, levels=()):
        del document["levels"]
        for buffer in document["buffers"]:
            del buffer["level"]
    return document


def decode_facts(document: Any) -> CompiledFacts:
    """What `encode_facts` described.

    Raises:
        FieldError: naming a field that is missing or of another type.
        UsageError: options that make no sense.
    """
    read = partial(field_of, document)
    stored = read("options", dict[str, Any])
    with inside("options"):
        options = decode_options(stored)
    # The first artifacts have no error, no cost and no metadata.
    error = read("error", MeasuredError | None) if "error" in document else None
    stored_cost = read("cost", dict[str, Any] | None) if "cost" in document else None
    with inside("cost"):
        cost = None if stored_cost is None else decode_cost(stored_cost)
    metadata = read("metadata", ModelMetadata) if "metadata" in document else ModelMetadata()
    edges = read("edges", Edges) if "edges" in document else NO_EDGES
    tensor: Any = OpenTensorInfo if SHAPES in document else TensorInfo
    facts = CompiledFacts(
        target=_target(read("target", str)),
        tool_version=read("tool_version", str),
        model_sha256=sha256_text(read("model_sha256", str)),
        options=options,
        inputs=_tensors(read("inputs", tuple[tensor, ...])),
        outputs=_tensors(read("outputs", tuple[tensor, ...])),
        steps=read("steps", tuple[StepInfo, ...]),
        memory=read("memory", MemoryInfo | None),
        origins=read("origins", tuple[NodeOrigin, ...]),
        error=error,
        cost=cost,
        metadata=metadata,
        edges=edges,
    )
    for position, step in enumerate(facts.steps):
        if step.index != position:
            raise FieldError(f"expected {position}, found {step.index}", f".steps[{position}].index")
    return facts


def _target(text: str) -> TargetRef:
    with inside("target"):
        try:
            return TargetRef.parse(text)
        except UsageError as error:
            raise FieldError(str(error)) from error


def _tensors(infos: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    return tuple(tensor_info(info.name, info.dtype, info.shape) for info in infos)


def decode_options(document: Mapping[str, Any]) -> Options:
    """Options from their canonical JSON; fields that this version does not know are left out.

    So are those that cannot change an artifact: where a cache lies, or how long to wait, is said where the
    file is opened.
    """
    hints = types_of(Options)
    settings: dict[str, Any] = {}
    for name in (f.name for f in fields(Options) if f.metadata["key"] and f.name in document):
        if name == "budget" and document[name] is not None:
            asked = field_of(document, name, dict[str, Any])
            with inside(name):
                evaluations = field_of(asked, "evaluations", int | None)
                deadline_s = field_of(asked, "deadline_s", float | None)
            settings[name] = Budget(UNLIMITED if evaluations is None else evaluations, deadline_s)
        elif name == "target":
            settings[name] = _target(field_of(document, name, str))
        else:
            settings[name] = field_of(document, name, hints[name])
    return Options(**settings)
