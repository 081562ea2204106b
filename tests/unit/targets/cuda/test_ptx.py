"""PTX of kernels, and what NVIDIA's assembler makes of it where its wheels are installed."""

# mypy: disable-error-code="arg-type, attr-defined"

from pathlib import Path
from typing import Any

import pytest
from benchmarks import ptx_uses
from benchmarks.cuda import ACCURACIES, Collector, forms
from tests.support.cuda_product import STAGE_BYTES, product_text

from tilewright.compiler import compile_graph
from tilewright.errors import InternalError, UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.target_ref import TargetRef
from tilewright.targets.cuda import assembler
from tilewright.targets.cuda.ptx import gpu_isa, newest_for, ptx_of
from tilewright.targets.llvm.cache import ObjectCache

needs_tools = pytest.mark.skipif(
    not ptx_uses.has_tools(),
    reason="needs nvidia-cuda-nvcc and nvidia-cuda-nvdisasm: pip install 'tilewright[cuda-check]'",
)


def test_a_product_becomes_ptx_with_the_instructions_it_asks_for(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    (ptx,) = ptx_of([product_text(50, 64, 5)], gpu_isa("sm_80"), cache=cache)
    text = ptx.decode()
    assert ".version 8.0\n.target sm_80\n" in text
    assert ".visible .entry product(" in text
    assert ".maxntid 128" in text
    assert text.count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 5 * 2 * 2
    assert text.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == 5 * 2 * 2
    assert text.count("cp.async.cg.shared.global") == 5 * 2
    assert len(cache.entries()) == 1
    assert ptx_of([product_text(50, 64, 5)], gpu_isa("sm_80"), cache=cache) == [ptx]


def test_a_function_that_gpus_lack_is_named() -> None:
    text = "declare float @llvm.nvvm.no.such.thing(float)\ndefine ptx_kernel void @k(ptr addrspace(1) %x) {\n"
    text += "  %v = call float @llvm.nvvm.no.such.thing(float 1.0)\n"
    text += "  store float %v, ptr addrspace(1) %x\n  ret void\n}"
    with pytest.raises(InternalError, match=r"no\.such\.thing"):
        ptx_of([text], gpu_isa("sm_80"))


def test_an_unknown_compute_capability_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown compute capability 'sm_70': give sm_80, "):
        gpu_isa("sm_70")
    assert newest_for((7, 5)) is None


@needs_tools
@pytest.mark.parametrize("isa", ["sm_80", "sm_90"])
def test_the_assembler_takes_it_without_spills(isa: Any) -> None:
    (ptx,) = ptx_of([product_text(50, 64, 5)], gpu_isa(isa))
    (use,) = ptx_uses.kernel_uses(ptx, isa).values()
    assert (use.stack_bytes, use.spilled_bytes, use.shared_bytes) == (0, 0, 3 * STAGE_BYTES)
    assert use.num_registers <= 64
    assert use.instructions["HMMA"] == use.instructions["LDSM"] == 20
    assert use.instructions["LDGSTS"] == 10
    assert not use.instructions["LDL"]
    assert not use.instructions["STL"]


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize("isa", ["sm_80", "sm_90"])
def test_every_form_of_kernel_is_assembled_as_its_facts_say(
    isa: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No spills, no local memory, the stated shared memory, and tensor cores wherever they are asked for."""
    collector = Collector()
    seen = 0
    for name, model in forms():
        for accuracy in ACCURACIES:
            code = compile_graph(
                load_onnx(model), Options(target=TargetRef.parse("cuda"), accuracy=accuracy)
            ).code
            code.load_on(collector)
            facts = {kernel.symbol: kernel for step in code.steps for kernel in step.kernels}
            for ptx in ptx_of(list(collector.texts), gpu_isa(isa)):
                for symbol, use in ptx_uses.kernel_uses(ptx, isa).items():
                    seen += 1
                    kernel, where = facts[symbol], f"{name}, {accuracy}"
                    assert (use.stack_bytes, use.spilled_bytes) == (0, 0), where
                    assert not {"LDL", "STL"} & set(use.instructions), where
                    assert use.shared_bytes == kernel.scratch_bytes, where
                    is_product = kernel.template in ("product", "attention")
                    is_of_bytes = is_product and name.startswith("quantised")
                    is_tensor = is_product and accuracy != "default" and not is_of_bytes
                    assert bool(use.instructions.get("HMMA")) == is_tensor, where
                    assert bool(use.instructions.get("IMMA")) == is_of_bytes, where
                    assert bool(use.instructions.get("LDSM")) == (is_tensor or is_of_bytes), where
            collector.texts.clear()
    assert seen >= 3 * len(list(forms()))


def test_the_loop_that_multiplies_is_between_a_label_and_the_branch_back() -> None:
    listing = """\t.section\t.text.k,"ax",@progbits
        /*0000*/                   IMAD.MOV R1, RZ, RZ, R2 ;
.L_x_1:
        /*0010*/                   LDS R4, [R5] ;
        /*0020*/               @P0 BRA `(.L_x_0) ;
        /*0030*/                   FFMA R1, R2, R3, R1 ;
.L_x_0:
        /*0040*/              @!P1 BRA `(.L_x_1) ;
.L_x_2:
        /*0050*/                   BRA `(.L_x_2) ;
"""
    (found,) = ptx_uses._instructions(listing).values()
    assert ptx_uses._multiplying_loop(found) == {"LDS": 1, "BRA": 1, "FFMA": 1}


@needs_tools
def test_what_the_assembler_refuses_is_told() -> None:
    with pytest.raises(InternalError, match=r"ptxas refuses generated code: .* Missing .version"):
        assembler.assembled(b"nonsense", "sm_80")


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in assembler.WHEELS:
        monkeypatch.setitem(assembler.WHEELS, tool, "no-such-wheel")
    assert not ptx_uses.has_tools()
    with pytest.raises(UsageError, match="ptxas is not installed: pip install --no-deps no-such-wheel"):
        assembler.assembled(b"", "sm_80")
