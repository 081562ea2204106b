"""Writes the hostile corpus: model files that must be refused, each in a folder of its own.

`python tests/hostile/generate.py FOLDER` writes it; every case says which error it must meet and a word of
its message. Files outside the cases' folders, which nobody may read, lie in `FOLDER/outside`.
"""

# mypy: disable-error-code="arg-type, func-returns-value"

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

REJECTED, UNSUPPORTED, USAGE = "ModelRejected", "UnsupportedOp", "UsageError"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass(frozen=True, slots=True)
class HostileFile:
    """One case: the path to load, the error it must meet, and what its message must mention."""

    name: str
    path: Path
    error: str
    mentions: str


Write = Callable[[Path], None]
Case = tuple[str, Write, str, str]


def write_corpus(folder: Path) -> tuple[HostileFile, ...]:
    """Write every case below `folder`, which must be empty."""
    outside = folder / "outside"
    outside.mkdir(parents=True)
    (outside / "secret.bin").write_bytes(bytes(8))
    files: list[HostileFile] = []
    for name, write, error, mentions in (
        *_not_models(),
        *_external(),
        *_tensors(),
        *_structure(),
        *_operators(),
    ):
        case = folder / name
        case.mkdir()
        path = case / "model.onnx"
        write(path)
        files.append(HostileFile(name, path, error, mentions))
    return tuple(files)


# Building blocks: a valid model, and ways to save a broken variant of it.


def info(name: str, kind: int = FLOAT, shape: tuple[int | str | None, ...] | None = (2,)) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[NodeProto] | None = None,
    inputs: list[ValueInfoProto] | None = None,
    outputs: list[ValueInfoProto] | None = None,
    initializers: list[TensorProto] | None = None,
    opset: int = 17,
) -> ModelProto:
    """`y = Relu(x)` unless told otherwise."""
    graph = helper.make_graph(
        nodes if nodes is not None else [helper.make_node("Relu", ["x"], ["y"])],
        "hostile",
        inputs if inputs is not None else [info("x")],
        outputs if outputs is not None else [info("y")],
        initializers or [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def saved(proto: ModelProto) -> Write:
    return lambda path: _write(path, proto.SerializeToString())


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def with_weight(weight: TensorProto) -> ModelProto:
    """`y = x + w`."""
    return model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[weight])


def external_weight(dims: tuple[int, ...] = (2,), **entries: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def weight(**fields: Any) -> TensorProto:
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[2])
    for key, value in fields.items():
        if key == "dims":
            del tensor.dims[:]
        if isinstance(value, list):
            getattr(tensor, key).extend(value)
        else:
            setattr(tensor, key, value)
    return tensor


def constant(name: str, values: list[int]) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


# The cases.


def _not_models() -> Iterator[Case]:
    good = model().SerializeToString()
    noise = np.random.default_rng(7).integers(0, 256, 4096, np.uint8).tobytes()
    yield "empty_file", lambda p: _write(p, b""), REJECTED, "empty"
    yield (
        "text_file",
        lambda p: _write(p, b"This is a README.\nNot a model.\n"),
        REJECTED,
        "not an ONNX model",
    )
    yield "html_error_page", lambda p: _write(p, b"<!DOCTYPE html><html>404</html>"), REJECTED, "not an ONNX"
    yield (
        "lfs_pointer",
        lambda p: _write(p, b"version https://git-lfs.github.com/spec/v1\n"),
        REJECTED,
        "not an",
    )
    yield "zip_archive", lambda p: _write(p, b"PK\x03\x04" + noise), USAGE, "another archive"
    yield "random_bytes", lambda p: _write(p, noise), REJECTED, "not an ONNX model"
    yield "truncated", lambda p: _write(p, good[: len(good) * 2 // 3]), REJECTED, "not an ONNX model"
    yield "no_graph", saved(ModelProto(ir_version=8)), REJECTED, "no graph"
    bare = model()
    bare.ClearField("ir_version")
    yield "no_ir_version", saved(bare), REJECTED, "no ir_version"
    yield "folder_as_model", lambda p: p.mkdir(), REJECTED, "folder"
    yield "fifo_as_model", lambda p: os.mkfifo(p), REJECTED, "not a regular file"
    yield "device_as_model", lambda p: p.symlink_to("/dev/zero"), REJECTED, "not a regular file"
    yield "missing_model", lambda p: None, USAGE, "no such file"
    yield "deep_nesting_million", lambda p: _write(p, _nested_bytes(1_000_000)), REJECTED, "nested too deeply"
    yield "deep_nesting_thirty", saved(_nested_model(30)), REJECTED, "nest"


def _nested_bytes(depth: int) -> bytes:
    """graph { node { attribute { g { node { ... as raw protocol buffers, written from the inside out."""
    tags = (b"\x0a", b"\x2a", b"\x32")  # GraphProto.node = 1, NodeProto.attribute = 5, AttributeProto.g = 6
    parts: list[bytes] = []
    size = 0
    for level in range(depth):
        head = tags[(depth - 1 - level) % 3] + _varint(size)
        parts.append(head)
        size += len(head)
    return b"\x08\x08" + b"\x3a" + _varint(size) + b"".join(reversed(parts))


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def _nested_model(depth: int) -> ModelProto:
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["r0"])], "b0", [], [info("r0")])
    for level in range(1, depth):
        node = helper.make_node("If", ["c"], [f"r{level}"])
        for branch in ("then_branch", "else_branch"):
            # The other branch stays flat, or the file would double with every level.
            flat = helper.make_graph(
                [helper.make_node("Relu", ["x"], [f"f{level}"])], "f", [], [info(f"f{level}")]
            )
            node.attribute.append(helper.make_attribute(branch, body if branch == "then_branch" else flat))
        body = helper.make_graph([node], f"b{level}", [], [info(f"r{level}")])
    top = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    return model([top], [info("x"), info("c", TensorProto.BOOL, ())])


