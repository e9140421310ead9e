"""Turns a checked body into requests for the engine: tokens, sampling parameters, grammar, limits, cache scope."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from uuid import uuid4

from prolepsis.control.policy.decision import SpeculationRequest
from prolepsis.control.web.fields import MAX_SAMPLES
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import ContextTooLong, InvalidParameter
from prolepsis.core.facts import traffic_class_of
from prolepsis.core.kill_scope import request_scopes
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.engine.text.answer_formats.fenced import Fits, skeletons
from prolepsis.engine.text.answer_formats.formats import AnswerFormats, Thinking
from prolepsis.engine.text.answer_formats.json_arguments import object_schema
from prolepsis.engine.text.grammar.validation import broken
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.preparing.asked_form import AskedForm, asked_form
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody, GenerationBody
from prolepsis.server.preparing.constraint import ToolUse, constraint, tool_use
from prolepsis.server.preparing.conversation import prompt_tokens, thinking_of
from prolepsis.server.preparing.facts import DEFAULT_COMPLETION_TOKENS, request_facts, sampling_params
from prolepsis.server.preparing.fill import fill_prompt, fill_stop
from prolepsis.server.preparing.model_parts import ModelParts
from prolepsis.server.preparing.prefix_hygiene import moved, without_attribution
from prolepsis.server.preparing.prepared import PreparedRequest, RequestContext
from prolepsis.server.preparing.speculation import check_allowed, requested_speculation

FITTING = -1
"""As number of a prompt's tokens: as many as the context has room for."""


async def prepare_chat(
    body: ChatBody, context: RequestContext, model: ModelParts, *, field: str = "messages"
) -> PreparedRequest:
    """Check `body` against the engine and tokenise it; raises `UserError`. `field` is where the messages came from."""
    speculation = _check_common(body, context, model)
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameter("top_logprobs is given; allowed: only where logprobs is true", param="top_logprobs")
    params = sampling_params(
        body, model.client.info.default_sampling, (body.top_logprobs or 0) if body.logprobs else None
    )
    max_tokens = _chat_max_tokens(body)
    _check_params(params, max_tokens, model.client.info)
    turn = partial(model.intake.large_work.run, context.caller.tenant, context.num_bytes)
    chat = await turn(lambda: _read_chat(body, context, model))
    for warning in (*chat.form.warnings, *chat.tools.warnings):
        context.warn(warning)
    token_ids = _truncated(chat.token_ids, max_tokens, body, model.client.info)
    length = len(token_ids)
    max_tokens = _clamped(max_tokens, length, params, context, model)
    max_tokens = _fitting(length, max_tokens, field, params.min_tokens, model.client.info)
    request = _request(body, token_ids, replace(params, max_tokens=max_tokens), chat.grammar)
    request = replace(request, prediction_token_ids=chat.predicted)
    prepared = await _decided(body, [request], context, speculation, model)
    grammar_field = _grammar_field(body, has_tools=bool(chat.tools.callable))
    return replace(
        prepared,
        thinking=chat.thinking,
        tools=chat.tools,
        formats=model.tokenizer.formats,
        checked_schema=chat.form.checked,
        fits=chat.fits,
        grammar_field=grammar_field,
    )


@dataclass(frozen=True, slots=True)
class _Chat:
    """A conversation as prompt, with its tools and the form of its answer."""

    token_ids: tuple[int, ...]
    tools: ToolUse
    thinking: Thinking
    form: AskedForm
    grammar: GrammarSpec | None
    predicted: tuple[int, ...]
    fits: Fits | None


def _read_chat(body: ChatBody, context: RequestContext, model: ModelParts) -> _Chat:
    """Do all of a chat's preparation that grows with its body."""
    tokenizer, open_objects = model.tokenizer, model.config.open_objects
    tools = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, open_objects=open_objects)
    form = asked_form(body, open_objects=open_objects)
    messages, lines = moved(body.messages, model.config.move_lines)
    if lines:
        context.warn(f"moved from the system text to the end of the conversation: {', '.join(lines)} (move_lines)")
    token_ids = chat_tokens(body.model_copy(update={"messages": messages}), tools, tokenizer)
    begun = (body.messages[-1].content or "") if body.continue_final_message else ""
    thinking = thinking_of(token_ids, tokenizer, begun)
    fits = None if form.grammar or begun else _fits(tools, tokenizer.formats)
    expected = body.prediction.content if body.prediction else skeletons(tools.functions) if fits else ""
    predicted = tokenizer.encode(expected, add_special_tokens=False) if expected else []
    most = model.client.info.max_model_len  # no answer is longer
    grammar = constraint(form.grammar, tools, thinking, tokenizer.formats)
    return _Chat(tuple(token_ids), tools, thinking, form, grammar, tuple(predicted[:most]), fits)


