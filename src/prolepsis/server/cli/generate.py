"""`prolepsis generate`: prints the continuation of a prompt, and its acceptance figures if asked for."""

import asyncio
import sys
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.core.ask import ask as ask_engine
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import Tokens
from prolepsis.core.files import read_text
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.flags import configured, with_settings
from prolepsis.core.terminal.output import print_facts, print_json, print_table, stderr
from prolepsis.core.traffic_sums import ratio
from prolepsis.engine.text.stream import StopStrings, TextStream
from prolepsis.engine.text.tokenizer import ChatTokenizer, encode_message


def figures(stats: RequestStats) -> dict[str, object]:
    """Return counts, times in milliseconds and ratios of one request, as JSON shows them."""
    counts = ("num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "num_steps")
    return {
        **{name: getattr(stats, name) for name in counts},
        "tokens_a_pass": round(stats.acceptance_length, 3),
        "tokens_per_s": _rounded(tokens_per_s(stats)),
        "first_token_ms": _ms(stats.first_token_s),
        "queue_ms": _ms(stats.queue_s),
        "compute_ms": _ms(stats.compute_s),
        "total_ms": _ms(stats.total_s),
        "device_ms": {kind: _ms(seconds) for kind, seconds in stats.device.by_kind().items()},
        "mode": stats.mode.mode,
        "reason": stats.mode.reason,
        "plain_steps": dict(stats.plain_steps),
        "proposers": {name: _proposer(counts) for name, counts in sorted(stats.proposers.items())},
    }


def tokens_per_s(stats: RequestStats) -> float | None:
    """Return output tokens per second from arrival to the end, None where no time passed."""
    return stats.num_output_tokens / stats.total_s if stats.total_s > 0 else None


def print_stats(stats: RequestStats) -> None:
    """Print the figures on standard error: the request's line by line, a table of its proposers where any drafted."""
    values = figures(stats)
    values.pop("proposers")
    values["device_ms"] = ", ".join(f"{1e3 * spent:.1f} {kind}" for kind, spent in stats.device.by_kind().items())
    values["plain_steps"] = ", ".join(f"{count} {reason}" for reason, count in stats.plain_steps.items()) or None
    print_facts(list(values.items()), stderr())
    if stats.proposers:
        columns = ["proposer", "drafts", "drafted", "accepted", "rate", "tokens a pass", "by position"]
        rows = [[name, *_proposer_row(counts)] for name, counts in sorted(stats.proposers.items())]
        print_table("proposers", columns, rows, stderr())


def _proposer(counts: ProposerCounts) -> dict[str, object]:
    return {
        "num_drafts": counts.num_drafts,
        "num_draft_tokens": counts.num_draft_tokens,
        "num_accepted": counts.num_accepted,
        "acceptance_rate": _rounded(ratio(counts.num_accepted, counts.num_draft_tokens), 4),
        "tokens_a_pass": _rounded(_acceptance_length(counts), 3),
        "per_position": [{"drafted": drafted, "accepted": accepted} for drafted, accepted in counts.per_position],
    }


def _proposer_row(counts: ProposerCounts) -> list[str]:
    rates = " ".join(f"{accepted / drafted:.2f}" for drafted, accepted in counts.per_position[:8] if drafted)
    rate, length = ratio(counts.num_accepted, counts.num_draft_tokens), _acceptance_length(counts)
    numbers = [str(n) for n in (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted)]
    return [*numbers, "-" if rate is None else f"{rate:.3f}", "-" if length is None else f"{length:.2f}", rates]


def _acceptance_length(counts: ProposerCounts) -> float | None:
    extra = ratio(counts.num_accepted, counts.num_drafts)
    return None if extra is None else 1 + extra


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 1)


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


_ANY_VOCABULARY = 2**31


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """The request that the command line describes."""

    prompt: str
    system: str | None
    raw: bool
    prediction: str | None
    speculation: SpeculationChoice
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished continuation."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    stop_reason: str | int | None
    stats: RequestStats