def _external() -> Iterator[Case]:
    def at(location: str, **entries: str) -> Write:
        return saved(with_weight(external_weight(location=location, **entries)))

    def beside(prepare: Callable[[Path], None], location: str = "w.bin", **entries: str) -> Write:
        def write(path: Path) -> None:
            prepare(path.parent)
            at(location, **entries)(path)

        return write

    def secret(folder: Path) -> Path:
        return folder.parent / "outside" / "secret.bin"

    def parent_link(folder: Path) -> None:
        (folder / "data").symlink_to(folder.parent / "outside")

    def inner_link(folder: Path) -> None:
        (folder / "real").mkdir()
        (folder / "real" / "w.bin").write_bytes(bytes(8))
        (folder / "data").symlink_to("real")

    def sparse_file(folder: Path) -> None:
        with open(folder / "w.bin", "wb") as file:
            file.truncate(2**40)

    def eight_bytes(folder: Path) -> None:
        (folder / "w.bin").write_bytes(bytes(8))

    yield "data_parent_folder", at("../outside/secret.bin"), REJECTED, "leave the model's folder"
    yield "data_nested_parent", at("a/../../outside/secret.bin"), REJECTED, "leave the model's folder"
    yield "data_dot_parent", at("./../outside/secret.bin"), REJECTED, "leave the model's folder"
    yield (
        "data_absolute",
        lambda p: at(str(secret(p.parent)))(p),
        REJECTED,
        "leave the model's folder",
    )
    yield "data_etc_passwd", at("/etc/passwd"), REJECTED, "leave the model's folder"
    yield "data_proc_mem", at("/proc/self/mem"), REJECTED, "leave the model's folder"
    yield "data_backslash_parent", at("..\\outside\\secret.bin"), REJECTED, "leave the model's folder"
    yield "data_nul_in_name", at("w.bin\0.txt"), REJECTED, "leave the model's folder"
    yield "data_memory_address", at("*/_ORT_MEM_ADDR_/*", offset="4096"), REJECTED, "cannot be opened"
    yield "data_symlink", beside(lambda f: (f / "w.bin").symlink_to(secret(f))), REJECTED, "links are refused"
    yield "data_parent_symlink", beside(parent_link, "data/secret.bin"), REJECTED, "links are refused"
    yield "data_inner_symlink", beside(inner_link, "data/w.bin"), REJECTED, "links are refused"
    yield "data_symlink_loop", beside(lambda f: (f / "w.bin").symlink_to("w.bin")), REJECTED, "links are"
    yield "data_device_link", beside(lambda f: (f / "w.bin").symlink_to("/dev/zero")), REJECTED, "links are"
    yield "data_hard_link", beside(lambda f: os.link(secret(f), f / "w.bin")), REJECTED, "hard link"
    yield "data_fifo", beside(lambda f: os.mkfifo(f / "w.bin")), REJECTED, "not a regular file"
    yield "data_is_folder", beside(lambda f: (f / "w.bin").mkdir()), REJECTED, "not a regular file"
    yield "data_below_a_file", beside(eight_bytes, "w.bin/inner"), REJECTED, "cannot be opened"
    yield "data_missing", at("w.bin"), REJECTED, "cannot be opened"
    yield "data_name_too_long", at("w" * 5000), REJECTED, "cannot be opened"
    yield "data_empty_location", at(""), REJECTED, "no 'location'"
    yield "data_no_location", saved(with_weight(external_weight(offset="0"))), REJECTED, "no 'location'"
    yield "data_dot_location", at("."), REJECTED, "name no file"
    yield "data_negative_offset", beside(eight_bytes, offset="-8"), REJECTED, "'offset'"
    yield "data_negative_length", beside(eight_bytes, length="-8"), REJECTED, "'length'"
    yield "data_overflowing_offset", beside(eight_bytes, offset=str(2**63)), REJECTED, "'offset'"
    yield "data_huge_offset", beside(eight_bytes, offset=str(2**63 - 4)), REJECTED, "are wanted"
    yield "data_hex_offset", beside(eight_bytes, offset="0x0"), REJECTED, "'offset'"
    yield "data_blank_in_offset", beside(eight_bytes, offset=" 0"), REJECTED, "'offset'"
    yield "data_other_digits", beside(eight_bytes, offset="\u0660"), REJECTED, "'offset'"
    yield "data_past_the_end", beside(eight_bytes, offset="4"), REJECTED, "are wanted"
    yield "data_short_length", beside(eight_bytes, length="4"), REJECTED, "'length' is 4"
    yield "data_long_length", beside(eight_bytes, length="4096"), REJECTED, "'length' is 4096"
    yield "data_unknown_key", beside(eight_bytes, __class__="x"), REJECTED, "unknown external data key"
    yield "data_base_path", beside(eight_bytes, basepath="/etc"), REJECTED, "basepath"
    twice = external_weight(location="w.bin")
    twice.external_data.add(key="location", value="../outside/secret.bin")
    yield "data_key_twice", saved(with_weight(twice)), REJECTED, "given twice"
    terabyte = external_weight((2**38,), location="w.bin")
    yield (
        "data_sparse_terabyte",
        lambda p: (sparse_file(p.parent), saved(with_weight(terabyte))(p))[1],
        REJECTED,
        "no machine could run",
    )
    hidden = external_weight(location="../outside/secret.bin")
    node = helper.make_node("Constant", [], ["w"], value=hidden)
    yield (
        "data_in_attribute",
        saved(model([node, helper.make_node("Add", ["x", "w"], ["y"])])),
        REJECTED,
        "leave the model's folder",
    )
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["b"])], "branch", [], [info("b")], [hidden]
    )
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    yield (
        "data_in_body",
        saved(model([choice], [info("x"), info("c", TensorProto.BOOL, ())])),
        REJECTED,
        "leave the model's folder",
    )


