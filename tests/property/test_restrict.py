"""The part of an operator that a region of its result needs computes that region, for every operator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.strategies import generators
from tests.property.test_regions import draw_region, examples, slices

from tilewright.ir.nest import Opaque
from tilewright.ir.nest_interpreter import run_described, run_nests
from tilewright.ir.ops import describe
from tilewright.ir.restrict import restrict

KEYS = sorted(generators())
# Operators without nests, with several results, or whose first nest must see more than a block needs.
NEVER_CUT = frozenset(
    {
        *("DeformConv", "DynamicQuantizeLSTM", "GRU", "LSTM", "RNN", "NonMaxSuppression", "NonZero"),
        *("DynamicQuantizeLinear", "GRUSteps", "LSTMCell", "LSTMSteps", "RNNSteps", "TopK"),
        *("BlockFloats", "CoupledProbabilities", "GroupNormalization", "MaxUnpool", "TreeSums"),
        *("BlackmanWindow", "DFT", "HammingWindow", "HannWindow", "MelWeightMatrix", "STFT"),
    }
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_restricted_nests_on_windows_compute_the_region(key: tuple[str, str]) -> None:
    applied: list[bool] = []

    def every(data: st.DataObject) -> None:
        one = data.draw(generators()[key])
        nests = describe(one.node)
        outputs = [v for v in one.node.outputs if v is not None]
        if isinstance(nests, Opaque) or len(outputs) != 1 or 0 in outputs[0].shape:
            return
        region = draw_region(data.draw, outputs[0].shape)
        part = restrict(nests, {("output", 0): region})
        if part is None:
            return
        applied.append(True)
        windows = [
            None if a is None else a[slices(part.windows["input", i])] if ("input", i) in part.windows else a
            for i, a in enumerate(one.inputs)
        ]
        shape = tuple(stop - start for start, stop in region)
        (got,) = run_nests(part.nests, windows, [(outputs[0].dtype, shape)])
        want = run_described(one.node, one.inputs)[one.node.outputs.index(outputs[0])]
        assert got is not None
        assert want is not None
        want = want[slices(region)]
        if got.dtype.kind == "f" and not one.exact:
            np.testing.assert_allclose(got, want, rtol=one.rtol, atol=one.atol)
        else:
            np.testing.assert_array_equal(got, want)

    examples(12)(given(data=st.data())(every))()
    if not applied and key[1] not in NEVER_CUT:  # few regions of some operators leave anything out
        examples(300)(given(data=st.data())(every))()
    assert bool(applied) == (key[1] not in NEVER_CUT)