def _sampling(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Sampling")


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of the command line, named as in `SamplingParams`; its defaults differ from the API's."""

    max_tokens: Annotated[int, _sampling("most tokens of the answer")] = 256
    min_tokens: Annotated[int, _sampling("fewest tokens of the answer")] = 0
    temperature: Annotated[float, _sampling("0 is greedy")] = 0.0
    top_k: Annotated[int, _sampling("0 keeps all")] = 0
    top_p: Annotated[float, _sampling("1 keeps all")] = 1.0
    min_p: Annotated[float, _sampling("0 keeps all")] = 0.0
    repetition_penalty: Annotated[float, _sampling("1 is none")] = 1.0
    presence_penalty: Annotated[float, _sampling("0 is none")] = 0.0
    frequency_penalty: Annotated[float, _sampling("0 is none")] = 0.0
    seed: Annotated[int, _sampling("the same seed gives the same tokens")] = 0
    stop: Annotated[list[str], _sampling("text that ends the answer; may be repeated")] = field(default_factory=list)
    ignore_eos: Annotated[bool, _sampling("continue after the end of sequence", "--ignore-eos")] = False


@configured(EngineConfig)
@with_settings(Sampling())
def generate(
    settings: Settings,
    sampling: Sampling,
    *,
    prompt: Annotated[
        str, typer.Argument(help="the user's message, or text to continue; '-' reads standard input")
    ] = "-",
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="continue the prompt without the chat template")] = False,
    prediction: Annotated[
        Path | None, typer.Option(help="file with text that the answer is likely to repeat", metavar="FILE")
    ] = None,
    speculation: Annotated[bool, typer.Option("--speculation/--no-speculation", help="draft tokens or not")] = True,
    stats: Annotated[bool, typer.Option("--stats", help="print times and acceptance on standard error")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document at the end")] = False,
) -> None:
    """Print the continuation of a prompt while it is generated."""
    params = SamplingParams(**asdict(sampling) | {"stop": tuple(sampling.stop)})
    params.require_answer()
    params.validate(_ANY_VOCABULARY)  # before the model is loaded; the engine checks token ids
    choice = SpeculationChoice("auto" if speculation else "off")
    ask = GenerateCall(
        _text(prompt), system, raw, read_text(prediction, "prediction") if prediction else None, choice, params
    )
    answer, model = asyncio.run(
        _answer(ask, settings, (lambda piece: None) if as_json else partial(print, end="", flush=True))
    )
    if as_json:
        print_json({"model": model, **asdict(answer), "stats": figures(answer.stats)})
        return
    print()
    if stats:
        print_stats(answer.stats)


async def _answer(ask: GenerateCall, settings: Settings, show: Callable[[str], None]) -> tuple[Answer, str]:
    from prolepsis.server.cli.engine import running

    async with running(settings) as engine:
        return await answer_to(ask, engine.client, engine.tokenizer, show), engine.client.info.model


async def answer_to(
    ask: GenerateCall, client: EngineClient, tokenizer: ChatTokenizer, show: Callable[[str], None]
) -> Answer:
    """Generate the answer and pass each piece of text to `show`.

    Raises the error of a request that fails, `EngineError` for one that is aborted.
    """
    text = TextStream(tokenizer, StopStrings.of(ask.params.stop), min_tokens=ask.params.min_tokens)
    pieces: list[str] = []
    last = Tokens("", 0, (), position=0)

    def take(piece: str) -> None:
        if piece:
            pieces.append(piece)
            show(piece)

    def push(event: Tokens) -> None:
        nonlocal last
        last = event
        take(text.push(event.token_ids))

    prompt = tokenizer.encode(ask.prompt) if ask.raw else encode_message(ask.prompt, tokenizer, system=ask.system)
    prediction = tokenizer.encode(ask.prediction, add_special_tokens=False) if ask.prediction else []
    request = GenerateRequest(
        request_id=f"generate-{uuid.uuid4().hex}",
        prompt_token_ids=tuple(prompt),
        params=ask.params,
        prediction_token_ids=tuple(prediction),
        speculation=ask.speculation,
    )
    answer = await ask_engine(client, request, push)
    take(text.finish())
    return Answer("".join(pieces), answer.token_ids, last.finish_reason, last.stop_reason, answer.stats)


def _text(prompt: str) -> str:
    try:
        text = sys.stdin.buffer.read().decode() if prompt == "-" else prompt
        text.encode()
    except UnicodeError as error:
        raise InvalidParameter(f"the prompt is not UTF-8: {error}", param="prompt") from error
    if not text:
        raise InvalidParameter("the prompt is empty; allowed: some text", param="prompt")
    return text
