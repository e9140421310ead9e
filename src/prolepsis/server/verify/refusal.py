"""Reasons to refuse a request whose client drafts, and to refuse its drafts."""

from typing import Literal, TypeVar

from prolepsis.core.config import CLIENT
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.kill_scope import EVERYTHING, kill_scope
from prolepsis.core.reasons import OffReason
from prolepsis.core.requests import GenerateRequest
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody
from prolepsis.server.services import Services

Refusal = (
    OffReason
    | Literal[
        "late",  # the answer has passed the draft, or left it
        "ahead",  # the draft begins behind what was sent of the answer
        "killed",  # the kill switch stops the request, or drafts of clients
        "not_allowed",  # the policy, or the request, names other proposers
        "not_loaded",  # the engine has no proposer `client`
        "output_policies",  # answers pass output policies, which text that its client drafted would not
    ]
)
"""Why a draft is not taken; the answer continues without."""

B = TypeVar("B", ChatBody, CompletionBody)


def check_supported(body: B) -> B:
    """Return the body as that of a stream; raises `InvalidParameter` for what such an answer cannot have."""
    prompts = len(body.prompt) if isinstance(body, CompletionBody) else 1
    asks_logprobs = body.logprobs if isinstance(body, ChatBody) else body.logprobs is not None
    unsupported = {
        "n": f"is {body.n}; allowed: 1" if (body.n or 1) > 1 else "",
        "prompt": f"holds {prompts} prompts; allowed: 1" if prompts > 1 else "",
        "logprobs": "is given; allowed: none here" if asks_logprobs else "",
        "prompt_logprobs": "is given; allowed: none here" if body.prompt_logprobs is not None else "",
        "logprob_token_ids": "is given; allowed: none here" if body.logprob_token_ids else "",
        "echo": "is true; allowed: false here" if isinstance(body, CompletionBody) and body.echo else "",
        "max_tokens": "is 0; allowed: 1 or more here" if body.max_tokens == 0 else "",
        "tools": "is given; allowed: none here" if isinstance(body, ChatBody) and body.tools else "",
        "stream": "is false; allowed: true, as the answer is always a stream" if body.stream is False else "",
        "service_tier": "is 'flex'; allowed: auto, default here" if body.service_tier == "flex" else "",
        "stream_options": "is given; allowed: none here" if body.stream_options is not None else "",
    }
    for name, fault in unsupported.items():
        if fault:
            raise InvalidParameter(f"{name} {fault}", param=name)
    return body.model_copy(update={"stream": True})


def refusal_of(request: GenerateRequest, services: Services) -> Refusal | None:
    """Return why drafts for a request are not taken now; None: they are."""
    choice, name = request.speculation, CLIENT
    scopes = {EVERYTHING, kill_scope("proposer", name), *request.kill_scopes}
    if not choice.enabled:
        return choice.off_reason
    if not scopes.isdisjoint(services.speculation.controls.kill_switch.status.killed):
        return "killed"
    if name not in services.client.info.proposers:
        return "not_loaded"
    if choice.proposers is not None and name not in choice.proposers:
        return "not_allowed"
    return "output_policies" if services.output.loaded else None
