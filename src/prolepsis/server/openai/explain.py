"""Explains what a policy makes of a sample request, which is read as a server reads it; /admin/policy/explain."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated

from pydantic import AwareDatetime, Field

from prolepsis.control.policy.check import usable_policy
from prolepsis.control.policy.decision import UNSTATED, SpeculationRequest
from prolepsis.control.policy.explain import ExplainedRequest, explain
from prolepsis.control.policy.model import Policy, Terms
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


class PolicyExplainBody(Body):
    """A request to explain, and who is assumed to send it."""

    request: dict[str, object]  # the body of /v1/chat/completions, /v1/completions or /v1/responses
    route: str | None = None  # null: the endpoint that the body's fields belong to
    tenant: Annotated[str, Field(max_length=64)] = ""
    tier: TierName = DEFAULT_TIER
    key: Annotated[str, Field(max_length=64)] = ""
    roles: list[Role] = Field(default=["client"])
    headers: dict[str, str] = Field(default_factory=dict)
    flags: list[str] = Field(default=[])  # feature flags that are true; the others are false
    at: Annotated[AwareDatetime, Field(strict=False)] | None = None  # null: now
    prompt_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None  # null: unknown for text
    request_id: Annotated[str, Field(max_length=128)] | None = None
    """Decides whether a rule for a share of requests applies; null: it does not."""
    text: Annotated[str, Field(max_length=2**18)] | None = None  # A policy to explain by; null: the one in use


@dataclass(frozen=True, slots=True)
class Sample:
    facts: RequestFacts
    requested: SpeculationRequest
    refused: RequestRefused | None
    """Reason why the caller's roles do not allow the body's speculation settings, if so."""


def sample_of(given: PolicyExplainBody, defaults: SamplingDefaults) -> Sample:
    """Return the request as a server reads it; raises `UserError` for an invalid one."""
    route = given.route or next((_SHAPES[field] for field in _SHAPES if field in given.request), GENERATION_ROUTES[0])
    if route not in GENERATION_ROUTES:
        raise InvalidParameter(f"route is {route!r}; allowed: {', '.join(GENERATION_ROUTES)}", param="route")
    raw = json.dumps(given.request).encode()
    body: GenerationBody
    if route == "/v1/responses":
        body = to_chat(parse_body(raw, ResponsesBody, Ignored()))
    else:
        body = parse_body(raw, CompletionBody if route == "/v1/completions" else ChatBody, Ignored())
    caller = Caller(given.key, given.tenant, frozenset(given.roles), given.tier)
    context = RequestContext(caller, route, {name.lower(): value for name, value in given.headers.items()})
    refused, requested, num_tokens = None, UNSTATED, given.prompt_tokens
    if num_tokens is None and isinstance(body, CompletionBody) and not any(isinstance(p, str) for p in body.prompt):
        num_tokens = max(map(len, body.prompt))  # of token ids
    try:
        requested = requested_speculation(body.speculation, context.headers, caller, PROPOSER_NAMES)
    except RequestRefused as error:
        refused = error
    facts = request_facts(
        body,
        sampling_params(body, defaults),
        context,
        prompt_tokens=num_tokens,
        time=given.at or datetime.now().astimezone(),
        targeting_key=given.request_id,
    )
    return Sample(replace(facts, flag=frozenset(given.flags)), requested, refused)


def explained(policy: Policy, sample: Sample, in_force: Mapping[str, Terms] | None = None) -> ExplainedRequest:
    """Return what a policy makes of the sample, which a server refuses where its caller lacks a role."""
    refused = None
    if sample.refused is not None:
        refused = {"param": sample.refused.param or "", "message": str(sample.refused)}
    return explain(policy, sample.facts, sample.requested, refused, in_force)


def explain_routes(policies: Policies, defaults: Callable[[], SamplingDefaults]) -> Sequence[Route]:
    routes, large_work = Routes(), LargeWork()

    @routes.post("/admin/policy/explain", roles=READERS, summary="What a policy makes of a request")
    async def explain_request(
        body: Annotated[PolicyExplainBody, read_body(PolicyExplainBody)], caller: SignedIn
    ) -> ExplainedRequest:
        return await large_work.off_loop(caller.tenant, partial(_explain_body, body, policies, defaults()))

    return routes.all


def _explain_body(body: PolicyExplainBody, policies: Policies, defaults: SamplingDefaults) -> ExplainedRequest:
    if body.text is not None:
        return explained(usable_policy(body.text, "policy", policies.known), sample_of(body, defaults))
    return explained(policies.policy or Policy(), sample_of(body, defaults), policies.terms)
