"""A request that has ended, as plain values: for records, audit, cost, rollouts, shadow mode, replays and metrics."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Literal

from prolepsis.core.events import Tokens
from prolepsis.core.reasons import LossReason
from prolepsis.core.requests import GenerateRequest, SpecMode
from prolepsis.core.stats import Mode, RequestStats
from prolepsis.core.token_intervals import TokenIntervals
from prolepsis.core.trace_context import TraceContext

AssignedArm = Literal["canary", "unassigned", "holdout"]
"""Unassigned requests are plain until the rollout is on, then they get the rule's mode; the holdout stays plain."""
End = Literal[
    "finished",  # with all of its text
    "failed",
    "expired",  # at the deadline that its client set, while the server was at work
    "aborted",  # by the server
    "left",  # the client went away
    "refused",  # by the engine, for a fault of the caller
    "broken",  # its answer breaks what its schema asks for beyond its grammar
]
FAILED: tuple[End, ...] = ("failed", "aborted")
"""What availability counts as a failure: other ends are finished, or were made by the client."""

TargetKind = Literal["first_token", "per_token"]

Answer = Literal[
    "complete",  # the engine finished it
    "cut",  # the engine reported its figures, but not the end of the answer
    "unreported",  # the engine's figures never came
    "cached",  # from the response cache; the engine was not asked
]
AuditContent = Literal["digests", "text", "tokens"]
"""Of prompt and answer: their salted digests only; their text too, redacted; their tokens too, where redaction finds
nothing in their text, so that the request can be decoded again."""


class Keep(IntFlag):
    """What is kept of a request until it ends; each part includes the parts that its value is made of."""

    FIGURES = 0
    ROUNDS = 1  # figures of its first rounds too (`RequestStats.rounds`)
    TOKENS = 2 | ROUNDS
    DRAFTS = 4 | TOKENS
    SHAPES = 8 | TOKENS  # shapes of its drafts, as a rehearsal replays them (`RequestStats.drafts`)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Assignment of one request by a rollout. Later changes of the rollout do not change it."""

    rollout_id: str
    run: int
    stage: int
    arm: AssignedArm
    mode: Mode
    share: float = 0.0
    """Probability with which the request was assigned to a canary that verifies; 0 if there is none."""
    unit: str = ""  # hash of the key that it was assigned by, with others; empty: it was assigned by itself
    weights: str = ""  # versions of the draft heads that its rule may use: evidence belongs to them
    is_against_plain: bool = True  # the requests that are not the canary's are decoded plainly
    is_rolled_back: bool = False  # the rollout was rolled back before the request came

    @property
    def rollout_run(self) -> str:
        """The name by which the engine stops the run's requests."""
        return run_name(self.rollout_id, self.run)


def run_name(rollout_id: str, run: int) -> str:
    return f"{rollout_id}#{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAbout:
    """The sender of an HTTP request, and what decided how it was served."""

    answer_id: str  # the id that the client sees
    tenant: str
    key_id: str
    tier: str
    route: str
    model: str
    num_prompts: int = 1
    policy_rule: str | None = None
    policy_version: str | None = None
    assignment: Assignment | None = None  # if the policy's rule is rolled out
    is_evidence: bool = False
    """The request counts for its rollout: neither the caller nor a flag narrowed what it was assigned."""
    flags: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)  # by flag: variant and reason
    audit_share: float | None = None
    """Share (0 to 1) of requests that the policy's rule has audited; None: the server's setting applies."""
    audit_content: AuditContent | None = None
    is_recorded: bool = True  # the policy lets records of its tenant's requests be kept
    learns: str = ""  # rule under which it may be learnt from, as its tenant and itself agreed; empty: it may not
    http_request_id: str = ""  # value of `x-request-id`
    client: str = "none"  # family of the program that sent it, by its `user-agent`
    stream: bool = False  # its answer goes out in parts
    structured: str = "none"  # as `RequestFacts.structured_output`; the next as `RequestFacts.tools`
    tools: bool = False
    domain: str | None = None  # as `RequestFacts.domain`; the next two likewise
    language: str | None = None
    language_detected: bool = False
    tags: tuple[str, ...] = ()  # that it states, to whom its cost belongs
    asks: SpecMode = "auto"  # what its caller asked of speculation
    front_cache: bool = False  # a cache in front says that it had an answer; such a request is no evidence
    arrived: float = 0.0  # when it arrived, by `time.monotonic`
    trace: TraceContext | None = None
    """Trace context of its own span; None: it carried no trace, and none was begun."""

    @property
    def rollout_run(self) -> str:
        """Empty without a rollout, as is the arm."""
        return self.assignment.rollout_run if self.assignment else ""

    @property
    def arm(self) -> str:
        return self.assignment.arm if self.assignment else ""

    @property
    def age_s(self) -> float:
        """Seconds since it arrived; 0 if that is not known."""
        return time.monotonic() - self.arrived if self.arrived else 0.0

    @property
    def canary_share(self) -> float | None:
        """Probability with which chance alone drew it for drafts, else for plain decoding; None: another way."""
        draw, is_alone = self.assignment, self.is_evidence and self.num_prompts == 1
        is_drawn = is_alone and draw is not None and draw.is_against_plain and not draw.unit and 0.0 < draw.share < 1.0
        return draw.share if draw is not None and is_drawn else None

    @property
    def trace_id(self) -> str:
        """Empty without a trace."""
        return self.trace.trace_id if self.trace else ""


