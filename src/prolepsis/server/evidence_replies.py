"""Shapes of /admin/contract, /admin/drift and /admin/shadow."""

from typing import Annotated

from pydantic import Field

from prolepsis.control.drift.alarm import Status
from prolepsis.control.drift.board import Key
from prolepsis.control.drift.stream import Stream
from prolepsis.control.shadow_evidence import Estimate, ShadowEvidence
from prolepsis.control.slices import SLICE
from prolepsis.core.stats import LossReason
from prolepsis.server.drift_watch import DriftWatch
from prolepsis.server.fields import Body
from prolepsis.server.output.boundary import Boundary
from prolepsis.server.replies import Reply


class OutputPolicyReply(Reply):
    name: str
    on_fault: str
    timeout_ms: float
    max_held: int


class DeliveredReply(Reply):
    """Drafted tokens of ended requests, by proposer and slice."""

    proposer: str
    slice: str
    num_verified: int
    num_delivered: int
    lost: dict[LossReason, int]


class ContractReply(Reply):
    policies: list[OutputPolicyReply]
    """In the order in which they read."""
    delivered: list[DeliveredReply]


def contract_reply(boundary: Boundary) -> ContractReply:
    """Return what is configured, and what came of drafted tokens since the server started."""
    return ContractReply(
        policies=[
            OutputPolicyReply(
                name=one.name,
                on_fault="open" if one.fails_open else "closed",
                timeout_ms=1000.0 * one.timeout_s,
                max_held=one.max_held,
            )
            for one in boundary.policies.loaded
        ],
        delivered=[
            DeliveredReply(
                proposer=proposer,
                slice=slice_name,
                num_verified=counts.verified,
                num_delivered=counts.delivered,
                lost={reason: number for reason, number in counts.lost.items() if number},
            )
            for (proposer, slice_name), counts in sorted(boundary.counts.items())
        ],
    )


class DriftResetBody(Body):
    proposer: Annotated[str, Field(max_length=64)]
    slice: Annotated[str, Field(pattern=SLICE)]


class DriftStreamReply(Reply):
    """What is known of one proposer in one slice since its version was put in; None: not yet."""

    proposer: str
    slice: str
    version: str
    status: Status
    acceptance: float | None
    """Of first drafted tokens, since the last change."""
    recent_acceptance: float | None
    """Over the window in which cliffs are seen."""
    overestimated: float | None
    """What the proposer gave its first token less what came true, lately."""
    num_judged: int
    seconds: float


class DriftReply(Reply):
    enabled: bool
    streams: list[DriftStreamReply]


def drift_reply(watch: DriftWatch | None) -> DriftReply:
    """Return what is known of all."""
    streams = (
        []
        if watch is None
        else [stream_reply(key, one, watch) for key, one in sorted(watch.streams.items(), key=lambda item: item[0])]
    )
    return DriftReply(enabled=watch is not None, streams=streams)


def stream_reply(key: Key, stream: Stream, watch: DriftWatch) -> DriftStreamReply:
    return DriftStreamReply(
        proposer=key[0],
        slice=key[1],
        version=stream.version,
        status=stream.status,
        acceptance=stream.acceptance,
        recent_acceptance=stream.recent,
        overestimated=stream.overestimated,
        num_judged=stream.num_judged,
        seconds=round(watch.seconds_of(stream), 1),
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


class ShadowSliceReply(Reply):
    slice: str
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
    slices: list[ShadowSliceReply]


def shadow_reply(evidence: ShadowEvidence) -> ShadowReply:
    """Return what requests in shadow showed."""
    return ShadowReply(
        version=evidence.version,
        slices=[
            ShadowSliceReply(
                slice=name,
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
            for name, one in sorted(evidence.slices.items())
        ],
    )


def _estimate(found: Estimate | None) -> EstimateReply | None:
    return None if found is None else EstimateReply(value=found.value, low=found.low, high=found.high)