def _fits(tools: ToolUse, formats: AnswerFormats) -> Fits | None:
    """Return what decides on fenced calls; None where the model writes none, or the answer is calls anyway or never.

    The first verdict on a call is work for a thread; it is known from then on.
    """
    if formats.tools is None or not formats.tools.fenced or not tools.callable or tools.required:
        return None
    schemas = {function.name: object_schema(function) for function in tools.functions}
    return cache(lambda call: broken(schemas[call.name], call.arguments) is None)


def chat_tokens(body: ChatBody, tools: ToolUse, tokenizer: Tokenizer) -> list[int]:
    """Return the prompt of a chat; raises `InvalidParameter` where the template refuses it."""
    return prompt_tokens(
        without_attribution(body.messages),
        tools.shown,
        tokenizer,
        body.template_variables,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        parse_special=bool(body.parse_special),
    )


async def prepare_completion(body: CompletionBody, context: RequestContext, model: ModelParts) -> PreparedRequest:
    """Check `body` against the engine and tokenise it; raises `UserError`."""
    speculation = _check_common(body, context, model)
    if len(body.prompt) * (body.n or 1) > MAX_SAMPLES:
        message = f"n is {body.n} for {len(body.prompt)} prompts; allowed: {MAX_SAMPLES} answers a request"
        raise InvalidParameter(message, param="n")
    info = model.client.info
    if body.best_of not in (None, 1, body.n):
        allowed = f"{body.n or 1}, the value of n, or null"
        raise InvalidParameter(f"best_of is {body.best_of}; allowed: {allowed}", param="best_of")
    params = sampling_params(body, info.default_sampling, body.logprobs)
    _check_params(params, body.max_tokens, info)
    turn = partial(model.intake.large_work.run, context.caller.tenant, context.num_bytes)
    requests, form = await turn(lambda: _read_completion(body, params, context, model))
    for warning in form.warnings:
        context.warn(warning)
    prepared = await _decided(body, requests, context, speculation, model)
    return replace(prepared, grammar_field=_grammar_field(body, has_tools=False), checked_schema=form.checked)


def _read_completion(
    body: CompletionBody, params: SamplingParams, context: RequestContext, model: ModelParts
) -> tuple[list[GenerateRequest], AskedForm]:
    """Do all of a completion's preparation that grows with its body: return what it asks for each prompt, and how."""
    info, requests = model.client.info, list[GenerateRequest]()
    form = asked_form(body, open_objects=model.config.open_objects)
    if body.suffix:
        penalty = 1.0 if body.repetition_penalty is None else params.repetition_penalty  # what follows may repeat
        params = replace(params, stop=params.stop or fill_stop(body.suffix), repetition_penalty=penalty)
    for text in body.prompt:
        given = _text_tokens(text, body, model.tokenizer, info)
        token_ids = _truncated(given, body.max_tokens, body, info)
        asked = body.max_tokens
        if asked is None and not context.clamps:
            asked = max(1, params.min_tokens, min(DEFAULT_COMPLETION_TOKENS, info.max_model_len - len(token_ids)))
        asked = _clamped(asked, len(token_ids), params, context, model)
        max_tokens = _fitting(len(token_ids), asked, "prompt", params.min_tokens, info)
        requests.append(_request(body, token_ids, replace(params, max_tokens=max_tokens), form.grammar))
    return requests, form


def _truncated(
    token_ids: Sequence[int], max_tokens: int | None, body: GenerationBody, info: EngineInfo
) -> tuple[int, ...]:
    """Return the last tokens of a prompt, as many as the body asks for, if it does."""
    most = body.truncate_prompt_tokens
    if most == FITTING:
        most = max(1, info.max_model_len - _least_answer(max_tokens, body.min_tokens or 0))
    return tuple(token_ids if most is None else token_ids[max(0, len(token_ids) - most) :])


def _text_tokens(text: str | list[int], body: CompletionBody, tokenizer: Tokenizer, info: EngineInfo) -> list[int]:
    if body.suffix:
        for name in ("echo", "truncate_prompt_tokens"):
            if getattr(body, name):
                raise InvalidParameter(f"{name} is given with suffix; allowed: one of them", param=name)
        return fill_prompt(text, body.suffix, tokenizer)
    if isinstance(text, str):
        return tokenizer.encode(text, add_special_tokens=body.add_special_tokens is not False)
    return _checked_ids(text, info.vocab_size)


