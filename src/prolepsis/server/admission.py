"""From a checked body to the engine's request: tokens, sampling parameters, limits."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import uuid4

from anyio import to_thread

from prolepsis.core.errors import ContextTooLong, InvalidParameter
from prolepsis.core.requests import GenerateRequest, SpeculationChoice
from prolepsis.core.sampling_params import SamplingParams
from prolepsis.engine.client import EngineInfo
from prolepsis.server.bodies import ChatBody, CompletionBody, GenerationBody, SpeculationBody
from prolepsis.server.room import Room

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for completions; a chat answer may fill the context."""
_INLINE_CHARACTERS = 8192
"""Longer texts are tokenised off the event loop."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request the engine may be asked for, and how its answer is to be shown."""

    request: GenerateRequest
    model: str
    stream: bool
    include_usage: bool
    include_metrics: bool
    has_prediction: bool


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A tokenised prompt, the field it came from, and how many tokens the answer may have (None: all that fit)."""

    field: str
    token_ids: list[int]
    max_tokens: int | None
    predicted: tuple[int, ...] = ()


async def admit_chat(body: ChatBody, room: Room) -> Admitted:
    """Check `body` against the engine and tokenise it; raises `UserError`."""
    _check_common(body, room)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidParameter("top_logprobs is given; allowed: only where logprobs is true", param="top_logprobs")
    params = _sampling_params(body, (body.top_logprobs or 0) if body.logprobs else None)
    max_tokens = _chat_max_tokens(body)
    _check_params(params, max_tokens, room.client.info)
    messages = [_message(m.role, m.content) for m in body.messages]
    size = sum(len(message["content"]) for message in messages)
    token_ids = await _off_loop(size, lambda: room.tokenizer.apply_chat_template(messages))
    prompt = _Prompt("messages", token_ids, max_tokens, await _predicted_tokens(body, room))
    return _admit(body, params, prompt, room)


async def admit_completion(body: CompletionBody, room: Room) -> Admitted:
    """Check `body` against the engine and tokenise it; raises `UserError`."""
    _check_common(body, room)
    params = _sampling_params(body, body.logprobs)
    info = room.client.info
    _check_params(params, body.max_tokens, info)
    text = body.prompt
    if isinstance(text, str):
        token_ids = await _off_loop(len(text), lambda: room.tokenizer.encode(text))
    else:
        token_ids = _checked_ids(text, info.vocab_size)
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = max(1, params.min_tokens, min(DEFAULT_COMPLETION_TOKENS, info.max_model_len - len(token_ids)))
    return _admit(body, params, _Prompt("prompt", token_ids, max_tokens), room)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": "system" if role == "developer" else role, "content": content}


async def _off_loop(size: int, work: Callable[[], list[int]]) -> list[int]:
    return await to_thread.run_sync(work) if size > _INLINE_CHARACTERS else work()


async def _predicted_tokens(body: ChatBody, room: Room) -> tuple[int, ...]:
    if body.prediction is None:
        return ()
    text = body.prediction.content
    return tuple(await _off_loop(len(text), lambda: room.tokenizer.encode(text, add_special_tokens=False)))


def _check_common(body: GenerationBody, room: Room) -> None:
    room.check_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise InvalidParameter("stream_options is given; allowed: only where stream is true", param="stream_options")
    proposer = body.speculation.proposer if body.speculation else None
    known = room.client.info.proposers
    if proposer is not None and proposer not in known:
        message = f"speculation.proposer is {proposer[:64]!r}; allowed: {', '.join(known) or 'none is loaded'}"
        raise InvalidParameter(message, param="speculation.proposer")


def _chat_max_tokens(body: ChatBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = f"max_tokens is {old} and max_completion_tokens is {new}; allowed: one of them, or equal values"
        raise InvalidParameter(message, param="max_completion_tokens")
    return old if new is None else new


def _check_params(params: SamplingParams, max_tokens: int | None, info: EngineInfo) -> None:
    """Check before the prompt is tokenised; an answer of no stated length is checked at its longest."""
    longest = max(info.max_model_len, params.min_tokens) if max_tokens is None else max_tokens
    replace(params, max_tokens=longest).validate(info.vocab_size)


def _checked_ids(token_ids: list[int], vocab_size: int) -> list[int]:
    wrong = next((token for token in token_ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise InvalidParameter(f"prompt holds token {str(wrong)[:24]}; allowed: 0 to {vocab_size - 1}", param="prompt")
    return token_ids


def _admit(body: GenerationBody, params: SamplingParams, prompt: _Prompt, room: Room) -> Admitted:
    request = GenerateRequest(
        request_id=f"{'chatcmpl' if isinstance(body, ChatBody) else 'cmpl'}-{uuid4().hex}",
        prompt_token_ids=tuple(prompt.token_ids),
        params=replace(params, max_tokens=_fitting(prompt, params.min_tokens, room.client.info.max_model_len)),
        n=body.n or 1,
        priority=body.priority or 0,
        prediction_token_ids=prompt.predicted,
        speculation=_choice(body.speculation),
    )
    return Admitted(
        request=request,
        model=body.model,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        include_metrics=bool(body.speculation and body.speculation.metrics),
        has_prediction=isinstance(body, ChatBody) and body.prediction is not None,
    )


def _fitting(prompt: _Prompt, min_tokens: int, max_model_len: int) -> int:
    """Return how many tokens the answer may have; raises where prompt and answer do not fit the context."""
    length = len(prompt.token_ids)
    if not length:
        raise InvalidParameter(f"{prompt.field} has no tokens; allowed: 1 or more", param=prompt.field)
    answer = max(1, min_tokens) if prompt.max_tokens is None else prompt.max_tokens
    if length + answer > max_model_len:
        raise ContextTooLong(
            f"This model's context holds {max_model_len} tokens; given: {length} in {prompt.field} and "
            f"{answer} for the answer ({length + answer} in all).",
            param=prompt.field,
        )
    return max_model_len - length if prompt.max_tokens is None else answer


def _choice(body: SpeculationBody | None) -> SpeculationChoice:
    if body is None:
        return SpeculationChoice()
    return SpeculationChoice(
        enabled=body.mode != "off" and body.max_depth != 0,
        num_speculative_tokens=body.max_depth,
        proposers=None if body.proposer is None else (body.proposer,),
    )


def _sampling_params(body: GenerationBody, logprobs: int | None) -> SamplingParams:
    """Fill in the defaults; `max_tokens` is set later, when the prompt's length is known."""
    return SamplingParams(
        temperature=_given(body.temperature, 1.0),
        top_k=max(0, body.top_k or 0),
        top_p=_given(body.top_p, 1.0),
        min_p=_given(body.min_p, 0.0),
        repetition_penalty=_given(body.repetition_penalty, 1.0),
        presence_penalty=_given(body.presence_penalty, 0.0),
        frequency_penalty=_given(body.frequency_penalty, 0.0),
        logit_bias=tuple(sorted((body.logit_bias or {}).items())),
        min_tokens=body.min_tokens or 0,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        logprobs=logprobs,
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
