"""What became of each node, derived from the graphs before and after passes of any kind."""

# mypy: disable-error-code="arg-type, call-arg"

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright import zoo
from tilewright.errors import UsageError
from tilewright.explain import kernel_plan, origins_of
from tilewright.ir.text import parse_graph
from tilewright.passes import PassReport, PassResult, Remark
from tilewright.steps import KernelInfo, NodeOrigin


def origins(before: str, after: str, report: PassReport | None = None) -> dict[str, NodeOrigin]:
    head = 'graph "g" opset 17 {\n input %x: float32[4]\n input %w: float32[4]\n'
    graphs = [parse_graph(f"{head}{text}\n}}") for text in (before, after)]
    return {o.name: o for o in origins_of(*graphs, report or PassReport())}


def line(result: str, op_type: str, *operands: str, name: str = "") -> str:
    quoted = f' "{name}"' if name else ""
    return f"%{result}: float32[4] = {op_type}({', '.join('%' + o for o in operands)}){quoted}\n"


def test_a_node_that_stays_is_itself() -> None:
    text = line("y", "Relu", "x", name="act") + "return %y"
    assert origins(text, text)["act"].became == ("act",)


def test_a_node_folded_into_its_producer_is_found_there() -> None:
    before = (
        line("c", "Mul", "x", "w", name="conv")
        + line("b", "Sub", "c", "w", name="bn")
        + line("y", "Relu", "b", name="act")
        + "return %y"
    )
    after = line("c", "Mul", "x", "w", name="conv") + line("y", "Relu", "c", name="act") + "return %y"
    found = origins(before, after)
    assert found["bn"].became == ("conv",)
    assert found["act"].became == ("act",)


def test_several_nodes_folded_into_one_producer_are_found_there() -> None:
    before = (
        line("c", "Mul", "x", "w", name="conv")
        + line("i", "Identity", "c", name="copy")
        + line("b", "Sub", "i", "w", name="bn")
        + line("y", "Relu", "b", name="act")
        + "return %y"
    )
    after = line("c", "Mul", "x", "w", name="conv") + line("y", "Relu", "c", name="act") + "return %y"
    found = origins(before, after)
    assert found["bn"].became == ("conv",)
    assert found["copy"].became == ("conv",)


def test_a_recognised_pattern_is_found_in_what_replaced_it() -> None:
    before = (
        line("a", "Add", "x", "w", name="residual")
        + line("m", "Neg", "a", name="mean")
        + line("s", "Sub", "a", "m", name="centre")
        + line("y", "Mul", "s", "w", name="scale")
        + "return %y"
    )
    after = line("a", "Add", "x", "w", name="residual") + line("y", "Norm", "a", name="scale") + "return %y"
    found = origins(before, after)
    assert found["residual"].became == ("residual",)
    assert {found[n].became for n in ("mean", "centre", "scale")} == {("scale",)}


def test_a_replacement_under_another_name_is_found_by_its_result() -> None:
    before = line("h", "Neg", "x", name="first") + line("y", "Abs", "h", name="second") + "return %y"
    after = line("y", "Fused", "x", name="new") + "return %y"
    found = origins(before, after)
    assert found["first"].became == found["second"].became == ("new",)


def test_a_constant_and_dead_code_say_so() -> None:
    before = (
        line("k", "Neg", "w", name="known")
        + line("d", "Abs", "x", name="dead")
        + line("y", "Add", "x", "k", name="sum")
        + "return %y"
    )
    after = (
        "const %k: float32[4] = [1.0, 2.0, 3.0, 4.0]\n" + line("y", "Add", "x", "k", name="sum") + "return %y"
    )
    found = origins(before, after)
    assert found["known"].became == ()
    assert "constant" in found["known"].note
    assert found["dead"].became == ()
    assert "removed" in found["dead"].note


