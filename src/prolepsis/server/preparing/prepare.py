"""Turns a body into requests for the engine, by a line of values: what is asked, the conversation, the prompt, the
decision on speculation, the request."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args
from uuid import uuid4

from prolepsis.control.policy.decision import SpeculationRequest
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import MAX_SAMPLES
from prolepsis.control.web.intake import Intake
from prolepsis.core.config import MovedLine, ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.kill_scope import request_scopes
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, cache_salt_of
from prolepsis.engine.text.answer_formats.fenced import Fits, skeletons
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.output.pipeline import OutputPolicies
from prolepsis.server.preparing.asked import Asked
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody, GenerationBody
from prolepsis.server.preparing.constraint import constraint
from prolepsis.server.preparing.conversation import ModelPrompt, chat_conversation
from prolepsis.server.preparing.facts import request_facts
from prolepsis.server.preparing.fill import fill_prompt, fill_stop
from prolepsis.server.preparing.language import LanguageDetector
from prolepsis.server.preparing.limits import AnswerRoom, sampling_params
from prolepsis.server.preparing.prepared import PreparedRequest, RequestContext
from prolepsis.server.preparing.speculation import check_allowed, requested_speculation
from prolepsis.server.preparing.target import requested_target
from prolepsis.server.speculation_control import SpeculationControl


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    config: ServerConfig
    client: EngineClient
    tokenizer: Tokenizer
    intake: Intake
    admission: AdmissionController
    speculation: SpeculationControl
    output: OutputPolicies
    features: Sequence[Feature]
    languages: LanguageDetector = field(default_factory=LanguageDetector)


async def prepare(body: ChatBody | CompletionBody, context: RequestContext, model: ModelParts) -> PreparedRequest:
    """Check `body` against the engine and tokenise it; raises `UserError`."""
    if isinstance(body, ChatBody):
        return await prepare_chat(body, context, model)
    return await prepare_completion(body, context, model)


async def prepare_chat(
    body: ChatBody, context: RequestContext, model: ModelParts, *, field: str = "messages"
) -> PreparedRequest:
    """Check `body` against the engine and tokenise it; raises `UserError`. `field` is where the messages came from."""
    requested = _checked(body, context, model)
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameter("top_logprobs is given; allowed: only where logprobs is true", param="top_logprobs")
    params, room = _limits(body, (body.top_logprobs or 0) if body.logprobs else None, context, model)
    turn = partial(model.intake.large_work.run, context.caller.tenant, context.num_bytes)
    chat = await turn(lambda: _read_chat(body, context, model))
    prompt = replace(chat.prompt, token_ids=room.truncated(chat.prompt.token_ids, body))
    request = replace(
        _request(body, prompt, params, room.behind(len(prompt.token_ids), field), chat.grammar),
        prediction_token_ids=chat.predicted,
    )
    prepared = await _decided(body, [request], context, model, asked=chat.asked, requested=requested)
    return replace(prepared, thinking=prompt.thinking, formats=model.tokenizer.formats, fits=chat.fits)


@dataclass(frozen=True, slots=True)
class _Chat:
    """All of a chat that grows with its body."""

    asked: Asked
    prompt: ModelPrompt
    grammar: GrammarSpec | None
    predicted: tuple[int, ...]
    fits: Fits | None


def _read_chat(body: ChatBody, context: RequestContext, model: ModelParts) -> _Chat:
    tokenizer, formats = model.tokenizer, model.tokenizer.formats
    asked = Asked.of(body, open_objects="open_objects" in model.config.lenient)
    moves = [line for line in get_args(MovedLine) if f"move_{line}" in model.config.lenient]
    conversation, lines = chat_conversation(body, asked.tools.shown, tokenizer, moves)
    if lines:
        context.warn(f"moved from the system text to the end of the conversation: {', '.join(lines)} (lenient)")
    prompt = ModelPrompt.of(conversation, tokenizer)
    fits = None if asked.form.grammar or conversation.begun else asked.tools.fits(formats)
    expected = body.prediction.content if body.prediction else skeletons(asked.tools.functions) if fits else ""
    predicted = tokenizer.encode(expected, add_special_tokens=False) if expected else []
    most = model.client.info.max_model_len  # no answer is longer
    grammar = constraint(asked.form.grammar, asked.tools, prompt.thinking, formats)
    return _Chat(asked, prompt, grammar, tuple(predicted[:most]), fits)


async def prepare_completion(body: CompletionBody, context: RequestContext, model: ModelParts) -> PreparedRequest:
    """Check `body` against the engine and tokenise it; raises `UserError`."""
    requested = _checked(body, context, model)
    if len(body.prompt) * (body.n or 1) > MAX_SAMPLES:
        message = f"n is {body.n} for {len(body.prompt)} prompts; allowed: {MAX_SAMPLES} answers a request"
        raise InvalidParameter(message, param="n")
    if body.best_of not in (None, 1, body.n):
        allowed = f"{body.n or 1}, the value of n, or null"
        raise InvalidParameter(f"best_of is {body.best_of}; allowed: {allowed}", param="best_of")
    params, room = _limits(body, body.logprobs, context, model)
    turn = partial(model.intake.large_work.run, context.caller.tenant, context.num_bytes)
    asked, requests = await turn(lambda: _read_completion(body, params, room, model))
    return await _decided(body, requests, context, model, asked=asked, requested=requested)


def _read_completion(
    body: CompletionBody, params: SamplingParams, room: AnswerRoom, model: ModelParts
) -> tuple[Asked, list[GenerateRequest]]:
    """Do all of a completion's preparation that grows with its body: return what it asks, and a request a prompt."""
    asked, requests = Asked.of(body, open_objects="open_objects" in model.config.lenient), list[GenerateRequest]()
    if body.suffix:
        for name in ("echo", "truncate_prompt_tokens"):
            if getattr(body, name):
                raise InvalidParameter(f"{name} is given with suffix; allowed: one of them", param=name)
        penalty = 1.0 if body.repetition_penalty is None else params.repetition_penalty  # what follows may repeat
        params = replace(params, stop=params.stop or fill_stop(body.suffix), repetition_penalty=penalty)
    largest = model.client.info.vocab_size - 1
    for text in body.prompt:
        if body.suffix:
            given = fill_prompt(text, body.suffix, model.tokenizer)
        elif isinstance(text, str):
            given = model.tokenizer.encode(text, add_special_tokens=body.add_special_tokens is not False)
        else:
            given = text
            wrong = next((token for token in given if not 0 <= token <= largest), None)
            if wrong is not None:
                message = f"prompt holds token {str(wrong)[:24]}; allowed: 0 to {largest}"
                raise InvalidParameter(message, param="prompt")
        prompt = ModelPrompt(room.truncated(given, body))
        answer = room.behind(len(prompt.token_ids), "prompt")
        requests.append(_request(body, prompt, params, answer, asked.form.grammar))
    return asked, requests


