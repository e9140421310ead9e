"""A sample request for `prolepsis policy explain`: read as the server reads it, without a tokenizer."""

import asyncio
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import cast, get_args

from prolepsis.api.admission.load_shedding import TIERS
from prolepsis.api.openai.bodies import ChatBody, CompletionBody, GenerationBody
from prolepsis.api.openai.context import RequestContext
from prolepsis.api.openai.facts import GENERATION_ROUTES, request_facts, sampling_params
from prolepsis.api.openai.responses_bodies import ResponsesBody, to_chat
from prolepsis.api.openai.speculation import requested_speculation
from prolepsis.core.config import PROPOSER_NAMES
from prolepsis.core.errors import ConfigError, UserError
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.core.requests import SamplingDefaults
from prolepsis.policy.decision import UNSTATED, SpeculationRequest
from prolepsis.safety.flag_file import FlagFileProvider
from prolepsis.safety.flags import Flags
from prolepsis.web.body_reader import parse_body
from prolepsis.web.caller import Caller, Role
from prolepsis.web.errors import RequestRefused

_SHAPES = dict(zip(("messages", "prompt", "input"), GENERATION_ROUTES, strict=True))
"""Endpoint by the field that only its bodies have."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The assumed origin of the sample."""

    caller: Caller
    route: str | None
    headers: Mapping[str, str]
    time: datetime


@dataclass(frozen=True, slots=True)
class Sample:
    facts: RequestFacts
    requested: SpeculationRequest
    refused: RequestRefused | None
    """Why the caller's roles do not allow the body's speculation settings, if they do not."""

    def plain_facts(self) -> dict[str, object]:
        """Return the facts as JSON values; an unlimited length is null."""
        facts = asdict(self.facts) | {"roles": sorted(self.facts.roles), "time": self.facts.time.isoformat()}
        facts |= {"flag": sorted(self.facts.flag)}
        return facts | {"max_tokens": None if math.isinf(self.facts.max_tokens) else self.facts.max_tokens}


def sample_caller(tenant: str, tier: str, key: str, roles: Sequence[str]) -> Caller:
    """Return the caller that flags describe; raises `ConfigError`."""
    for flag, given, allowed in (("--tier", [tier], tuple(TIERS)), ("--role", roles, get_args(Role))):
        wrong = next((name for name in given if name not in allowed), None)
        if wrong is not None:
            raise ConfigError(f"{flag} is {wrong!r}; allowed: {', '.join(allowed)}", param=flag.strip("-"))
    return Caller(key, tenant, frozenset(cast(Sequence[Role], roles)), tier)


def read_headers(given: Sequence[str]) -> dict[str, str]:
    """Return headers written as 'NAME: VALUE', by name in lower case; raises `ConfigError`."""
    headers = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"--header is {text!r}; allowed: 'NAME: VALUE'", param="header")
        headers[name.strip().lower()] = value.strip()
    return headers


def read_sample(
    file: Path, origin: Origin, defaults: SamplingDefaults, prompt_tokens: int | None, request_id: str | None
) -> Sample:
    """Return the request in `file` (- reads standard input); raises `ConfigError` for an invalid one."""
    raw = _bytes(file)
    try:
        route, body = _body(raw, origin.route)
        context = RequestContext(origin.caller, route, origin.headers)
        refused, requested = None, UNSTATED
        try:
            requested = requested_speculation(body.speculation, context.spec_mode, origin.caller, PROPOSER_NAMES)
        except RequestRefused as error:
            refused = error
    except (RequestRefused, UserError) as error:
        raise ConfigError(f"request {file}: {error}", param="request") from None
    counted = prompt_tokens or _num_prompt_tokens(body)
    facts = request_facts(
        body,
        sampling_params(body, defaults),
        context,
        prompt_tokens=counted,
        time=origin.time,
        targeting_key=request_id,
    )
    return Sample(facts, requested, refused)


def evaluate_flags(file: Path, names: Sequence[str], facts: RequestFacts) -> tuple[FlagDecision, ...]:
    """Return the values of a file's flags for the request, as a server evaluates them; raises `ConfigError`."""
    flags = Flags(FlagFileProvider(file))
    try:
        return asyncio.run(flags.named(names, facts))
    finally:
        flags.close()


def _bytes(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ConfigError(f"request {file} cannot be read: {error.strerror}", param="request") from None


def _body(raw: bytes, route: str | None) -> tuple[str, GenerationBody]:
    """Return the endpoint and the body; a body of /v1/responses is converted to chat."""
    route = route or _route_of(raw)
    if route not in GENERATION_ROUTES:
        raise ConfigError(f"--route is {route!r}; allowed: {', '.join(GENERATION_ROUTES)}", param="route")
    if route == "/v1/responses":
        return route, to_chat(parse_body(raw, ResponsesBody))
    return route, parse_body(raw, CompletionBody if route == "/v1/completions" else ChatBody)


def _route_of(raw: bytes) -> str:
    """Return the endpoint that the body's fields belong to; chat by default."""
    try:
        fields = json.loads(raw)
    except ValueError:
        fields = {}
    known = fields if isinstance(fields, dict) else {}
    return next((route for field, route in _SHAPES.items() if field in known), GENERATION_ROUTES[0])


def _num_prompt_tokens(body: GenerationBody) -> int | None:
    """Return the length of the longest prompt of token ids, None for text."""
    if not isinstance(body, CompletionBody) or any(isinstance(prompt, str) for prompt in body.prompt):
        return None
    return max(map(len, body.prompt))
