"""`tilewright generate`: tokens that a language model says after a prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli.flags import CompileFlags
from tilewright.cli.output import hint, progress, say, show, wants_json
from tilewright.errors import UsageError
from tilewright.extras import imported

if TYPE_CHECKING:
    from tilewright.generation import Step


def generate(
    flags: CompileFlags,
    model: Path = typer.Argument(
        metavar="MODEL", help="An ONNX file or artifact of a decoder: input_ids in, logits out."
    ),
    prompt: str | None = typer.Option(None, "--prompt", help="A text to go on from; needs --tokenizer."),
    tokenizer: Path | None = typer.Option(
        None, "--tokenizer", help="A tokenizer.json, as the package tokenizers reads it."
    ),
    tokens: list[str] | None = typer.Option(
        None, "--tokens", help="Numbers of tokens to go on from: 15496,995. Several --tokens are a batch."
    ),
    max_new_tokens: int = typer.Option(64, "--max-new-tokens", help="Say at most this many."),
    stop: str = typer.Option("", "--stop", help="Tokens that end a sequence: 50256."),
    temperature: float = typer.Option(0.0, "--temperature", help="0: the likeliest token; above: draw."),
    top_k: int = typer.Option(0, "--top-k", help="Draw among so many of the likeliest; 0: all."),
    top_p: float = typer.Option(1.0, "--top-p", help="Draw among the fewest with this probability."),
) -> None:
    """Generate tokens with a language model, from a cache of keys and values where it has one.

    Each token is printed as it comes, then the times. Example: `tilewright generate model.onnx --tokenizer
    tokenizer.json --prompt "Once upon"`, `tilewright generate model.onnx --tokens 15496,995`.
    """
    from tilewright.api.generation import Decoder

    texts = None if tokenizer is None else _read_tokenizer(tokenizer)
    prompts = [_numbers("--tokens", text) for text in tokens or ()]
    if prompt is not None:
        if texts is None:
            raise UsageError("--prompt needs --tokenizer FILE, which says what its tokens are.")
        prompts.append(texts.encode(prompt).ids)
    if not prompts:
        raise UsageError("give --prompt TEXT with --tokenizer FILE, or numbers with --tokens.")
    options = flags.options()
    with progress(f"compiling {model.name}") as update:
        decoder = Decoder(model, options=options, progress=update)
    is_shown = len(prompts) == 1 and not wants_json()
    made = decoder.generate(
        prompts,
        max_new_tokens=max_new_tokens,
        stop=_numbers("--stop", stop),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=options.seed,
        each=_printer(texts) if is_shown else None,
    )
    if not is_shown:
        show("generate", made)
        return
    say("")
    for line in made.lines():
        hint(line)


def _read_tokenizer(path: Path) -> Any:
    package = imported("tokenizers", "texts of --prompt")
    try:
        return package.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; check the path.") from None
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: is no tokenizer.json ({reason}).") from error


def _numbers(flag: str, text: str) -> list[int]:
    """Numbers with commas between them."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"{flag} {text!r}: give numbers of tokens with commas between them: 15496,995.")
    return [int(part) for part in parts]


def _printer(texts: Any) -> Callable[[Step], None]:
    """What prints the tokens of one sequence as they come; of texts whole characters alone."""
    said: list[int] = []
    shown = 0

    def each(step: Step) -> None:
        nonlocal shown
        said.append(int(step.tokens[0]))
        if texts is None:
            say(f"{said[-1]}", end=" ")
            return
        text = texts.decode(said)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half of a character
            say(text[shown:], end="")
            shown = len(text)

    return each
