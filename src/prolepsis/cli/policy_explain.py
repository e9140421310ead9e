"""`prolepsis policy explain`: a sample request, read as a server reads it, and what a policy makes of it."""

import asyncio
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast, get_args

from prolepsis.api.admission.load_shedding import TIERS
from prolepsis.api.openai.bodies import ChatBody, CompletionBody, GenerationBody
from prolepsis.api.openai.context import RequestContext
from prolepsis.api.openai.facts import GENERATION_ROUTES, request_facts, sampling_params
from prolepsis.api.openai.responses_bodies import ResponsesBody, to_chat
from prolepsis.api.openai.speculation import requested_speculation
from prolepsis.cli.documents import as_yaml
from prolepsis.cli.output import note, print_facts, print_json, print_table
from prolepsis.core.config import PROPOSER_NAMES
from prolepsis.core.errors import ConfigError, UserError
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.core.requests import SamplingDefaults
from prolepsis.policy.decision import UNSTATED, SpeculationRequest
from prolepsis.policy.explain import Explanation
from prolepsis.policy.model import plain_terms
from prolepsis.safety.flag_file import FlagFileProvider
from prolepsis.safety.flags import Flags
from prolepsis.web.body_reader import parse_body
from prolepsis.web.caller import Caller, Role
from prolepsis.web.errors import RequestRefused

_SHAPES = dict(zip(("messages", "prompt", "input"), GENERATION_ROUTES, strict=True))
"""Endpoint by the field that only its bodies have."""
_BOUNDS = ("shadow_percentage", "pinned", "guardrails", "rollout", "audit")
"""Terms that callers cannot change."""


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


def read_time(text: str | None) -> datetime:
    """Return the time of a flag, or the present; raises `ConfigError`."""
    if text is None:
        return datetime.now().astimezone()
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        message = f"--at is {text!r}; allowed: an ISO time with its zone, such as 2026-11-21T22:30+01:00"
        raise ConfigError(message, param="at")
    return time


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


def _document(explanation: Explanation, sample: Sample) -> dict[str, object]:
    return {
        "policy_version": explanation.policy_version,
        "rules": [asdict(tried) for tried in explanation.tried],
        "rule": explanation.rule,
        "terms": plain_terms(explanation.terms),
        "refused": _refusal(explanation, sample),
        "in_effect": None if _refusal(explanation, sample) else _effect(explanation),
        "facts": sample.plain_facts(),
    }


def _refusal(explanation: Explanation, sample: Sample) -> dict[str, str] | None:
    """Return why a server would refuse the request: for a missing role, or because the policy does not let it pass."""
    if sample.refused is not None:
        return {"param": sample.refused.param or "", "message": str(sample.refused)}
    return asdict(explanation.conflict) if explanation.conflict else None


def _effect(explanation: Explanation) -> dict[str, Any] | None:
    decision = explanation.decision
    if decision is None:
        return None
    choice = decision.choice
    return {
        "mode": "on" if choice.mode == "auto" else choice.mode,
        "forced": choice.mode == "on",
        "proposers": choice.proposers,
        "num_speculative_tokens": choice.num_speculative_tokens,
        "emit": decision.emit,
        "sources": dict(decision.sources),
    }


def print_explanation(
    explanation: Explanation, sample: Sample, decisions: Sequence[FlagDecision], *, as_json: bool
) -> None:
    """Print which rule matches, why the others do not, what takes effect, and the flags."""
    if as_json:
        print_json(_document(explanation, sample) | {"flags": [asdict(one) for one in decisions]})
        return
    _show_effect(explanation, sample)
    if decisions:
        rows = [[one.key, as_yaml(one.value), one.variant or "-", one.reason, one.error] for one in decisions]
        print_table("flags", ["flag", "value", "variant", "reason", "error"], rows)


def _show_effect(explanation: Explanation, sample: Sample) -> None:
    rows = [
        [str(i), tried.rule, tried.outcome.replace("_", " "), tried.why] for i, tried in enumerate(explanation.tried, 1)
    ]
    print_table(f"policy {explanation.policy_version}", ["", "rule", "", "why"], rows)
    refusal = _refusal(explanation, sample)
    if refusal is not None:
        print_facts([("rule", explanation.rule), ("refused", f"403, {refusal['param']}: {refusal['message']}")])
        return
    effect = _effect(explanation) or {}
    sources = effect.pop("sources")
    shown = [[name, as_yaml(value), sources.get(name, "")] for name, value in effect.items()]
    terms = plain_terms(explanation.terms)
    shown += [[name, as_yaml(terms[name]), "policy"] for name in _BOUNDS if name in terms]
    print_table(f"in effect, by rule {explanation.rule}", ["", "value", "decided by"], shown)
    if explanation.terms.rollout is not None:
        note("this rule is rolled out: until the rollout is complete, only a share of the requests gets this")
    if sample.facts.prompt_tokens is None:
        note("the length of the prompt is unknown; give it with --prompt-tokens")
