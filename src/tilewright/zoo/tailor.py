"""ResNet18-Tailor, the network of GraphTurbo's study on a GPU, as far as the paper defines it.

The paper (OSDI 2023, section 5.6 and Figure 18) says: a chain of eight layers, each a convolution with ReLU;
the stem (convolution, max pooling) and the head (average pooling, softmax) of ResNet-18 are left out; CUTLASS
fuses neighbouring layers into four pairs. It gives no widths, kernels or strides and shows no shortcut.

Here the four pairs are one pair of 3 x 3 convolutions for each stage of ResNet-18, without shortcuts:
64, 128, 256 and 512 channels, stride 2 at the first convolution from the second stage on, [64, 56, 56] at
the input. That is 0.75 GMAC per image, 97 TFLOP/s at the paper's 0.99 ms for a batch of 64, which an A100 can
reach in half precision with one kernel per layer; all sixteen convolutions of ResNet-18 would take more than
210 TFLOP/s. Batch normalisation is absent because the paper counts a convolution and a ReLU per layer.
Kernel sizes and widths stay a reading of the paper, not a quotation.
"""

from __future__ import annotations

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.network import Fill, InputSpec, Settings, Size, ZooNetwork


def _inputs(settings: Settings) -> tuple[InputSpec, ...]:
    shape = (settings.batch, 64, settings.height, settings.width)
    return (InputSpec("input", shape, Fill.IMAGE),)


def _chain(b: Builder, x: Tensor) -> None:
    for stage, channels in enumerate((64, 128, 256, 512)):
        for index in (1, 2):
            stride = 2 if stage > 0 and index == 1 else 1
            with b.scope(f"layer{stage + 1}"):
                x = b.conv(x, channels, 3, stride=stride, padding=1, bias=True, name=f"conv{index}")
                x = b.relu(x, name=f"relu{index}")
    b.output(x, "features")


NETWORKS = (
    ZooNetwork(
        "resnet18_tailor",
        "resnet",
        "Eight convolutions with ReLU, two per stage of ResNet-18; the input is the stem's output",
        "Zhao et al., GraphTurbo, OSDI 2023, section 5.6",
        _inputs,
        lambda b, inputs: _chain(b, inputs[0]),
        image=Size(56, smallest=8),
    ),
)
