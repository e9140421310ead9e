"""Shapes of /admin/contract."""

from prolepsis.core.stats import LossReason
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
