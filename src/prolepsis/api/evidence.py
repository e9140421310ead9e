"""/admin/contract: output policies, and accepted and delivered draft tokens."""

from collections.abc import Sequence

from prolepsis.api.output.chain import OutputPolicies
from prolepsis.api.output.delivery import DeliveryFeature
from prolepsis.api.room import Room
from prolepsis.core.stats import LossReason
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


def evidence_routes(room: Room) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/contract", roles=READERS, summary="Accepted and delivered draft tokens; output policies")
    async def contract() -> ContractReply:
        return contract_reply(room.delivery, room.output)

    return routes.all
