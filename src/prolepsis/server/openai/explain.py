"""Explains what a policy makes of a sample request, which is read as a server reads it; /admin/policy/explain."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from prolepsis.control.policy.check import usable_policy
from prolepsis.control.policy.decision import UNSTATED, SpeculationRequest
from prolepsis.control.policy.explain import ExplainedRequest, Explanation, explain
from prolepsis.control.policy.model import Policy, plain_terms
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.web.body_reader import parse_body, read_body
from prolepsis.control.web.caller import Caller, Role, SignedIn
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body
from prolepsis.control.web.foreign_fields import Ignored
from prolepsis.control.web.intake import LargeWork
from prolepsis.control.web.routes import READERS, Route, Routes
from prolepsis.core.config import PROPOSER_NAMES
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.facts import RequestFacts
from prolepsis.core.requests import SamplingDefaults
from prolepsis.server.admission.load_shedding import DEFAULT_TIER, TierName
from prolepsis.server.known import GENERATION_ROUTES
from prolepsis.server.openai.responses_bodies import ResponsesBody, to_chat
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody, GenerationBody
from prolepsis.server.preparing.facts import request_facts
from prolepsis.server.preparing.limits import sampling_params
from prolepsis.server.preparing.prepared import RequestContext
from prolepsis.server.preparing.speculation import requested_speculation

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
    """Reason why the caller's roles do not allow the body's speculation settings, if so."""

    def plain_facts(self) -> dict[str, object]:
        """Return the facts as JSON values; an unlimited length is null."""
        facts = asdict(self.facts) | {"roles": sorted(self.facts.roles), "time": self.facts.time.isoformat()}
        facts |= {"flag": sorted(self.facts.flag)}
        return facts | {"max_tokens": None if math.isinf(self.facts.max_tokens) else self.facts.max_tokens}


def sample_of(
    raw: bytes, origin: Origin, defaults: SamplingDefaults, *, prompt_tokens: int | None, request_id: str | None
) -> Sample:
    """Return the request of a body; raises `UserError` for an invalid one."""
    route, body = _body(raw, origin.route)
    context = RequestContext(origin.caller, route, origin.headers)
    refused, requested = None, UNSTATED
    try:
        requested = requested_speculation(body.speculation, context.spec_mode, origin.caller, PROPOSER_NAMES)
    except RequestRefused as error:
        refused = error
    facts = request_facts(
        body,
        sampling_params(body, defaults),
        context,
        prompt_tokens=prompt_tokens or _num_prompt_tokens(body),
        time=origin.time,
        targeting_key=request_id,
    )
    return Sample(facts, requested, refused)


def _body(raw: bytes, route: str | None) -> tuple[str, GenerationBody]:
    """Return the endpoint and the body; a body of /v1/responses is converted to chat."""
    route = route or _route_of(raw)
    if route not in GENERATION_ROUTES:
        raise InvalidParameter(f"route is {route!r}; allowed: {', '.join(GENERATION_ROUTES)}", param="route")
    if route == "/v1/responses":
        return route, to_chat(parse_body(raw, ResponsesBody, Ignored()))
    return route, parse_body(raw, CompletionBody if route == "/v1/completions" else ChatBody, Ignored())


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


def explained(explanation: Explanation, sample: Sample) -> ExplainedRequest:
    """Return what the policy makes of the sample, as plain values."""
    refused = refusal_of(explanation, sample)
    return ExplainedRequest(
        policy_version=explanation.policy_version,
        rules=list(explanation.tried),
        rule=explanation.rule,
        terms=plain_terms(explanation.terms),
        refused=refused,
        in_effect=None if refused else effect_of(explanation),
        facts=sample.plain_facts(),
    )


def refusal_of(explanation: Explanation, sample: Sample) -> dict[str, str] | None:
    """Return why a server would refuse the request: for a missing role, or because the policy does not let it pass."""
    if sample.refused is not None:
        return {"param": sample.refused.param or "", "message": str(sample.refused)}
    return asdict(explanation.conflict) if explanation.conflict else None


def effect_of(explanation: Explanation) -> dict[str, Any] | None:
    """Return what takes effect for the request; None for a conflict."""
    decision = explanation.decision
    if decision is None:
        return None
    choice = decision.choice
    return {
        "mode": "on" if choice.mode in ("auto", "always") else choice.mode,
        "forced": choice.mode == "always",
        "proposers": choice.proposers,
        "num_speculative_tokens": choice.num_speculative_tokens,
        "emit": decision.emit,
        "sources": dict(decision.sources),
    }


class PolicyExplainBody(Body):
    """A request to explain, and who is assumed to send it."""

    request: dict[str, object]
    """The body of /v1/chat/completions, /v1/completions or /v1/responses."""
    route: str | None = None
    """null: the endpoint that the body's fields belong to."""
    tenant: Annotated[str, Field(max_length=64)] = ""
    tier: TierName = DEFAULT_TIER
    key: Annotated[str, Field(max_length=64)] = ""
    roles: tuple[Role, ...] = ("client",)
    headers: dict[str, str] = Field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Feature flags that are true; the others are false."""
    prompt_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """null: unknown for text."""
    text: Annotated[str, Field(max_length=2**18)] | None = None
    """A policy to explain by; null: the one in use."""


def explain_routes(policies: Policies, defaults: Callable[[], SamplingDefaults]) -> Sequence[Route]:
    """Return the route that explains a request."""
    routes, large_work = Routes(), LargeWork()

    @routes.post("/admin/policy/explain", roles=READERS, summary="What a policy makes of a request")
    async def explain_request(
        body: Annotated[PolicyExplainBody, read_body(PolicyExplainBody)], caller: SignedIn
    ) -> ExplainedRequest:
        return await large_work.off_loop(caller.tenant, partial(_explain_body, body, policies, defaults()))

    return routes.all


def _explain_body(body: PolicyExplainBody, policies: Policies, defaults: SamplingDefaults) -> ExplainedRequest:
    policy = policies.policy
    if body.text is not None:
        policy = usable_policy(body.text, "policy", policies.known)
    headers = {name.lower(): value for name, value in body.headers.items()}
    caller = Caller(body.key, body.tenant, frozenset(body.roles), body.tier)
    origin = Origin(caller, body.route, headers, datetime.now().astimezone())
    raw = json.dumps(body.request).encode()
    sample = sample_of(raw, origin, defaults, prompt_tokens=body.prompt_tokens, request_id=None)
    facts = replace(sample.facts, flag=frozenset(body.flags))
    return explained(explain(policy or Policy(), facts, sample.requested), replace(sample, facts=facts))