def _check_common(body: GenerationBody, context: RequestContext, model: ModelParts) -> SpeculationRequest:
    if body.stream_options is not None and not body.stream:
        raise InvalidParameter("stream_options is given; allowed: only where stream is true", param="stream_options")
    speculation = requested_speculation(
        body.speculation, context.spec_mode, context.caller, model.client.info.proposers
    )
    model.admission.check_open(context.caller)
    return speculation


def _chat_max_tokens(body: ChatBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = f"max_tokens is {old} and max_completion_tokens is {new}; allowed: one of them, or equal values"
        raise InvalidParameter(message, param="max_completion_tokens")
    if old == 0 and body.prompt_logprobs is None:
        raise InvalidParameter("max_tokens is 0; allowed: 1 or more, or prompt_logprobs with it", param="max_tokens")
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


def _grammar_field(body: GenerationBody, *, has_tools: bool) -> str | None:
    if body.structured_outputs is not None:
        return "structured_outputs"
    if body.response_format is not None and body.response_format.type != "text":
        return "response_format"
    return "tools" if has_tools else None


def _request(
    body: GenerationBody, token_ids: tuple[int, ...], params: SamplingParams, grammar: GrammarSpec | None
) -> GenerateRequest:
    """Return what the body says of one prompt's request."""
    return GenerateRequest(
        request_id="",
        prompt_token_ids=token_ids,
        params=params,
        n=body.n or 1,
        priority=body.priority or 0,
        grammar=grammar,
    )


async def _decided(
    body: GenerationBody,
    requests: Sequence[GenerateRequest],
    context: RequestContext,
    requested: SpeculationRequest,
    model: ModelParts,
) -> PreparedRequest:
    """Give the requests their ids, their scope and the decision on speculation."""
    prefix, own = "chatcmpl" if isinstance(body, ChatBody) else "cmpl", uuid4().hex
    longest = max(len(request.prompt_token_ids) for request in requests)
    now, params = model.speculation.policies.now(), requests[0].params
    facts = request_facts(body, params, context, prompt_tokens=longest, time=now, targeting_key=own)
    decision = check_allowed(await model.speculation.decision(requested, facts))
    traffic_class = traffic_class_of(facts, decision.class_rule)
    decided = tuple(
        replace(
            request,
            request_id=f"{prefix}-{own}" if i == 0 else f"{prefix}-{own}-{i}",
            cache_salt=scope(context.caller.tenant, body.cache_salt),
            traffic_class=traffic_class,
            kill_scopes=request_scopes(facts, traffic_class, decision.rule),
            speculation=decision.choice,
            paced=decision.emit == "token",
        )
        for i, request in enumerate(requests)
    )
    answer_id = f"{prefix}-{body.request_id or own}"
    return PreparedRequest(body=body, context=context, requests=decided, answer_id=answer_id, speculation=decision)


def scope(tenant: str, salt: str | None) -> str:
    """Return the scope of one tenant's requests with one salt; no two pairs share one."""
    return f"{len(tenant)}:{tenant}:{salt}" if salt else tenant and f"{len(tenant)}:{tenant}"


def _clamped(
    max_tokens: int | None, length: int, params: SamplingParams, context: RequestContext, model: ModelParts
) -> int | None:
    """Return `max_tokens`, shortened to the room behind a prompt of this length where that is allowed."""
    room = model.client.info.max_model_len - length
    is_over = max_tokens is not None and max_tokens > room >= max(1, params.min_tokens)
    if not is_over or not (context.clamps or model.config.clamp_max_tokens):
        return max_tokens
    context.warn(f"max_tokens is {max_tokens}, and the context has less room: the answer may fill it")
    return room


def _least_answer(max_tokens: int | None, min_tokens: int) -> int:
    """Return how many tokens of the context must be left for the answer."""
    return max(1, min_tokens) if max_tokens is None else max_tokens


def _fitting(length: int, max_tokens: int | None, field: str, min_tokens: int, info: EngineInfo) -> int:
    """Return how many tokens the answer may have; raises where prompt and answer do not fit the context."""
    if not length:
        raise InvalidParameter(f"{field} has no tokens; allowed: 1 or more", param=field)
    answer = _least_answer(max_tokens, min_tokens)
    if length + answer > info.max_model_len:
        raise ContextTooLong.of(
            info.max_model_len,
            f"{length + answer} tokens: {length} in {field} and {answer} for the answer",
            param=field,
        )
    return info.max_model_len - length if max_tokens is None else answer
