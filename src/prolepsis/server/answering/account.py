"""The account of an HTTP request while it is answered; at the end it becomes a `RequestEnded`."""

import asyncio
import re
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from prolepsis.control.web.errors import RequestAborted, RequestRefused
from prolepsis.core.ended import Answer, End, Keep, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.errors import AnswerBroken, ClientDeadlineExceeded, GrammarFailed, ProlepsisError, UserError
from prolepsis.core.events import Event, Tokens
from prolepsis.core.facts import stated_tags
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import Quality, RequestStats
from prolepsis.core.token_intervals import TokenIntervals
from prolepsis.server.admission.group import Progress
from prolepsis.server.answering.answer_check import AnswerCheck
from prolepsis.server.output.delivery import Delivery
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import Delta

Clock = Callable[[], float]
MakeCheck = Callable[[], AnswerCheck | None]
Judge = Callable[[GenerateRequest, RequestStats, Mapping[int, Sequence[int]]], Quality]
"""Judges a prompt's answer by the engine's figures and the tokens of each sample."""
_CLIENT_FAMILIES = {
    "claude-cli": "claude-code",
    "codex": "codex",
    "opencode": "opencode",
    "aider": "aider",
    "litellm": "litellm",
    "openai/": "openai-sdk",
    "asyncopenai/": "openai-sdk",
    "anthropic/": "anthropic-sdk",
    "asyncanthropic/": "anthropic-sdk",
    "ollama": "ollama",
    "mozilla": "browser",
}
"""Programs that requests come from, by how the header `user-agent` begins; in lower case."""
_CACHE_HEADERS = ("cache-status", "x-cache", "cf-aig-cache-status", "x-portkey-cache-status")
"""What caches name their result in (the first by RFC 9211), where a gateway sends it on with its request."""
_HIT = re.compile(r"\bhit\b", re.IGNORECASE)


def classified(error: BaseException) -> tuple[End, str | None]:
    """Return how a request ended that `error` ended, and the error's code; the one place that decides this."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "left", None
    if isinstance(error, RequestAborted):
        return "aborted", None
    code = error.code if isinstance(error, ProlepsisError) else type(error).__name__
    if isinstance(error, ClientDeadlineExceeded):
        return "expired", code
    if isinstance(error, AnswerBroken):
        return "broken", code
    is_servers = isinstance(error, RequestRefused) and error.status >= 500
    return ("refused" if isinstance(error, UserError | GrammarFailed) and not is_servers else "failed"), code


class PromptAccount:
    """Account of one prompt's answer so far."""

    def __init__(
        self, request: GenerateRequest, progress: Progress, check: MakeCheck, judge: Judge, *, whole: bool, clock: Clock
    ) -> None:
        """`whole`: the answer goes out at its end, or not at all. `check` makes what reads a sample, where that has to
        be whole. `clock` is monotonic."""
        self.progress = progress
        self.delivery = Delivery(whole=whole)
        self.intervals = TokenIntervals()
        self.num_shown_tokens: int | None = None
        """Output tokens up to the stop of an output policy, if there was one; None: the answer is not complete."""
        self._request = request
        self._check = check
        self._judge = judge
        self._quality: Quality = "unjudged"
        self._samples: dict[int, array[int]] = {}
        self._checks: dict[int, AnswerCheck | None] = {}
        self._finish_reasons: list[str] = []
        self._stopped_by: list[str] = []
        self._clock = clock
        self._began_at = clock()
        self._first_token_at: float | None = None
        self._sent_at = 0.0
        self._stream_s = 0.0
        self._end: tuple[End, str | None] = ("finished", None)

    def keep(self, level: Keep) -> GenerateRequest:
        """Keep as much from here on; return the request that makes the engine say so much."""
        self.progress.keep |= level
        if level == Keep.FIGURES:
            return self._request
        return replace(
            self._request, keeps_rounds=True, tells_drafts=Keep.DRAFTS in level, records_drafts=Keep.SHAPES in level
        )

    def see(self, event: Event) -> None:
        self.progress.see(event)
        if isinstance(event, Tokens):
            if self._first_token_at is None:
                self._first_token_at = self._clock()
            self.delivery.see(event)
            self._samples.setdefault(event.index, array("q")).extend(event.token_ids)
            self.intervals.see(event.index, len(event.token_ids), self._clock())
        else:
            self._quality = self._judge(self._request, event.stats, self._samples)

    async def sending(self, delta: Delta) -> Delta:
        """Take in what is about to go to the client, and return it with the finish reason that all of us show.

        Raises `AnswerBroken` for an answer that breaks its schema.
        """
        self._sent_at = self._clock()
        if delta.index not in self._checks:
            self._checks[delta.index] = self._check()
        check = self._checks[delta.index]
        if check is not None:
            delta = await check.taken(delta)
            await check.whole(delta)
        if delta.finish_reason is not None:
            self._finish_reasons.append(delta.finish_reason)
        if delta.finish_reason == "content_filter":
            self._stopped_by.append(str(delta.stop_reason).partition(":")[0])
        return delta

    def sent(self, delta: Delta) -> None:
        self._stream_s += self._clock() - self._sent_at
        self.delivery.passed(delta)

    def timed(self, stats: RequestStats, arrived: float) -> RequestStats:
        """Return the figures with quality and times before the engine; `arrived`: by the same clock, 0 if unknown."""
        waited_s = self.progress.waited_s
        receive_s = max(0.0, self._began_at - waited_s - arrived) if arrived else 0.0
        return replace(stats, receive_s=receive_s, waited_s=waited_s, quality=self._quality)

    def fail(self, error: BaseException) -> None:
        """Take in what ended the answer; a client that leaves after the last token has had all of it."""
        self.delivery.left()
        end, code = classified(error)
        self._end = ("finished" if end == "left" and self.progress.finished else end, code)

    @property
    def _answer(self) -> Answer:
        if self.progress.stored is not None:
            return "cached"
        if self.progress.finished is not None:
            return "complete"
        return "cut" if self.progress.ended is not None else "unreported"

    def ended(self) -> PromptEnded:
        progress, last = self.progress, self.progress.ended
        filled = self.delivery.filled(last.stats if last is not None else RequestStats())
        num_prompt_tokens = len(self._request.prompt_token_ids)
        came = RequestStats(num_prompt_tokens=num_prompt_tokens, num_output_tokens=progress.num_tokens)
        return PromptEnded(
            request=self._request,
            end=self._end[0],
            error=self._end[1],
            stats=replace(filled, quality=self._quality) if last is not None else came,
            num_shown_tokens=self.num_shown_tokens,
            answer=self._answer,
            tokens=progress.stored.tokens if progress.stored is not None else tuple(progress.kept),
            finish_reasons=tuple(self._finish_reasons),
            delivery=self.delivery.by_proposer(filled),
            stopped_by=tuple(self._stopped_by),
            whole_calls=tuple(
                whole for check in self._checks.values() if check and (whole := check.whole_calls) is not None
            ),
            waited_s=progress.waited_s,
            began_at=self._began_at,
            first_token_at=self._first_token_at,
            stream_s=self._stream_s,
            intervals=self.intervals,
        )