@dataclass(frozen=True, slots=True)
class DeliveredDrafts:
    """Draft tokens of one proposer: accepted by verification, delivered to the client, and lost by reason."""

    num_verified: int
    num_delivered: int
    lost: Mapping[LossReason, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEnded:
    """One prompt of a request; a completions request may have several, each with its own engine request."""

    request: GenerateRequest  # as the engine got it
    end: End
    error: str | None  # code of the error if it failed
    stats: RequestStats
    """The engine's, with what was delivered; if the engine's never came, the number of tokens that did."""
    num_shown_tokens: int | None
    """Output tokens up to the stop of an output policy, if there was one; None: the answer is not complete."""
    answer: Answer
    tokens: tuple[Tokens, ...]  # all that was emitted, if it was kept (`Keep`)
    finish_reasons: tuple[str, ...]  # finish reasons of the samples that ended, as the client sees them
    delivery: Mapping[str, DeliveredDrafts]  # by proposer
    stopped_by: tuple[str, ...] = ()  # names of the output policies that ended samples
    whole_calls: tuple[bool, ...] = ()
    """For each sample that began a tool call: whether all of its calls are complete."""
    waited_s: float = 0.0  # seconds that it waited for admission; `stats` counts from then on
    began_at: float = 0.0  # when the wait was over, by `time.monotonic`
    first_token_at: float | None = None  # when its first tokens arrived from the engine, likewise
    stream_s: float = 0.0  # seconds in which its answer waited for the client to read it
    intervals: TokenIntervals = field(default_factory=TokenIntervals)

    @property
    def kept_form(self) -> bool | None:
        """Whether the answer has the form that was requested; None: none was, or an output policy ended it."""
        is_bound = self.request.grammar is not None and "content_filter" not in self.finish_reasons
        return "length" not in self.finish_reasons if is_bound else None

    @property
    def targets(self) -> Mapping[TargetKind, bool]:
        """Whether it kept its latency targets; none where its client or its own fault ended it, or no times came."""
        target, stats = self.request.target, self.stats
        if target is None or self.end in ("left", "refused") or self.answer == "unreported":
            return {}
        goals: Mapping[TargetKind, tuple[float | None, float | None]] = {
            "first_token": (stats.first_token_s, target.first_token_ms),
            "per_token": (self.per_token_s, target.ms_per_token),
        }
        is_served = self.end not in (*FAILED, "expired")
        return {
            kind: is_served and 1000.0 * (took_s or 0.0) <= most_ms
            for kind, (took_s, most_ms) in goals.items()
            if most_ms is not None
        }

    @property
    def met_target(self) -> bool | None:
        """Whether it kept all of them; None: it has none."""
        return all(targets.values()) if (targets := self.targets) else None

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first of its sample; None where a sample has no other.

        Samples are decoded at the same time, so each has all of it.
        """
        stats, num_samples = self.stats, self.request.n
        if stats.first_token_s is None or stats.num_output_tokens <= num_samples:
            return None
        return num_samples * (stats.total_s - stats.first_token_s) / (stats.num_output_tokens - num_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded:
    """An admitted HTTP request that has ended."""

    about: RequestAbout
    end: End
    error: str | None
    prompts: tuple[PromptEnded, ...]  # those that began to run, in that order
    ended_at: float = 0.0  # by `time.monotonic`

    @property
    def without_tokens(self) -> "RequestEnded":
        """Its figures, for features that keep them; without shapes of drafts too."""
        bare = (replace(prompt, tokens=(), stats=replace(prompt.stats, drafts={})) for prompt in self.prompts)
        return replace(self, prompts=tuple(bare))