def _tensors() -> Iterator[Case]:
    def add(**fields: Any) -> Write:
        return saved(with_weight(weight(**fields)))

    yield "dims_near_2_63", add(dims=[2**63 - 1], raw_data=bytes(8)), REJECTED, "no machine could run"
    yield "dims_overflow_product", add(dims=[2**32, 2**32], raw_data=b""), REJECTED, "no machine could run"
    yield "dims_huge_but_empty", add(dims=[2**62, 0], raw_data=b""), REJECTED, "no machine could run"
    yield "dims_negative", add(dims=[-2], raw_data=bytes(8)), REJECTED, "negative dimension"
    yield "raw_data_short", add(raw_data=bytes(4)), REJECTED, "needs 8 bytes, but has 4"
    yield "raw_data_long", add(raw_data=bytes(4096)), REJECTED, "needs 8 bytes, but has 4096"
    yield "no_data", add(), REJECTED, "needs 2 values, but has 0"
    yield "float_data_short", add(float_data=[1.0]), REJECTED, "needs 2 values, but has 1"
    both = add(raw_data=bytes(4), float_data=[1.0, 2.0])
    yield "raw_data_short_beside_others", both, REJECTED, "needs 8 bytes, but has 4"
    yield "data_in_wrong_field", add(int32_data=[1, 2]), REJECTED, "needs 2 values, but has 0"
    yield "unknown_type", add(data_type=9999, raw_data=bytes(8)), REJECTED, "element type 9999"
    yield "undefined_type", add(data_type=0, raw_data=bytes(8)), REJECTED, "element type 0"
    text = weight(data_type=TensorProto.STRING, string_data=[b"\xff\xfe", b"a"])
    join = helper.make_node("Equal", ["x", "w"], ["y"])
    yield (
        "text_not_utf8",
        saved(
            model(
                [join],
                [info("x", TensorProto.STRING)],
                [info("y", TensorProto.BOOL)],
                [text],
                opset=19,
            )
        ),
        REJECTED,
        "UTF-8",
    )
    segmented = weight(raw_data=bytes(8))
    segmented.segment.begin, segmented.segment.end = 0, 2
    yield "segments", saved(with_weight(segmented)), UNSUPPORTED, "segments"
    float8 = helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [2], [1.0, 2.0])
    yield "float8_weight", saved(with_weight(float8)), UNSUPPORTED, "float8e4m3fn"
    for name, index, dims, reason in (
        ("sparse_outside", 2, (2,), "outside of its 2 elements"),
        ("sparse_negative_index", -1, (2,), "outside of its 2 elements"),
        ("sparse_negative_dim", 0, (-2,), "negative dimension"),
        ("sparse_bomb", 0, (2**13, 2**14), "256 MiB"),
        ("sparse_terabytes", 0, (2**40,), "no machine could run"),
    ):
        sparse = model([helper.make_node("Add", ["x", "w"], ["y"])])
        sparse.graph.sparse_initializer.append(
            SparseTensorProto(
                values=helper.make_tensor("w", FLOAT, [1], [1.0]), indices=constant("i", [index]), dims=dims
            )
        )
        yield name, saved(sparse), REJECTED, reason
    yield (
        "input_dims_near_2_63",
        saved(model(inputs=[info("x", shape=(2**63 - 1, 2))])),
        REJECTED,
        "no machine could run",
    )
    yield (
        "input_negative_dim",
        saved(model(inputs=[info("x", shape=(-2, 2))])),
        REJECTED,
        "negative dimension",
    )
    yield "input_without_type", saved(model(inputs=[ValueInfoProto(name="x")])), REJECTED, "x"
    yield "input_open_dim", saved(model(inputs=[info("x", shape=("N", 2))])), USAGE, "--shapes x:?x2"
    yield "input_unknown_rank", saved(model(inputs=[info("x", shape=None)])), USAGE, "--shapes x:"
    sequence = ValueInfoProto(name="x")
    sequence.type.CopyFrom(
        helper.make_sequence_type_proto(TypeProto(tensor_type=TypeProto.Tensor(elem_type=FLOAT)))
    )
    yield (
        "input_sequence",
        saved(model([helper.make_node("SequenceLength", ["x"], ["y"])], [sequence], [info("y", INT64, ())])),
        UNSUPPORTED,
        "sequence",
    )


