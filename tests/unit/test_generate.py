"""`tw.generate`: the tokens are those of the whole sequence computed anew, however they were reached."""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.cli import tilewright
from tests.support.tiny_decoder import PLACES, TOKENS, tiny_decoder

import tilewright as tw
from tilewright.compiled_facts import TensorInfo
from tilewright.generation import DecoderSignature, Sampling, Sequences
from tilewright.ir.dtype import DType

pytestmark = pytest.mark.sampled(9)

Array = np.ndarray[Any, Any]
PROMPT = [3, 17, 42, 8, 25]


@functools.cache
def decoder(**form: bool) -> tw.Decoder:
    return tw.Decoder(tiny_decoder(**form), threads=1)


@functools.cache
def reference() -> onnxruntime.InferenceSession:
    model = tiny_decoder(has_cache=False, has_mask=False)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def likeliest(prompt: list[int], count: int) -> list[int]:
    """Tokens of onnxruntime, which reads the whole sequence in every step."""
    tokens = list(prompt)
    for _ in range(count):
        (logits,) = reference().run(None, {"input_ids": np.asarray([tokens])})
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


FORMS = [
    {},
    {"has_cache": False},
    {"has_mask": False},
    {"has_cache": False, "has_mask": False},
    {"last_alone": True},
    {"as_torch": True},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: ",".join(form) or "cache,mask")
def test_tokens_are_those_of_the_whole_sequence(form: dict[str, bool]) -> None:
    found = decoder(**form).generate(PROMPT, max_new_tokens=12)
    (one,) = found.sequences
    assert list(one.tokens) == likeliest(PROMPT, 12)
    assert not one.is_stopped
    assert found.num_steps == 12
    exact = decoder(**form).generate(PROMPT, max_new_tokens=12, pads_prompts=False)
    assert exact.sequences == found.sequences


@pytest.mark.sampled(1)
@pytest.mark.parametrize("has_mask", [True, False])
def test_a_prompt_may_fill_the_table_of_positions(has_mask: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_decoder(has_mask=has_mask)
    (table,) = [tensor for tensor in model.graph.initializer if tensor.name == "places"]
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[:20].copy(), "places"))
    prompt = [*range(18)]
    with caplog.at_level(logging.INFO, logger="tilewright.generation"):
        found = tw.generate(model, prompt, max_new_tokens=3, threads=1)
    assert list(found.sequences[0].tokens) == likeliest(prompt, 3)
    # Without positions as an input those behind the prompt would be read from behind the table's end.
    told = [r.getMessage() for r in caplog.records if "are fed alone" in r.getMessage()]
    assert bool(told) != has_mask


def info(name: str, *shape: int | str, dtype: DType = DType.FLOAT32) -> Any:
    return TensorInfo(name, dtype, cast(Any, shape))


def test_caches_are_paired_by_layer_and_side() -> None:
    ids = info("input_ids", "batch", "length", dtype=DType.INT64)
    logits = info("logits", "batch", "length", 9, dtype=DType.BFLOAT16)
    ins = [info(f"past_{side}{layer}", "batch", 4, "past", 8) for side in "kv" for layer in range(2)]
    outs = [info(f"present_{side}{layer}", "batch", 4, "all", 8) for layer in range(2) for side in "kv"]
    extra = info("cross.0.k", 1, 2, 3)
    rest = [
        info("cache_position", "length", dtype=DType.INT64),
        info("use_cache_branch", 1, dtype=DType.BOOL),
    ]
    known = DecoderSignature.of([ids, *ins, *rest], [logits, *outs, extra])
    assert all(cache.present == cache.past.name.replace("past", "present") for cache in known.caches)
    feed = Sequences(known, [[1, 2, 3]]).feed(1, 3, 2)
    assert feed["cache_position"].tolist() == [1, 2, 3, 4]
    assert feed["use_cache_branch"].tolist() == [True]
    both = DecoderSignature.of(
        [ids, info("past_0", 2, "batch", 4, "past", 8)], [logits, info("present_0", 2, "batch", 4, "all", 8)]
    )
    assert both.caches[0].empty_shape(3) == (2, 3, 4, 0, 8)
    with pytest.raises(tw.UsageError, match="input 'past_sequence_length': it is not known what"):
        DecoderSignature.of([ids, info("past_sequence_length", 1, dtype=DType.INT64)], [logits])


