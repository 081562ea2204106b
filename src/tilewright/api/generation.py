"""`tw.generate` and `tw.Decoder`: tokens that a language model says after a prompt."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api.artifacts import open_artifact
from tilewright.api.compilation import compile_model
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.compiled import CompiledModel
from tilewright.errors import UsageError
from tilewright.files import is_artifact
from tilewright.generation import DecoderSignature, Sampling, Sequences, Step, next_tokens
from tilewright.options import Options
from tilewright.progress import Progress
from tilewright.results import Result, Table, about, in_json
from tilewright.specialise.model import OpenCompiledModel

Prompt = Sequence[int] | Sequence[Sequence[int]]
"""Numbers of tokens of one sequence or of several."""


@dataclass(frozen=True, slots=True)
class GeneratedSequence:
    """What followed a prompt; a token that ended it is the last."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    is_stopped: bool = field(metadata=about("Whether a token of `stop` ended it; else the number did."))


@dataclass(frozen=True, slots=True)
class GenerateResult(Result):
    """Tokens that were generated, and the time that they took."""

    model: str
    sequences: tuple[GeneratedSequence, ...]
    first_token_ms: float = field(metadata=about("From the prompt to the first token, compilation included."))
    compile_ms: float = field(metadata=about("What was compiled on the way, for lengths that were new."))
    token_ms: float | None = field(metadata=about("Median of the steps behind; null if there were none."))
    num_steps: int

    @in_json
    def tokens_per_s(self) -> float | None:
        """Of all sequences together, behind the first token."""
        return 1e3 * len(self.sequences) / self.token_ms if self.token_ms else None

    def tables(self) -> Sequence[Table]:
        """A row for each sequence."""
        rows = tuple(
            (
                f"{len(one.prompt)}",
                f"{len(one.tokens)}",
                "a token of stop" if one.is_stopped else "the number",
                " ".join(map(str, one.tokens)),
            )
            for one in self.sequences
        )
        return (Table(("prompt", "new", "ended by", "tokens"), rows, self.model, (0, 1)),)

    def lines(self) -> Sequence[str]:
        """The times."""
        first = f"first token {self.first_token_ms:,.1f} ms"
        if self.compile_ms:
            first += f" (code for new lengths {self.compile_ms:,.1f} ms)"
        if self.token_ms is None:
            return (first,)
        return (f"{first}; each other {self.token_ms:.2f} ms ({self.tokens_per_s:,.0f} tokens/s)",)


class Decoder:
    """A language model that is compiled once and generates again and again, from its own cache of keys and
    values.

    Inputs and outputs are known by the names that exporters give them: `input_ids`, `attention_mask`,
    `position_ids`, `past_key_values.0.key` and `present.0.key`, `logits` (transformers, optimum), `seqlens_k`
    and `total_sequence_length` (GroupQueryAttention). A cache may grow, or be a buffer whose places are
    filled; a model without one reads all tokens in each step.
    """

    def __init__(
        self,
        model: CompiledModel | Any,
        *,
        options: Options | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> None:
        """Compile an ONNX file or open an artifact; `settings` are fields of `Options`.

        Raises:
            UsageError: the model is no decoder, as its inputs and outputs tell.
        """
        self.name = Path(model).name if isinstance(model, str | Path) else "model"
        if isinstance(model, CompiledModel):
            self.model = model
        elif isinstance(model, str | Path) and is_artifact(Path(model)):
            self.model = open_artifact(model, options=options, **settings)
        else:
            self.model = compile_model(model, options=options, progress=progress, **settings)
        self.signature = DecoderSignature.of(self.model.get_inputs(), self.model.get_outputs())

    @property
    def _compiled_s(self) -> float:
        """What compiling for lengths took so far."""
        return self.model.specialisations.seconds if isinstance(self.model, OpenCompiledModel) else 0.0

    @checked
    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 64,
        stop: Collection[int] = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        pads_prompts: bool = True,
    ) -> Iterator[Step]:
        """The next token of each sequence, as soon as it is known.

        At `temperature` 0 it is the likeliest one, else drawn among the `top_k` likeliest (0: all) and the
        fewest that have probability `top_p`; equal seeds give equal tokens. Tokens of `stop` end a sequence.
        With `pads_prompts` prompts are fed with places behind them, up to a power of two, that a causal
        model does not see: set it to False for one whose prompt is not causal.

        Raises:
            UsageError: an empty prompt, a setting that makes no sense, or more tokens than caches hold.
        """
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens {max_new_tokens}: give 1 or more.")
        sampling = Sampling(temperature, top_k, top_p, seed)
        sequences = Sequences(self.signature, _prompts(prompt))
        return next_tokens(
            self._run,
            sequences,
            sampling,
            max_new_tokens=max_new_tokens,
            stop=stop,
            pads_prompts=pads_prompts,
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        stop: Collection[int] = (),
        each: Callable[[Step], None] | None = None,
        **settings: Any,
    ) -> GenerateResult:
        """All tokens, with times; `settings` as for `stream`. `each` is told of every step as it comes."""
        prompts = _prompts(prompt)
        tokens: list[list[int]] = [[] for _ in prompts]
        times_s: list[float] = []
        compiled_s = self._compiled_s
        start_s = time.perf_counter()
        for step in self.stream(prompts, stop=stop, **settings):
            times_s.append(time.perf_counter() - start_s)
            for row in np.flatnonzero(step.is_running):
                tokens[row].append(int(step.tokens[row]))
            if each is not None:
                each(step)
            start_s = time.perf_counter()
        ended = set(stop)
        return GenerateResult(
            model=self.name,
            sequences=tuple(
                GeneratedSequence(tuple(map(int, one)), tuple(said), said[-1] in ended)
                for one, said in zip(prompts, tokens, strict=True)
            ),
            first_token_ms=1e3 * times_s[0],
            compile_ms=1e3 * (self._compiled_s - compiled_s),
            token_ms=1e3 * statistics.median(times_s[1:]) if len(times_s) > 1 else None,
            num_steps=len(times_s),
        )

    def _run(self, names: Sequence[str], feed: Mapping[str, Array]) -> Sequence[Array]:
        return self.model.run(list(names), feed)


@checked
def generate_tokens(
    model: CompiledModel | Any,
    prompt: Prompt,
    *,
    max_new_tokens: int = 64,
    stop: Collection[int] = (),
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    pads_prompts: bool = True,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> GenerateResult:
    """Tokens that a language model says after a prompt, as numbers; as `Decoder.stream`, all at once.

    A `Decoder` keeps the compiled model for further prompts. `settings` are fields of `Options`.

    Raises:
        UsageError: the model is no decoder, or a setting makes no sense.
    """
    decoder = Decoder(model, options=options, progress=progress, **settings)
    return decoder.generate(
        prompt,
        max_new_tokens=max_new_tokens,
        stop=stop,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        pads_prompts=pads_prompts,
    )


def _prompts(prompt: Prompt) -> list[Sequence[int]]:
    listed: list[Any] = [list(one) if isinstance(one, Iterable) else one for one in prompt]
    prompts: list[Sequence[int]] = listed if any(isinstance(one, list) for one in listed) else [listed]
    for one in prompts:
        if not isinstance(one, list) or not all(
            isinstance(token, int | np.integer) and token >= 0 for token in one
        ):
            raise UsageError("prompt: give numbers of tokens, one list or several.")
    return prompts
