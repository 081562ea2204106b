"""Parameters and multiply-accumulates of the zoo's networks against published figures."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.zoo.zoo_measure import num_macs, num_parameters

from tilewright import zoo

# torchvision's documentation, "Table of all available classification weights": `num_params` and GFLOPS, which
# counts one multiply-accumulate as one, at the default image size.
# Inception's figure there includes the auxiliary classifier, 3326696 parameters that inference does not use:
# Conv 768-128 1x1 and Conv 128-768 5x5 with batch normalisation, and a linear layer 768-1000.
_INCEPTION_AUX = (768 * 128 + 2 * 128) + (128 * 768 * 25 + 2 * 768) + (768 * 1000 + 1000)
_TORCHVISION = {
    "convnext_tiny": (28_589_128, 4.46),
    "convnext_tiny_export": (28_589_128, 4.46),
    "densenet121": (7_978_856, 2.83),
    "efficientnet_b0": (5_288_548, 0.39),
    "googlenet": (6_624_904, 1.50),
    "inception_v3": (27_161_264 - _INCEPTION_AUX, 5.71),
    "mnasnet1_0": (4_383_312, 0.31),
    "mobilenet_v2": (3_504_872, 0.30),
    "mobilenet_v3_large": (5_483_032, 0.22),
    "regnet_x_400mf": (5_495_976, 0.41),
    "regnet_y_1_6gf": (11_202_430, 1.61),
    "resnet18": (11_689_512, 1.81),
    "resnet34": (21_797_672, 3.66),
    "resnet50": (25_557_032, 4.09),
    "resnext50_32x4d": (25_028_904, 4.23),
    "shufflenet_v2_x1_0": (2_278_604, 0.14),
    "squeezenet1_0": (1_248_424, 0.82),
    "squeezenet1_1": (1_235_496, 0.35),
    "swin_t": (28_288_354, 4.49),
    "vgg16": (138_357_544, 15.47),
    "vit_b_16": (86_567_656, 17.56),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name", [*sorted(_TORCHVISION.keys() - {"vgg16"}), pytest.param("vgg16", marks=pytest.mark.slow)]
)
def test_classifier_has_torchvisions_size(name: str) -> None:
    parameters, gmacs = _TORCHVISION[name]
    model = zoo.build(name)
    assert num_parameters(model) == parameters
    assert num_macs(model) / 1e9 == pytest.approx(gmacs, abs=0.0051)


# Devlin et al. round to 110 M for base and 340 M for large; the released encoders have 109.5 M and 335.1 M.
# Tiny: 4.4 M in Turc et al.; MiniLM: 22.7 M on the card of all-MiniLM-L6-v2. The formula gives exact numbers.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "layers", "hidden", "published_millions"),
    [
        ("bert_tiny", 2, 128, 4.4),
        ("minilm_l6", 6, 384, 22.7),
        ("bert_base", 12, 768, 109.5),
        pytest.param("bert_large", 24, 1024, 335.1, marks=pytest.mark.slow),
    ],
)
def test_bert_has_the_published_size(name: str, layers: int, hidden: int, published_millions: float) -> None:
    model = zoo.build(name, sequence=128)
    embeddings = (30522 + 512 + 2) * hidden + 2 * hidden
    layer = 4 * (hidden * hidden + hidden) + (8 * hidden * hidden + 5 * hidden) + 4 * hidden
    pooler = hidden * hidden + hidden
    assert num_parameters(model) == embeddings + layers * layer + pooler
    assert num_parameters(model) / 1e6 == pytest.approx(published_millions, abs=0.06)
    products = 12 * 128 * hidden * hidden + 2 * 128 * 128 * hidden
    assert num_macs(model) == layers * products + hidden * hidden


# YOLOv4: 64.36 M parameters in Tianxiaomo's port to PyTorch; 60.1 BFLOPs (two per multiply-accumulate) at 416
# pixels and 6.9 for tiny in the README of AlexeyAB/darknet. YOLOv5: the summary by ultralytics/yolov5
# release 6 before fusing, with activations counted. YOLOX: the table of Megvii-BaseDetection/YOLOX.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "parameters_millions", "gflop"),
    [
        ("yolov4", 64.363, 60.1),
        ("yolov4_tiny", 6.057, 6.9),
        ("yolov5s", 7.235, 16.5),
        pytest.param("yolov5x", 86.749, 205.7, marks=pytest.mark.slow),
        ("yolox_nano", 0.91, 1.08),
        ("yolox_tiny", 5.06, 6.45),
        ("yolox_s", 8.97, 26.8),
        pytest.param("yolox_x", 99.07, 281.9, marks=pytest.mark.slow),
    ],
)
def test_detector_has_the_published_size(name: str, parameters_millions: float, gflop: float) -> None:
    model = zoo.build(name)
    digits = len(str(parameters_millions).partition(".")[2])
    assert num_parameters(model) / 1e6 == pytest.approx(parameters_millions, abs=0.51 * 10**-digits)
    assert 2 * num_macs(model) / 1e9 == pytest.approx(gflop, rel=0.035)


@pytest.mark.slow
def test_gpt2_has_the_published_size() -> None:
    """124 M parameters in openai/gpt-2's corrected table; the head shares the embeddings."""
    hidden, sequence = 768, 64
    model = zoo.build("gpt2_small", sequence=sequence)
    layer = 12 * hidden * hidden + 13 * hidden
    assert num_parameters(model) == (50257 + 1024) * hidden + 12 * layer + 2 * hidden
    assert num_parameters(model) / 1e6 == pytest.approx(124, abs=0.5)
    products = 12 * sequence * hidden * hidden + 2 * sequence * sequence * hidden
    assert num_macs(model) == 12 * products + sequence * hidden * 50257