def test_logits_that_are_no_numbers_choose_nothing() -> None:
    for settings in ({}, {"temperature": 1.0}):
        sampling = Sampling(**cast(Any, settings))
        for row in ([0, np.nan, 1], [-np.inf] * 3):
            with pytest.raises(tw.InputError, match="logits are NaN or infinite"):
                sampling.choose(np.asarray([row]), sampling.generators(1))
    cold = Sampling(temperature=5e-324)
    assert cold.choose(np.asarray([[-np.inf, 2.0, 1.0]]), cold.generators(1)).tolist() == [1]


def test_a_prompt_may_come_one_by_one() -> None:
    assert decoder().generate(cast(Any, iter(PROMPT)), max_new_tokens=1).sequences[0].prompt == tuple(PROMPT)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tokens", [1, 3])
def test_a_model_of_fixed_steps_reads_a_prompt_in_parts(tokens: int) -> None:
    found = tw.generate(
        tiny_decoder(has_mask=False), PROMPT, max_new_tokens=5, shapes={"input_ids": [1, tokens]}, threads=1
    )
    assert list(found.sequences[0].tokens) == likeliest(PROMPT, 5)


def test_a_model_of_fixed_length_says_no_more_than_it_holds() -> None:
    fixed = tw.Decoder(tiny_decoder(has_cache=False), shapes={"input_ids": [1, 8]}, threads=1)
    assert list(fixed.generate(PROMPT, max_new_tokens=4).sequences[0].tokens) == likeliest(PROMPT, 4)
    with pytest.raises(tw.UsageError, match="5 tokens of a prompt and 5 new ones are more than the 8 places"):
        fixed.generate(PROMPT, max_new_tokens=5)


def test_an_artifact_generates_alike(tmp_path: Path) -> None:
    model = tiny_decoder(has_cache=False, has_mask=False)
    fixed = tw.Decoder(model, shapes={"input_ids": [1, 8]}, threads=1)
    path = fixed.model.save(tmp_path / "tiny.tw")
    assert tw.generate(path, PROMPT, max_new_tokens=3).sequences[0].tokens == tuple(likeliest(PROMPT, 3))