def _bomb(node: NodeProto, *constants: TensorProto) -> Write:
    """A file of 100 bytes whose result has terabytes."""
    nodes = [node, helper.make_node("ReduceSum", ["big"], ["y"], keepdims=0)]
    return saved(model(nodes, [info("x", shape=(1,))], [info("y", shape=())], list(constants)))


def _structure() -> Iterator[Case]:
    relu, add = "Relu", "Add"
    huge = constant("n", [10**6, 10**7])
    make = helper.make_node
    yield "bomb_constant_of_shape", _bomb(make("ConstantOfShape", ["n"], ["big"]), huge), REJECTED, "GiB"
    yield "bomb_expand", _bomb(make("Expand", ["x", "n"], ["big"]), huge), REJECTED, "GiB"
    yield "bomb_tile", _bomb(make("Tile", ["x", "n"], ["big"]), constant("n", [10**13])), REJECTED, "GiB"
    pads = constant("n", [0, 10**13])
    yield "bomb_pad", _bomb(make("Pad", ["x", "n"], ["big"]), pads), REJECTED, "GiB"
    start, step = constant("s", [0]), constant("d", [1])
    end = constant("e", [10**13])
    for tensor in (start, step, end):
        del tensor.dims[:]
    big_range = model(
        [make("Range", ["s", "e", "d"], ["big"]), make("ReduceSum", ["big"], ["y"], keepdims=0)],
        [],
        [info("y", INT64, ())],
        [start, end, step],
    )
    yield "bomb_range", saved(big_range), REJECTED, "GiB"
    yield (
        "cycle",
        saved(model([make(add, ["x", "b"], ["a"]), make(relu, ["a"], ["b"]), make(relu, ["a"], ["y"])])),
        REJECTED,
        "cycle",
    )
    yield "self_cycle", saved(model([make(add, ["x", "y"], ["y"])])), REJECTED, "cycle"
    yield (
        "value_written_twice",
        saved(model([make(relu, ["x"], ["y"]), make("Neg", ["x"], ["y"])])),
        REJECTED,
        "exists already",
    )
    yield "input_overwritten", saved(model([make(relu, ["x"], ["x"])], outputs=[info("x")])), REJECTED, "'x'"
    yield "input_twice", saved(model(inputs=[info("x"), info("x")])), REJECTED, "declared twice"
    two = [weight(raw_data=bytes(8)), weight(raw_data=bytes(4))]
    yield (
        "weight_twice_cut_off",
        saved(model([make(add, ["x", "w"], ["y"])], initializers=two)),
        REJECTED,
        "needs 8 bytes, but has 4",
    )
    yield "undefined_operand", saved(model([make(add, ["x", "ghost"], ["y"])])), REJECTED, "'ghost'"
    yield "undefined_output", saved(model(outputs=[info("ghost")])), REJECTED, "'ghost'"
    yield "unnamed_input", saved(model(inputs=[info("x"), info("")])), REJECTED, "no name"
    shadow = helper.make_graph([make(relu, ["x"], ["x2"])], "branch", [], [info("x2")])
    shadow.node.append(make("Neg", ["x"], ["x"]))
    yield (
        "body_overwrites_outer",
        saved(
            model(
                [make("If", ["c"], ["y"], then_branch=shadow, else_branch=shadow)],
                [info("x"), info("c", TensorProto.BOOL, ())],
            )
        ),
        REJECTED,
        "exists already",
    )
    yield from _versions_and_functions()


