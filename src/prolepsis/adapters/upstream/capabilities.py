"""What upstream engines can do.

What neither pool can do is refused by name; what drafts cannot be combined with is decoded by the plain pool.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prolepsis.core.config import EngineConfig, ServerConfig, UpstreamApi
from prolepsis.core.errors import ConfigError, InvalidGrammar, InvalidParameter
from prolepsis.core.requests import WHOLE_VOCABULARY, GenerateRequest, GrammarKind

EXACTNESS = (
    "the pools are engines of others: their drafts change no distribution, as far as they verify exactly, and the same "
    "request need not get the same answer"
)
"""Why the exactness is normal."""

_ALL: tuple[UpstreamApi, ...] = ("vllm", "sglang", "llama.cpp")


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that a request may ask for, and which engines can do it."""

    name: str  # as the client calls it
    is_asked: Callable[[GenerateRequest], bool]
    apis: tuple[UpstreamApi, ...] = _ALL
    why: str = ""  # the others cannot
    with_drafts: tuple[UpstreamApi, ...] = _ALL  # those that can do it while they speculate


_NOT_READ = "they are not read from upstreams"
_COUNTS_PROMPT = "it counts tokens of the prompt too"
_TWO: tuple[UpstreamApi, ...] = ("vllm", "sglang")
_OTHERS: tuple[UpstreamApi, ...] = ("sglang", "llama.cpp")
CAPABILITIES = (
    Capability(
        "top_logprobs",
        lambda r: r.params.logprobs == WHOLE_VOCABULARY,
        (),
        "at -1: all of a vocabulary are not read from upstreams",
    ),
    Capability("logprobs", lambda r: r.params.logprobs is not None, ("vllm",), "they are not read from such upstreams"),
    Capability("prompt_logprobs", lambda r: r.params.prompt_logprobs is not None, (), _NOT_READ),
    Capability("logprob_token_ids", lambda r: bool(r.params.logprob_token_ids), (), _NOT_READ),
    Capability("allowed_token_ids", lambda r: bool(r.params.allowed_token_ids), (), "they are not passed to upstreams"),
    Capability("max_tokens", lambda r: not r.params.max_tokens, (), "at 0: they generate one token at least"),
    Capability("min_tokens", lambda r: r.params.min_tokens > 0, _TWO, "it cannot ban the end of sequence for a while"),
    Capability("presence_penalty", lambda r: r.params.presence_penalty != 0.0, _TWO, _COUNTS_PROMPT),
    Capability("frequency_penalty", lambda r: r.params.frequency_penalty != 0.0, _TWO, _COUNTS_PROMPT),
    Capability(
        "repetition_penalty",
        lambda r: r.params.repetition_penalty > 2.0,
        ("vllm", "llama.cpp"),
        "it takes at most 2",
    ),
    Capability("min_p", lambda r: r.params.min_p > 0.0, with_drafts=_OTHERS),
    Capability("logit_bias", lambda r: bool(r.params.logit_bias), with_drafts=_OTHERS),
    Capability("continue_from", lambda r: r.continue_from is not None, (), "no pool is of an exact group"),
    Capability("replay", lambda r: r.is_replay, (), "no pool gives the same answer twice"),
)
"""What is not here works with all of them."""

GRAMMARS: Mapping[UpstreamApi, tuple[GrammarKind, ...]] = {
    "vllm": ("json_schema", "regex", "choice", "lark"),
    "sglang": ("json_schema", "regex"),
    "llama.cpp": ("json_schema",),
}
"""Kinds of constraints. Tools are constrained by a lark grammar."""


