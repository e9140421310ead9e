"""Evidence from requests in shadow mode while serving, and /admin/shadow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prolepsis.control.rollout.commands import SHADOW
from prolepsis.control.rollout.shadow import ShadowEvidence, TrafficClassEvidence
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import READERS, shown
from prolepsis.core.config import HEAD_PROPOSERS
from prolepsis.core.ended import RequestEnded
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.reasons import EffectiveReason
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
    proposer: str
    num_drafts: int
    num_draft_tokens: int
    num_accepted: int  # draft tokens that verification would have accepted
    acceptance_rate: Interval | None
    saved: Interval | None
    """Share of the requests' time: accepted tokens, less the cost of drafting and verifying, over emitted tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowFigures:
    """All requests in shadow mode of a group."""

    num_requests: int
    num_tokens: int
    expected_speedup: Interval | None  # tokens per second with speculation over without
    cost: Interval | None  # share of the requests' time that drafting in shadow took


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowTrafficClass(ShadowFigures):
    traffic_class: str
    proposers: list[ShadowProposer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRule(ShadowFigures):
    """Of one rule of the policy; `default`: no rule matched."""

    rule: str


@dataclass(frozen=True, slots=True)
class ShadowReply:
    version: str  # version of draft heads and policy that all figures belong to
    traffic_classes: list[ShadowTrafficClass]
    rules: list[ShadowRule]


class ShadowFeature(Feature):
    """Gathers the evidence. Belongs to one event loop."""

    name = "shadow"

    def __init__(self, info: Callable[[], EngineInfo], policy: Callable[[], str] = str) -> None:
        """`info` names the draft heads, `policy` is the version in use: the evidence belongs to one of each."""
        self.evidence = ShadowEvidence()
        self.routes = shown(SHADOW.path, READERS, SHADOW.help, self.shown)
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
            is_current = all(stats.is_evidence_of(name, info.weights_of(name)) for name in HEAD_PROPOSERS)
            if is_measured and is_current and stats.mode.reason in _CONCLUSIVE:
                self.evidence.add(request.traffic_class, stats, version)

    def shown(self) -> ShadowReply:
        """Return the evidence so far."""
        classes = [
            ShadowTrafficClass(
                **_figures(seen),
                traffic_class=name,
                proposers=[
                    ShadowProposer(
                        proposer=proposer,
                        num_drafts=known.counts.num_drafts,
                        num_draft_tokens=known.counts.num_draft_tokens,
                        num_accepted=known.counts.num_accepted,
                        acceptance_rate=known.accepted.interval,
                        saved=known.saved.interval,
                    )
                    for proposer, known in sorted(seen.proposers.items())
                ],
            )
            for name, seen in sorted(self.evidence.traffic_classes.items())
        ]
        rules = [ShadowRule(**_figures(seen), rule=rule) for rule, seen in sorted(self.evidence.rules.items())]
        return ShadowReply(self.evidence.version, classes, rules)


def _figures(seen: TrafficClassEvidence) -> dict[str, Any]:
    return {
        "num_requests": seen.saved.number,
        "num_tokens": seen.num_tokens,
        "expected_speedup": seen.speedup,
        "cost": seen.drafting.interval,
    }