class RequestAccount:
    """Account of an HTTP request so far, over all of its prompts."""

    def __init__(
        self, about: RequestAbout, *, whole: bool, check: MakeCheck, judge: Judge, clock: Clock = time.monotonic
    ) -> None:
        self.about = about
        self._check = check
        self._judge = judge
        self._whole = whole
        self._clock = clock
        self._prompts: list[PromptAccount] = []
        self._end: tuple[End, str | None] = ("finished", None)

    def begin(self, request: GenerateRequest, progress: Progress) -> PromptAccount:
        prompt = PromptAccount(request, progress, self._check, self._judge, whole=self._whole, clock=self._clock)
        self._prompts.append(prompt)
        return self._prompts[-1]

    def fail(self, error: BaseException) -> None:
        """Take in what ended the request."""
        self._end = classified(error)

    def ended(self) -> RequestEnded:
        end, error = self._end
        return RequestEnded(
            about=self.about,
            end=end,
            error=error,
            prompts=tuple(prompt.ended() for prompt in self._prompts),
            ended_at=self._clock(),
        )


def about(prepared: PreparedRequest) -> RequestAbout:
    caller, decision, facts = prepared.context.caller, prepared.speculation, prepared.facts
    audit = decision.terms.audit if decision.terms else None
    front_cache = any(_HIT.search(prepared.context.headers.get(name, "")) for name in _CACHE_HEADERS)
    return RequestAbout(
        answer_id=prepared.answer_id,
        tenant=caller.tenant,
        key_id=caller.key_id,
        tier=caller.tier,
        route=prepared.context.route,
        model=prepared.body.model,
        num_prompts=len(prepared.requests),
        policy_rule=decision.rule,
        policy_version=decision.policy_version,
        assignment=decision.assignment,
        is_evidence=decision.is_evidence and not (prepared.lossy or front_cache),
        flags={flag.key: {"variant": flag.variant, "reason": flag.reason} for flag in decision.flags},
        audit_share=audit.percentage / 100.0 if audit else None,
        audit_content=audit.content if audit else None,
        is_recorded=decision.is_recorded,
        learns=prepared.learns,
        http_request_id=prepared.context.http_request_id,
        client=client_family(prepared.context.headers.get("user-agent", "")),
        stream=prepared.stream,
        structured=facts.structured_output,
        tools=facts.tools,
        domain=facts.domain,
        language=facts.language,
        language_detected=facts.language_detected,
        tags=stated_tags(prepared.body.metadata, prepared.context.headers),
        asks=decision.requested.mode,
        front_cache=front_cache,
        arrived=prepared.context.arrived,
        trace=prepared.context.trace,
    )


def client_family(user_agent: str) -> str:
    given = user_agent.strip().lower()
    if not given:
        return "none"
    return next((family for begin, family in _CLIENT_FAMILIES.items() if given.startswith(begin)), "other")
