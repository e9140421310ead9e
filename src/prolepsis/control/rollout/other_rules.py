"""What requests of other rules took of the device before a stage of a rollout began, and since."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prolepsis.control.traffic.feature import RuleTraffic
from prolepsis.core.traffic_sums import LEAST_REQUESTS, TrafficSums, ratio


@dataclass(frozen=True, slots=True)
class OtherRule:
    """One rule that is not the one rolled out, within the last hour."""

    rule: str
    num_before: int
    num_since: int  # requests
    before_s: float | None
    since_s: float | None  # device seconds of an output token; None with fewer than 20 requests


def other_rules(rules: Sequence[RuleTraffic], rule: str, since: float) -> Iterator[OtherRule]:
    """Yield the rules besides `rule` with requests in the last hour; the minute in which `since` lies is left out.

    `since`: Unix time in seconds. It is no experiment: what else changed meanwhile is in the figures, too.
    """
    for reply in rules:
        before, after = TrafficSums(), TrafficSums()
        for span in reply.minutes:
            if not (span.at <= since < span.at + 60.0):
                (before if span.at < since else after).add(span)
        if reply.rule != rule and before.num_requests + after.num_requests:
            yield OtherRule(reply.rule, before.num_requests, after.num_requests, _per_token(before), _per_token(after))


def _per_token(sums: TrafficSums) -> float | None:
    return ratio(sums.device_s, sums.num_output_tokens) if sums.num_requests >= LEAST_REQUESTS else None