def check_request(request: GenerateRequest, api: UpstreamApi) -> None:
    """Raise `InvalidParameter` or `InvalidGrammar` for the first thing asked for that the engines cannot do."""
    for capability in CAPABILITIES:
        if api not in capability.apis and capability.is_asked(request):
            allowed = f"with upstream.api {' or '.join(capability.apis)}" if capability.apis else "without it"
            message = f"{capability.name} is given, which {api} cannot do here ({capability.why}); allowed: {allowed}"
            raise InvalidParameter(message, param=capability.name)
    if request.grammar is not None and request.grammar.kind not in GRAMMARS[api]:
        kinds = ", ".join(GRAMMARS[api])
        message = (
            f"the answer is constrained by a {request.grammar.kind} grammar; allowed with upstream.api {api}: {kinds}"
        )
        raise InvalidGrammar(message)
    if api == "llama.cpp" and request.grammar is not None:
        try:
            dropped = not_held(json.loads(request.grammar.source))
        except (ValueError, RecursionError) as error:
            raise InvalidGrammar(f"the json_schema is not JSON: {error}") from error
        if dropped:
            raise InvalidGrammar(f"the json_schema has what llama.cpp drops: {dropped}")


_DROPPED = re.compile(r"\\[dDwWsSbBpPkuxcv0-9]|\(\?")
"""Parts of patterns that llama.cpp does not hold: classes, boundaries, references, groups that look around."""
_NOT_HELD = ("patternProperties", "unevaluatedProperties", "unevaluatedItems")
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose keys are names of the client's."""
_VALUES = ("const", "enum", "default", "examples")
_SHOWN = 120


def not_held(schema: object) -> str | None:
    """Return what of a schema llama.cpp is known to drop, with what is allowed; None if nothing of it is found.

    It turns a schema into a grammar of its own, and leaves out keywords and patterns with classes such as \\d, without
    a word. Where nothing is known to be dropped, answers are checked.
    """
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        if not isinstance(part, dict):
            continue
        todo += [value for name, value in part.items() if name not in (*_VALUES, *_NAMED)]
        todo += [value for name in _NAMED if isinstance(part.get(name), dict) for value in part[name].values()]
        pattern = part.get("pattern")
        if isinstance(pattern, str) and (dropped := _DROPPED.search(pattern)):
            return f"pattern {pattern[:_SHOWN]!r} with {dropped[0]}; allowed: written out, such as [0-9] for \\d"
        for name in _NOT_HELD:
            if name in part and isinstance(part[name], dict | bool):
                return f"{name}; allowed: properties and additionalProperties"
    return None


def may_speculate(request: GenerateRequest, api: UpstreamApi) -> bool:
    """Return whether the engine can do what the request asks for while it speculates."""
    return not any(api not in capability.with_drafts and capability.is_asked(request) for capability in CAPABILITIES)


USED = (
    *("model", "model_dir", "engine", "max_model_len", "max_requests", "num_speculative_tokens", "stuck_after_s"),
    *("default_sampling", "upstream"),
)
"""The settings of an engine that mean something here; the others are those of the pools' own servers."""


SERVER: Mapping[str, tuple[object, str]] = {
    "replicas": (1, "the pools are replicas of their own"),
    "max_replicas": (None, "the pools are replicas of their own"),
    "engine_process": ("off", "the engines are in other processes already"),
    "replay_sample": (0.0, "no pool gives the same answer twice"),
}
"""Settings of the server that have one value here, and why."""


def check_config(config: EngineConfig) -> None:
    """Raise `ConfigError` for the first setting that has no meaning for upstream engines."""
    defaults = EngineConfig()
    for name in type(config).model_fields:
        given = getattr(config, name)
        if name not in USED and given != getattr(defaults, name):
            message = (
                f"{name} is {given!r}; allowed with engine upstream: unset, as the pools have settings of their own"
            )
            raise ConfigError(message, param=name)


def server_config(config: ServerConfig, given: Mapping[str, object]) -> ServerConfig:
    """Return the settings of a server before upstream engines; `given` has the names of those that are no defaults.

    Raises `ConfigError` for the first one that these engines cannot follow.
    """
    for name, (fixed, why) in SERVER.items():
        value = getattr(config, name)
        if name in given and value != fixed:
            message = f"{name} is {value!r}; allowed with engine upstream: {fixed} ({why})"
            raise ConfigError(message, param=name)
    limits = config.limits.model_copy(update={"start_drafts": 0})  # a pool drafts as far as its own settings say
    return config.model_copy(update={**{name: fixed for name, (fixed, _) in SERVER.items()}, "limits": limits})
