"""Requests in the audit log: proposed and emitted tokens, with seed and versions, redacted."""

import random
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256

from prolepsis.control.audit.entry import RECORDING, SERVED
from prolepsis.control.audit.log import QueuedEvent
from prolepsis.control.audit.routes import Replay, audit_routes
from prolepsis.control.redaction.values import redacted, redacted_text
from prolepsis.control.store.store import Store
from prolepsis.control.web.feature import Feature
from prolepsis.core.audit_event import AuditEvent, Emit
from prolepsis.core.ended import AuditContent, Keep, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.json_value import canonical
from prolepsis.core.recording import Recording, plain, recording
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stored_text import storable

Decode = Callable[[Sequence[int]], str]
"""Returns the text of tokens, special ones included; called from the writer's thread."""


@dataclass(frozen=True, slots=True)
class _AuditedAnswer:
    """An answered prompt, with everything that its tokens depend on."""

    about: RequestAbout
    prompt: PromptEnded
    recorded: Recording


class AuditFeature(Feature):
    """Queues sampled requests for the store's writer, whose thread redacts them and makes the entries."""

    name = "audit"

    def __init__(
        self,
        store: Store,
        decode: Decode,
        info: Callable[[], EngineInfo],
        replay: Replay,
        emit: Emit,
        *,
        sample: float = 0.0,
        content: AuditContent = "digests",
        max_pending_tokens: int = 1_000_000,
    ) -> None:
        """`sample` (0 to 1) and `content` apply if the policy does not set them.

        `max_pending_tokens` bounds the memory of requests whose entries are not written yet.
        """
        self.routes = audit_routes(store, info, replay, emit)
        self._writer = store.writer
        self._decode = decode
        self._info = info
        self._sample = sample
        self._content = content
        self._max_pending = max_pending_tokens
        self._drawn: dict[str, AuditContent] = {}
        """Content to keep of each running request that is audited, by request."""
        self._pending = 0
        self._lock = threading.Lock()

    def keeps(self, about: RequestAbout, request: GenerateRequest) -> Keep:
        """Draw whether the request is audited; if so its drafts are kept."""
        content = self._draw(about)
        if content is None:
            return Keep.FIGURES
        self._drawn[request.request_id] = content
        return Keep.DRAFTS

    def on_request_end(self, ended: RequestEnded) -> None:
        """Queue the entries of a request's prompts; entries without room are counted as dropped."""
        for prompt in ended.prompts:
            drawn = self._drawn.pop(prompt.request.request_id, None)
            content = self._draw(ended.about) if prompt.answer == "cached" else drawn
            if content is None:
                continue
            served = _AuditedAnswer(ended.about, prompt, recording(prompt.request, prompt.tokens))
            num_tokens = served.recorded.num_tokens
            with self._lock:
                fits = self._pending + num_tokens <= self._max_pending
                self._pending += num_tokens if fits else 0
            item = QueuedEvent(partial(self._make, served, content, self._info()), served.about.age_s)
            if not fits:
                self._writer.drop(item)
            elif not self._writer.offer(item):
                self._release(num_tokens)

    def _draw(self, about: RequestAbout) -> AuditContent | None:
        """Return which content of a request is kept; None: the request is not audited."""
        sample = self._sample if about.audit_share is None else about.audit_share
        is_drawn = self._writer.is_on and random.random() < sample
        return (about.audit_content or self._content) if is_drawn else None

    def _make(self, served: _AuditedAnswer, content: AuditContent, info: EngineInfo) -> AuditEvent:
        try:
            return request_event(served, content, self._decode, info)
        finally:
            self._release(served.recorded.num_tokens)

    def _release(self, num_tokens: int) -> None:
        with self._lock:
            self._pending = max(0, self._pending - num_tokens)  # an entry that cannot be made is tried twice


def request_event(served: _AuditedAnswer, content: AuditContent, decode: Decode, info: EngineInfo) -> AuditEvent:
    """Return the event of a request; takes milliseconds per thousand characters: not for an event loop."""
    about, stats = served.about, served.prompt.stats
    versions = {**info.versions, "draft_head": info.draft_head or "none", "plan": str(stats.mode.plan_version)}
    return AuditEvent(
        actor=about.key_id or "developer",
        action=SERVED,
        subject=served.prompt.request.request_id,
        names=(served.prompt.request.request_id, about.answer_id, about.http_request_id, about.trace_id),
        after=_details(served, content, decode, info),
        tenant=about.tenant,
        versions=versions | ({"policy": about.policy_version} if about.policy_version else {}),
    )


def _details(served: _AuditedAnswer, content: AuditContent, decode: Decode, info: EngineInfo) -> dict[str, object]:
    about, prompt, recorded = served.about, served.prompt, served.recorded
    stats, assignment = prompt.stats, about.assignment
    continued: dict[str, object] = {}
    if stats.continued:  # of several engines, so that it may differ from that of one
        continued = {"continued": [asdict(part) for part in stats.continued], "not_exact": list(stats.not_exact)}
    salt, kept = secrets.token_hex(16), plain(recorded)
    drafts = [draft for event in prompt.tokens if (draft := event.proposed) is not None]
    rounds: list[list[object]] = [  # redacting lists takes a tenth of the time of mappings
        [event.index, "+".join(sorted({*draft.sources})) or draft.proposer, len(draft.tokens), len(event.token_ids)]
        for event in prompt.tokens
        if (draft := event.proposed) is not None
    ]
    details: dict[str, object] = {
        "end": prompt.end,
        "error": prompt.error,
        "answer_id": about.answer_id,
        "http_request_id": about.http_request_id or None,
        "trace_id": about.trace_id or None,
        "route": about.route,
        "tier": about.tier,
        "rule": about.policy_rule,
        "traffic_class": prompt.request.traffic_class or None,
        "rollout_run": assignment.rollout_run if assignment else None,
        "arm": assignment.arm if assignment else None,
        "flags": about.flags,
        "mode": stats.mode.mode,
        "reason": stats.mode.reason,
        "exactness": info.exactness,
        "sampling": kept["params"],
        "grammar": recorded.request.grammar.kind if recorded.request.grammar else None,
        "num_prompt_tokens": len(recorded.request.prompt_token_ids),
        "num_output_tokens": [len(tokens) for tokens in recorded.tokens],
        **continued,
        "proposers": {name: asdict(counts) for name, counts in stats.proposers.items()},
        "rounds": rounds,
        "digest_salt": salt,
        "prompt_digest": _digest(salt, recorded.request.prompt_token_ids),
        "output_digests": [_digest(salt, tokens) for tokens in recorded.tokens],
    }
    if content == "digests":
        return details
    texts = [decode(tokens) for tokens in (recorded.request.prompt_token_ids, *recorded.tokens)]
    details["prompt"], details["outputs"] = redacted_text(texts[0]), [redacted_text(text) for text in texts[1:]]
    if content == "tokens":
        drafted = "\n".join(decode(draft.tokens) for draft in drafts)
        is_clean = all(redacted_text(text) == storable(text) for text in [*texts, drafted]) and redacted(kept) == kept
        details["replayable"] = is_clean
        if is_clean:
            whole = [[*row, [*draft.tokens], [*draft.parents]] for row, draft in zip(rounds, drafts, strict=True)]
            details |= {"rounds": whole, RECORDING: kept}
    return details


def _digest(salt: str, tokens: Sequence[int]) -> str:
    """Return a digest that proves, given the tokens, that they are the same."""
    return sha256((salt + canonical(list(tokens))).encode()).hexdigest()