def test_decoder_with_a_cache_multiplies_for_one_token() -> None:
    """The weights of the whole-prompt network; products of one position with all before it."""
    hidden, past = 768, 64
    model = zoo.build("gpt2_decode", sequence=past)
    layer = 12 * hidden * hidden + 13 * hidden
    assert num_parameters(model) == (50257 + 1024) * hidden + 12 * layer + 2 * hidden
    products = 12 * hidden * hidden + 2 * (past + 1) * hidden
    assert num_macs(model) == 12 * products + hidden * 50257


def test_mixer_has_the_published_size() -> None:
    """59.9 M parameters and 12.6 GMAC: timm's table for mixer_b16_224."""
    model = zoo.build("mlp_mixer_b16")
    assert num_parameters(model) == 59_880_472
    assert num_macs(model) / 1e9 == pytest.approx(12.6, abs=0.05)


def test_unet_has_the_published_size() -> None:
    """31.0 M parameters: four levels of two 3 x 3 convolutions each way, 2 x 2 ones that enlarge."""
    widths = (64, 128, 256, 512, 1024)

    def double(before: int, after: int) -> int:
        return 9 * after * (before + after) + 4 * after

    down = double(3, 64) + sum(double(a, b) for a, b in itertools.pairwise(widths))
    up = sum(4 * b * a + a + double(b, a) for a, b in itertools.pairwise(widths))
    assert num_parameters(zoo.build("unet", image=32)) == down + up + 64 * 2 + 2


def test_lstm_has_the_published_size() -> None:
    """Zaremba et al., medium: two layers of 650 units, 10,000 words; 19.8 M parameters in all."""
    model = zoo.build("lstm_words")
    layer = 4 * 650 * (650 + 650 + 2)
    assert num_parameters(model) == 10000 * 650 + 2 * layer + 650 * 10000 + 10000


def test_gru_reads_both_directions() -> None:
    model = zoo.build("gru_tagger")
    layers = sum(2 * 3 * 256 * (features + 256 + 2) for features in (300, 512))
    assert num_parameters(model) == 20000 * 300 + layers + 512 * 17 + 17


def test_mobilevit_has_the_published_size() -> None:
    """5.6 M parameters and 2.0 GMAC at 256 pixels: Mehta and Rastegari, table 1 and its released model."""
    model = zoo.build("mobilevit_s")
    assert num_parameters(model) == 5_578_632
    assert num_macs(model) / 1e9 == pytest.approx(2.0, abs=0.05)


def test_conformer_encoder_is_smaller_than_the_published_model_with_its_decoder() -> None:
    """10.3 M parameters in Gulati et al., table 1, with an LSTM decoder that the encoder lacks."""
    features = 144
    norm = 2 * features
    feed_forward = norm + 8 * features * features + 5 * features
    attention = norm + 4 * (features * features + features) + features * features + 2 * features
    pointwise = (features + 1) * 2 * features + (features + 1) * features
    convolution = norm + pointwise + features * 31 + features + 2 * features
    subsampling = (9 + 1) * features + (9 * features + 1) * features + (19 * features + 1) * features
    encoder = subsampling + 16 * (2 * feed_forward + attention + convolution + norm)
    model = zoo.build("conformer_s", sequence=64)
    assert num_parameters(model) == encoder
    assert 0.8 * 10.3e6 < encoder < 10.3e6


def test_dlrm_has_the_layers_of_mlperf() -> None:
    """Bottom 13-512-256-128, top 479-1024-1024-512-256-1: mlcommons/training, recommendation/dlrm."""
    model = zoo.build("dlrm_s", batch=4)
    widths = [(13, 512), (512, 256), (256, 128), (479, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)]
    pairs = 27 * 27 * 128
    assert num_macs(model) == 4 * (sum(a * b for a, b in widths) + pairs)
    assert num_parameters(model) == sum(a * b + b for a, b in widths) + 26 * 1000 * 128


def test_tailor_is_a_chain_of_eight_convolutions_with_relu() -> None:
    """GraphTurbo, section 5.6: eight layers in a row, each one convolution and one ReLU."""
    model = zoo.build("resnet18_tailor", batch=64)
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    assert [node.op_type for node in nodes] == ["Conv", "Relu"] * 8
    for before, after in itertools.pairwise(nodes):
        assert after.input[0] == before.output[0]
    # The reading of the text that the module documents: 97 TFLOP/s at the published 0.99 ms.
    assert 2 * num_macs(model) / 0.99e-3 / 1e12 == pytest.approx(97, abs=0.5)