def _versions_and_functions() -> Iterator[Case]:
    make = helper.make_node
    bare = model()
    del bare.opset_import[:]
    yield "no_opset", saved(bare), REJECTED, "opset_import"
    twice = model()
    twice.opset_import.append(helper.make_opsetid("ai.onnx", 18))
    yield "opset_twice", saved(twice), REJECTED, "twice"
    yield "opset_zero", saved(model(opset=0)), REJECTED, "starts at 1"
    yield "opset_negative", saved(model(opset=-3)), REJECTED, "starts at 1"
    yield "opset_from_the_future", saved(model(opset=9999)), UNSUPPORTED, "opset 9999"
    future = model()
    future.ir_version = 9999
    yield "ir_version_from_the_future", saved(future), UNSUPPORTED, "IR version 9999"

    def with_functions(count: int, callee: Callable[[int], str], calls: int) -> ModelProto:
        proto = model([make("F0", ["x"], ["y"], domain="local")])
        proto.opset_import.append(helper.make_opsetid("local", 1))
        for i in range(count):
            kind = callee(i)
            domain = "local" if kind.startswith("F") else ""
            names = ["a", *(f"t{i}_{k}" for k in range(calls - 1)), "b"]
            nodes = [make(kind, [s], [t], domain=domain) for s, t in pairwise(names)]
            proto.functions.append(
                helper.make_function("local", f"F{i}", ["a"], ["b"], nodes, list(proto.opset_import))
            )
        return proto

    laughs = with_functions(64, lambda i: "Relu" if i == 63 else f"F{i + 1}", 4)
    yield "function_recursion", saved(with_functions(1, lambda i: "F0", 1)), REJECTED, "calls itself"
    yield "function_cycle", saved(with_functions(3, lambda i: f"F{(i + 1) % 3}", 1)), REJECTED, "calls itself"
    yield "function_billion_laughs", saved(laughs), REJECTED, "expand to"
    same = with_functions(1, lambda i: "Relu", 1)
    same.functions.append(same.functions[0])
    yield "function_twice", saved(same), REJECTED, "same domain and name"