def test_prompts_of_unequal_lengths_do_not_see_each_other() -> None:
    prompts = [PROMPT, [7], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
    found = decoder().generate(prompts, max_new_tokens=6)
    assert [list(one.tokens) for one in found.sequences] == [likeliest(p, 6) for p in prompts]
    with pytest.raises(tw.UsageError, match="prompts of unequal lengths need an input attention_mask"):
        decoder(has_mask=False).generate(prompts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", [{}, {"as_torch": True}, {"has_mask": False}], ids=",".join)
def test_nothing_is_compiled_for_lengths_that_one_code_serves(form: dict[str, bool]) -> None:
    decoder(**form).generate(PROMPT, max_new_tokens=6)
    again = decoder(**form).generate([5, 4, 3], max_new_tokens=20)
    assert again.compile_ms == 0
    assert list(again.sequences[0].tokens) == likeliest([5, 4, 3], 20)


def test_tokens_of_stop_end_a_sequence_and_leave_the_others() -> None:
    wanted = [likeliest(p, 8) for p in (PROMPT, [2, 4, 6, 8, 10])]
    stop = wanted[0][3]
    ends = [w.index(stop) + 1 if stop in w else 8 for w in wanted]
    found = decoder().generate([PROMPT, [2, 4, 6, 8, 10]], max_new_tokens=8, stop=[stop])
    assert [list(one.tokens) for one in found.sequences] == [w[:e] for w, e in zip(wanted, ends, strict=True)]
    assert found.sequences[0].is_stopped
    steps = list(decoder().stream(PROMPT, max_new_tokens=8, stop=[stop]))
    assert len(steps) == ends[0]


def test_draws_depend_on_the_seed_and_not_on_the_batch() -> None:
    settings: dict[str, Any] = {"max_new_tokens": 6, "temperature": 1.5, "top_k": 20, "top_p": 0.95}
    first = decoder().generate([PROMPT, PROMPT], seed=5, **settings)
    assert first.sequences == decoder().generate([PROMPT, PROMPT], seed=5, **settings).sequences
    assert first.sequences[0] != first.sequences[1]
    alone = decoder().generate(PROMPT, seed=5, **settings)
    assert alone.sequences[0] == first.sequences[0]
    assert alone.sequences != decoder().generate(PROMPT, seed=6, **settings).sequences


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.tile(np.asarray([0.1, 0.5, 0.15, 0.25], np.float32), (4000, 1)))

    def shares(**settings: Any) -> Array:
        sampling = Sampling(**settings)
        drawn = sampling.choose(logits, sampling.generators(len(logits)))
        return np.bincount(drawn, minlength=4) / len(drawn)

    assert shares().tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(shares(temperature=1.0), [0.1, 0.5, 0.15, 0.25], atol=0.03)
    np.testing.assert_allclose(shares(temperature=1.0, top_k=2), [0, 2 / 3, 0, 1 / 3], atol=0.03)
    np.testing.assert_allclose(shares(temperature=1.0, top_p=0.7), [0, 2 / 3, 0, 1 / 3], atol=0.03)
    squares = np.square([0.1, 0.5, 0.15, 0.25])
    np.testing.assert_allclose(shares(temperature=0.5), squares / squares.sum(), atol=0.03)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": []}, "prompts: give at least one token for each sequence."),
        ({"prompt": [[1], []]}, "prompts: give at least one token for each sequence."),
        ({"prompt": [1, -2]}, "prompt: give numbers of tokens, one list or several."),
        ({"prompt": [[1, 2], 3]}, "prompt: give numbers of tokens, one list or several."),
        ({"prompt": [1 << 63]}, f"prompts: numbers of tokens are at most {(1 << 63) - 1}."),
        ({"max_new_tokens": 0}, "max_new_tokens 0: give 1 or more."),
        ({"temperature": -1.0}, "temperature -1: give 0 or more."),
        ({"top_p": 0.0}, "top_p 0: give a probability above 0, at most 1."),
    ],
)
def test_what_makes_no_sense_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.UsageError) as caught:
        decoder(has_cache=False).generate(**{"prompt": PROMPT, **settings})
    assert str(caught.value) == message


def test_the_verb_prints_tokens_as_they_come_and_then_the_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_decoder(), "tiny.onnx")
    text = ",".join(map(str, PROMPT))
    result = tilewright("generate", "tiny.onnx", "--tokens", text, "--max-new-tokens", "5")
    assert result.code == 0, result.err
    assert [int(word) for word in result.out.split()] == likeliest(PROMPT, 5)
    assert "first token" in result.err
    several = ("--tokens", text, "--tokens", "7,8", "--max-new-tokens", "3", "--json")
    document = json.loads(tilewright("generate", "tiny.onnx", *several).out)
    assert [one["tokens"] for one in document["sequences"]] == [likeliest(PROMPT, 3), likeliest([7, 8], 3)]
    for flags, complaint in {
        (): "give --prompt TEXT with --tokenizer FILE, or numbers with --tokens.",
        ("--tokens", "1,x"): "--tokens '1,x': give numbers of tokens with commas between them: 15496,995.",
        ("--prompt", "Once"): "--prompt needs --tokenizer FILE, which says what its tokens are.",
    }.items():
        failed = tilewright("generate", "tiny.onnx", *flags)
        assert (failed.code, failed.complaint) == (2, complaint)


def test_the_verb_reads_and_writes_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_decoder(), "tiny.onnx")
    words = {f"w{number}": number for number in range(TOKENS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save("tokenizer.json")
    prompt = " ".join(f"w{number}" for number in PROMPT)
    flags = ("--tokenizer", "tokenizer.json", "--prompt", prompt, "--max-new-tokens", "4")
    result = tilewright("generate", "tiny.onnx", *flags)
    assert result.code == 0, result.err
    assert result.out.split() == [f"w{number}" for number in likeliest(PROMPT, 4)]
    Path("odd.json").write_text("{}")
    failed = tilewright("generate", "tiny.onnx", "--tokenizer", "odd.json", "--prompt", "w1")
    assert failed.complaint.startswith("odd.json: is no tokenizer.json (")


def test_a_model_that_is_no_decoder_says_what_it_lacks() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(tw.UsageError, match="no input of token numbers"):
        tw.generate(model, PROMPT)
    assert TOKENS <= PLACES