def _checked(body: GenerationBody, context: RequestContext, model: ModelParts) -> SpeculationRequest:
    """Check what needs no work; return what the caller asks of speculation."""
    if body.stream_options is not None and not body.stream:
        raise InvalidParameter("stream_options is given; allowed: only where stream is true", param="stream_options")
    proposers = model.client.info.proposers
    requested = requested_speculation(body.speculation, context.headers, context.caller, proposers)
    model.admission.check_open(context.caller)
    return requested


def _limits(
    body: GenerationBody, logprobs: int | None, context: RequestContext, model: ModelParts
) -> tuple[SamplingParams, AnswerRoom]:
    """Return how to sample, and the room; checked before the prompt is tokenised, with the longest answer."""
    info, may_shorten = model.client.info, context.clamps or "clamp_max_tokens" in model.config.lenient
    room = AnswerRoom.of(body, info, fills=context.clamps, warn=context.warn if may_shorten else None)
    params = sampling_params(body, info.default_sampling, logprobs)
    replace(params, max_tokens=room.longest).validate(info.vocab_size)
    return params, room


def _request(
    body: GenerationBody, prompt: ModelPrompt, params: SamplingParams, max_tokens: int, grammar: GrammarSpec | None
) -> GenerateRequest:
    return GenerateRequest(
        request_id="",
        prompt_token_ids=prompt.token_ids,
        params=replace(params, max_tokens=max_tokens),
        n=body.n or 1,
        priority=body.priority or 0,
        grammar=grammar,
    )


async def _decided(
    body: GenerationBody,
    requests: Sequence[GenerateRequest],
    context: RequestContext,
    model: ModelParts,
    *,
    asked: Asked,
    requested: SpeculationRequest,
) -> PreparedRequest:
    """Give the requests their ids, their scope and the decision on speculation."""
    stated = requested_target(context.headers)
    for warning in (*asked.form.warnings, *asked.tools.warnings):
        context.warn(warning)
    prefix, own = "chatcmpl" if isinstance(body, ChatBody) else "cmpl", uuid4().hex
    longest = max(len(request.prompt_token_ids) for request in requests)
    policies, params = model.speculation.policies, requests[0].params
    facts = request_facts(
        body,
        params,
        context,
        prompt_tokens=longest,
        time=policies.now(),
        targeting_key=own,
        detect=model.languages.detect if policies.detects_language else None,
    )
    decision = check_allowed(await model.speculation.decision(requested, facts))
    decided = tuple(
        replace(
            request,
            request_id=f"{prefix}-{own}" if i == 0 else f"{prefix}-{own}-{i}",
            cache_salt=cache_salt_of(context.caller.tenant, body.cache_salt),
            traffic_class=decision.traffic_class,
            kill_scopes=request_scopes(facts, decision.traffic_class, decision.rule),
            speculation=decision.choice,
            target=decision.target(stated),
            paced=decision.emit == "token",
        )
        for i, request in enumerate(requests)
    )
    prepared = PreparedRequest(
        body=body,
        context=context,
        requests=decided,
        answer_id=f"{prefix}-{body.request_id or own}",
        facts=facts,
        speculation=decision,
        asked=asked,
    )
    if requested.learn and not prepared.learns:
        context.warn("nothing is learnt: that takes a rule with learning for the tenant, n 1 and no cache_salt")
    return prepared
