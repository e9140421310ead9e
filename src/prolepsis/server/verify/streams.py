"""Answers whose clients draft: what was sent of each, and what its client expects next."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.config import CLIENT
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.kill_scope import EVERYTHING, kill_scope
from prolepsis.core.messages import OfferDraft
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


def check_supported(body: ChatBody | CompletionBody) -> ChatBody | CompletionBody:
    """Return the body as that of a stream; raises `InvalidParameter` for what such an answer cannot have."""
    prompts = len(body.prompt) if isinstance(body, CompletionBody) else 1
    asks_logprobs = body.logprobs if isinstance(body, ChatBody) else body.logprobs is not None
    unsupported = {
        "n": f"is {body.n}; allowed: 1" if (body.n or 1) > 1 else "",
        "prompt": f"holds {prompts} prompts; allowed: 1" if prompts > 1 else "",
        "logprobs": "is given; allowed: none here" if asks_logprobs else "",
        "prompt_logprobs": "is given; allowed: none here" if body.prompt_logprobs is not None else "",
        "logprob_token_ids": "is given; allowed: none here" if body.logprob_token_ids else "",
        "echo": "is true; allowed: false here" if body.echo else "",
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


class VerifyStream:
    """One answer on its way to a client that drafts."""

    def __init__(
        self, request: GenerateRequest, caller: Caller, client: EngineClient, refusal: Callable[[], Refusal | None]
    ) -> None:
        """`refusal` says why no draft is taken now; None: they are."""
        self.request = request
        self.refusal = refusal
        self.num_drafts = 0
        self.num_late = 0
        """Drafts that came after the answer had passed or left them."""
        self._client = client
        self._owner = (caller.tenant, caller.key_id)
        self._sent: list[int] = []
        self._draft: ClientDraft | None = None

    @property
    def id(self) -> str:
        return self.request.request_id

    def belongs_to(self, caller: Caller) -> bool:
        return self._owner == (caller.tenant, caller.key_id)

    def take(self, draft: ClientDraft) -> Refusal | None:
        """Offer a draft to the engine in place of the one before, or return why not; raises `InvalidParameter`."""
        draft.validate(self._client.info.vocab_size)
        self.num_drafts += 1
        if (refusal := self.refusal()) is not None:
            return refusal
        if draft.position > len(self._sent):
            return "ahead"
        if not draft.next_tokens(self._sent, 0):
            self.num_late += 1
            return "late"
        self._draft = draft
        self.offer()
        return None

    def offer(self) -> None:
        """Offer the last draft, unless what was sent has passed or left it."""
        if self._draft is not None and self._expected:
            self._client.send(OfferDraft(self.id, self._draft))

    def send(self, token_ids: Sequence[int]) -> tuple[int, bool]:
        """Take in the next tokens; return how many of them the draft had, and whether the next one corrects it."""
        expected = self._expected
        self._sent += token_ids
        num_right = 0
        for token, drafted in zip(token_ids, expected, strict=False):
            if token != drafted:
                return num_right, True
            num_right += 1
        return num_right, False

    @property
    def _expected(self) -> tuple[int, ...]:
        return () if self._draft is None else self._draft.next_tokens(self._sent, 0)


class VerifyStreams:
    """The streams that are open now, by id. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, VerifyStream] = {}

    @contextmanager
    def opened(self, stream: VerifyStream) -> Iterator[None]:
        """Let drafts for a stream in while the block runs."""
        self._open[stream.id] = stream
        try:
            yield
        finally:
            del self._open[stream.id]

    def find(self, stream_id: str, caller: Caller) -> VerifyStream:
        """Return an open stream of the caller's key; raises `RequestRefused` (404)."""
        stream = self._open.get(stream_id)
        if stream is None or not stream.belongs_to(caller):
            message = f"No stream {stream_id[:128]!r} of this key is open on this server"
            raise RequestRefused(message, code="stream_not_found", status=404, param="id")
        return stream