def _operators() -> Iterator[Case]:
    make = helper.make_node
    yield "unknown_operator", saved(model([make("Frobnicate", ["x"], ["y"])])), REJECTED, "Frobnicate"
    custom = model([make("Frobnicate", ["x"], ["y"], domain="com.example")])
    custom.opset_import.append(helper.make_opsetid("com.example", 1))
    yield "custom_domain", saved(custom), UNSUPPORTED, "'com.example'"
    yield "too_few_inputs", saved(model([make("Add", ["x"], ["y"])])), REJECTED, "Add"
    yield "too_many_inputs", saved(model([make("Relu", ["x", "x"], ["y"])])), REJECTED, "Relu"
    yield (
        "wrong_attribute_type",
        saved(model([make("LeakyRelu", ["x"], ["y"], alpha="big")])),
        REJECTED,
        "alpha",
    )
    yield "unknown_attribute", saved(model([make("Relu", ["x"], ["y"], evil=1)])), REJECTED, "evil"
    yield "missing_attribute", saved(model([make("Cast", ["x"], ["y"])])), REJECTED, "to"
    dangling = make("LeakyRelu", ["x"], ["y"])
    dangling.attribute.append(
        AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="elsewhere")
    )
    yield "attribute_reference_outside_function", saved(model([dangling])), REJECTED, "alpha"
    yield (
        "shapes_do_not_fit",
        saved(model([make("MatMul", ["x", "z"], ["y"])], [info("x", shape=(2, 3)), info("z", shape=(4, 5))])),
        REJECTED,
        "MatMul",
    )
    yield (
        "types_do_not_fit",
        saved(model([make("Add", ["x", "z"], ["y"])], [info("x"), info("z", INT64)])),
        REJECTED,
        "Add",
    )
    yield (
        "reshape_to_another_size",
        saved(model([make("Reshape", ["x", "n"], ["y"])], initializers=[constant("n", [3, 5])])),
        REJECTED,
        "Reshape",
    )
    yield (
        "declared_type_is_a_lie",
        saved(model(outputs=[info("y", INT64)])),
        REJECTED,
        "declared as int64",
    )
    yield (
        "shape_depends_on_data",
        saved(model([make("NonZero", ["x"], ["y"])], outputs=[info("y", INT64, None)])),
        UNSUPPORTED,
        "depends on data",
    )
    yield (
        "random_numbers",
        saved(model([make("RandomNormal", [], ["y"], shape=[2])])),
        UNSUPPORTED,
        "random numbers",
    )
    lone = GraphProto(name="branch")
    yield (
        "branch_without_result",
        saved(
            model(
                [make("If", ["c"], ["y"], then_branch=lone, else_branch=lone)],
                [info("x"), info("c", TensorProto.BOOL, ())],
            )
        ),
        REJECTED,
        "If",
    )
    stuck = model([make("Gather", ["s", "i"], ["g"]), make("Reshape", ["x", "g"], ["y"])])
    stuck.graph.node.insert(0, make("Shape", ["x"], ["s"]))
    stuck.graph.initializer.append(constant("i", [7]))
    yield "constant_index_out_of_range", saved(stuck), REJECTED, "Gather"
    loud = make("Relu", ["ghost"], ["y"], name="\x1b[31m" + "a\nb" * 10**6)
    yield "huge_name_with_escapes", saved(model([loud])), REJECTED, "nothing produces"


def main() -> None:
    for file in write_corpus(Path(sys.argv[1])):
        print(f"{file.name}: {file.error} ({file.mentions})")


if __name__ == "__main__":
    main()
