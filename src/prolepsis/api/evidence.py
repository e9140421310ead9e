"""Shapes of /admin/contract, /admin/drift and /admin/shadow."""

from collections.abc import Sequence

from prolepsis.api.output.chain import OutputPolicies
from prolepsis.api.output.delivery import DeliveryFeature
from prolepsis.api.room import Room
from prolepsis.core.stats import LossReason
from prolepsis.rollout.shadow import Estimate, ShadowEvidence
from prolepsis.web.fields import Reply
from prolepsis.web.routes import READERS, Route, Routes


class OutputPolicyReply(Reply):
    name: str
    on_fault: str
    timeout_ms: float
    max_held: int


class DeliveredReply(Reply):
    """Drafted tokens of ended requests, by proposer and traffic class."""

    proposer: str
    traffic_class: str
    num_verified: int
    num_delivered: int
    lost: dict[LossReason, int]


class ContractReply(Reply):
    policies: list[OutputPolicyReply]
    """In the order in which they read."""
    delivered: list[DeliveredReply]


def contract_reply(delivery: DeliveryFeature, output: OutputPolicies) -> ContractReply:
    """Return what is configured, and what came of drafted tokens since the server started."""
    return ContractReply(
        policies=[
            OutputPolicyReply(
                name=one.name,
                on_fault="open" if one.fails_open else "closed",
                timeout_ms=1000.0 * one.timeout_s,
                max_held=one.max_held,
            )
            for one in output.loaded
        ],
        delivered=[
            DeliveredReply(
                proposer=proposer,
                traffic_class=traffic_class,
                num_verified=counts.verified,
                num_delivered=counts.delivered,
                lost={reason: number for reason, number in counts.lost.items() if number},
            )
            for (proposer, traffic_class), counts in sorted(delivery.counts.items())
        ],
    )


class EstimateReply(Reply):
    """With its 95 % interval, the request as the unit; no bounds below 20 requests."""

    value: float
    low: float | None
    high: float | None


class ShadowProposerReply(Reply):
    proposer: str
    num_drafts: int
    num_draft_tokens: int
    num_accepted: int
    """Would have been accepted."""
    acceptance_rate: EstimateReply | None
    saved: EstimateReply | None
    """Share of the requests' time: tokens accepted, less what drafting and verifying cost, over tokens emitted."""


class ShadowTrafficClassReply(Reply):
    traffic_class: str
    num_requests: int
    num_tokens: int
    expected_speedup: EstimateReply | None
    """Tokens per second with speculation over without."""
    cost: EstimateReply | None
    """Share of the requests' time that drafting in shadow took."""
    proposers: list[ShadowProposerReply]


class ShadowReply(Reply):
    version: str
    """Of draft head and policy; the figures are of it alone."""
    traffic_classes: list[ShadowTrafficClassReply]


def shadow_reply(evidence: ShadowEvidence) -> ShadowReply:
    """Return what requests in shadow showed."""
    return ShadowReply(
        version=evidence.version,
        traffic_classes=[
            ShadowTrafficClassReply(
                traffic_class=name,
                num_requests=one.saved.number,
                num_tokens=one.num_tokens,
                expected_speedup=_estimate(one.speedup),
                cost=_estimate(one.drafting.estimate),
                proposers=[
                    ShadowProposerReply(
                        proposer=proposer,
                        num_drafts=known.counts.num_drafts,
                        num_draft_tokens=known.counts.num_draft_tokens,
                        num_accepted=known.counts.num_accepted,
                        acceptance_rate=_estimate(known.accepted.estimate),
                        saved=_estimate(known.saved.estimate),
                    )
                    for proposer, known in sorted(one.proposers.items())
                ],
            )
            for name, one in sorted(evidence.traffic_classes.items())
        ],
    )


def _estimate(found: Estimate | None) -> EstimateReply | None:
    return None if found is None else EstimateReply(value=found.value, low=found.low, high=found.high)


def evidence_routes(room: Room) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/contract", roles=READERS, summary="Accepted and delivered draft tokens; output policies")
    async def contract() -> ContractReply:
        return contract_reply(room.delivery, room.output)

    @routes.get(
        "/admin/shadow", roles=READERS, summary="The gain from speculation, estimated from requests in shadow mode"
    )
    async def shadow() -> ShadowReply:
        return shadow_reply(room.shadow.evidence)

    return routes.all
