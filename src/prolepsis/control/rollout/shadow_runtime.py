"""Evidence from requests in shadow mode while serving, and /admin/shadow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prolepsis.control.rollout.shadow import ShadowEvidence, TrafficClassEvidence
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import READERS, Route, Routes
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD
from prolepsis.core.ended import RequestEnded
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.stats import EffectiveReason
from prolepsis.core.traffic_sums import Interval

_CONCLUSIVE: tuple[EffectiveReason, ...] = (
    "compared",
    "no_draft",
    "not_worth_it",
    "too_costly",
    "backoff",
    "breaker_open",
    "no_decode",
)
"""Reasons of requests that show the gain from speculation; other requests were stopped or not decoded."""


@dataclass(frozen=True, slots=True)
class ShadowProposer:
    """One proposer in one traffic class."""

    proposer: str
    num_drafts: int
    num_draft_tokens: int
    num_accepted: int
    """Draft tokens that verification would have accepted."""
    acceptance_rate: Interval | None
    saved: Interval | None
    """Share of the requests' time: accepted tokens, less the cost of drafting and verifying, over emitted tokens."""


@dataclass(frozen=True, slots=True)
class ShadowTrafficClass:
    """All requests in shadow mode of one traffic class."""

    traffic_class: str
    num_requests: int
    num_tokens: int
    expected_speedup: Interval | None
    """Tokens per second with speculation over without."""
    cost: Interval | None
    """Share of the requests' time that drafting in shadow took."""
    proposers: list[ShadowProposer]


@dataclass(frozen=True, slots=True)
class ShadowReply:
    version: str
    """Version of draft heads and policy that all figures belong to."""
    traffic_classes: list[ShadowTrafficClass]
    rules: list["ShadowRule"]


@dataclass(frozen=True, slots=True)
class ShadowRule:
    """All requests in shadow mode of one rule of the policy; `default`: no rule matched."""

    rule: str
    num_requests: int
    num_tokens: int
    expected_speedup: Interval | None
    """Tokens per second with speculation over without."""
    cost: Interval | None
    """Share of the requests' time that drafting in shadow took."""


class ShadowFeature(Feature):
    """Gathers the evidence. Belongs to one event loop."""

    name = "shadow"

    def __init__(self, info: Callable[[], EngineInfo], policy: Callable[[], str] = str) -> None:
        """`info` names the draft heads, `policy` is the version in use: the evidence belongs to one of each."""
        self.evidence = ShadowEvidence()
        self.routes = _routes(self)
        self._info = info
        self._policy = policy

    def on_request_end(self, ended: RequestEnded) -> None:
        """Process the prompts of a request that drafted in shadow."""
        info, policy = self._info(), self._policy()
        if (ended.about.policy_version or "") != policy:  # another one was in use when it began
            return
        version = " ".join((*info.heads.values(), info.fingerprint, *((policy,) if policy else ())))
        for prompt in ended.prompts:
            request, stats = prompt.request, prompt.stats
            is_measured = request.speculation.mode == "shadow" and prompt.answer in ("complete", "cut")
            is_current = all(stats.is_evidence_of(name, info.weights_of(name)) for name in (DRAFT_HEAD, CANDIDATE_HEAD))
            if is_measured and is_current and stats.mode.reason in _CONCLUSIVE:
                self.evidence.add(request.traffic_class, stats, version)

    @property
    def shown(self) -> ShadowReply:
        """The evidence so far."""
        classes = sorted(self.evidence.traffic_classes.items())
        rules = [
            ShadowRule(rule, one.saved.number, one.num_tokens, one.speedup, one.drafting.interval)
            for rule, one in sorted(self.evidence.rules.items())
        ]
        return ShadowReply(self.evidence.version, [_shown(name, one) for name, one in classes], rules)


def _shown(name: str, one: TrafficClassEvidence) -> ShadowTrafficClass:
    return ShadowTrafficClass(
        traffic_class=name,
        num_requests=one.saved.number,
        num_tokens=one.num_tokens,
        expected_speedup=one.speedup,
        cost=one.drafting.interval,
        proposers=[
            ShadowProposer(
                proposer=proposer,
                num_drafts=known.counts.num_drafts,
                num_draft_tokens=known.counts.num_draft_tokens,
                num_accepted=known.counts.num_accepted,
                acceptance_rate=known.accepted.interval,
                saved=known.saved.interval,
            )
            for proposer, known in sorted(one.proposers.items())
        ],
    )


def _routes(feature: ShadowFeature) -> Sequence[Route]:
    routes = Routes()
    summary = "The gain from speculation, estimated from requests in shadow mode"

    @routes.get("/admin/shadow", roles=READERS, summary=summary)
    async def shadow() -> ShadowReply:
        return feature.shown

    return routes.all