def test_remarks_of_passes_are_told() -> None:
    text = line("y", "Relu", "x", name="act") + "return %y"
    report = PassReport((("tidy", PassResult(0, (Remark("act", "kept: it is the only one"),))),))
    assert origins(text, text, report)["act"].note == "tidy: kept: it is the only one"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "settings"),
    [("resnet18", {"image": 32}), ("bert_tiny", {"sequence": 16}), ("yolov5s", {"image": 64})],
)
def test_all_nodes_of_a_network_lead_to_kernels_and_all_kernels_to_nodes(name: str, settings: dict) -> None:
    model = zoo.build(name, **settings)
    compiled = tw.compile(model, "interpreter")
    explanation = compiled.explain()
    nodes = model.graph.node
    assert [s.name for s in explanation.nodes] == [n.name for n in nodes]
    assert all(s.kernels or s.note for s in explanation.nodes)
    reached = {kernel for story in explanation.nodes for kernel in story.kernels}
    assert reached == {k.id for k in compiled.kernels}
    position = {k.id: i for i, k in enumerate(compiled.kernels)}
    made = {s.name: [position[k] for k in s.kernels] for s in explanation.nodes}
    # A node runs no earlier than what it reads: a wrong link would break the order somewhere.
    producers = {o: n.name for n in nodes for o in n.output}
    for node in nodes:
        for value in node.input:
            source = producers.get(value)
            if source is not None and made[source] and made[node.name]:
                assert min(made[source]) <= max(made[node.name]), (source, node.name)


def test_batch_norms_are_found_in_their_convolutions() -> None:
    model = zoo.build("resnet18", image=32)
    compiled = tw.compile(model, "interpreter")
    producers = {n.output[0]: n for n in model.graph.node}
    stories = {s.name: s for s in compiled.explain().nodes}
    norms = [n for n in model.graph.node if n.op_type == "BatchNormalization"]
    assert norms
    for norm in norms:
        assert stories[norm.name].became == (producers[norm.input[0]].name,)
    without = tw.compile(model, "interpreter", disabled_passes=["fold-batch-norm", "fold-scale-shift"])
    kept = {s.name: s for s in without.explain().nodes}
    assert all(kept[norm.name].became == (norm.name,) for norm in norms)
    feed = zoo.example_inputs(model, 0)
    np.testing.assert_allclose(compiled.run(None, feed)[0], without.run(None, feed)[0], rtol=1e-3, atol=1e-4)


def test_the_beginning_of_a_name_leads_to_names_that_begin_so() -> None:
    text = "".join(line(f"v{i}", "Relu", "x", name=f"block.{i}.relu") for i in (1, 10))
    graph = parse_graph(f'graph "g" opset 17 {{\n input %x: float32[4]\n{text} return %v1, %v10\n}}')
    with pytest.raises(tw.UsageError, match=r"did you mean block.1.relu or block.10.relu"):
        tw.compile(tw.Model(graph, "0" * 64, "blocks"), threads=1).explain("block.1")


def test_a_kernel_is_printed_as_what_it_was_generated_from() -> None:
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="m")
    shapes = {"x": [8, 32], "y": [8, 16]}
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items())
    weight = onnx.numpy_helper.from_array(np.ones((32, 16), np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weight])
    with tw.compile(onnx.helper.make_model(graph), threads=1) as compiled:
        (kernel,) = compiled.kernels
        text = kernel_plan(compiled.kernels, kernel.id)
        assert text == kernel_plan(compiled.kernels, kernel.symbol) == kernel.plan.rstrip("\n")
        assert text.startswith("product float32 by fma\n  a = input0 float32[8, 32]\n")
    assert "\n  sum k 32: a 1, b 16\n" in text


def test_kernels_without_a_plan_say_so() -> None:
    kernels = [
        KernelInfo("k0", "tw_a", "contraction", ("a",), 0, plan="contraction float32\n"),
        KernelInfo("k1", "tw_b", "loop-nest", ("b",), 1),
    ]
    with pytest.raises(UsageError, match="kernel k1 is made by 'loop-nest', which prints no plan"):
        kernel_plan(kernels, "k1")
    with pytest.raises(UsageError, match="no kernel is called 'k2'; of 2 kernels those with a plan are k0"):
        kernel_plan(kernels, "k2")
    with pytest.raises(UsageError, match="of 1 kernel none of them has a plan"):
        kernel_plan(kernels[1:], "k2")
