"""Counters of the contract boundary: drafted tokens that reached the client or not, what output policies did."""

from prometheus_client import CollectorRegistry, Counter


class ContractMetrics:
    """By proposer and traffic class (few by construction); policies are those of the configuration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"prolepsis_{name}", text, labels, registry=registry)

        self.verified = counter(
            "contract_verified_tokens", "Drafted tokens that verification accepted", "proposer", "traffic_class"
        )
        self.delivered = counter(
            "contract_delivered_tokens", "Of these, those that reached the client", "proposer", "traffic_class"
        )
        self.lost = counter(
            "contract_lost_tokens", "Of these, those that did not", "proposer", "traffic_class", "reason"
        )
        self.decisions = counter("output_policy_decisions", "What output policies decided", "policy", "decision")
        self.faults = counter("output_policy_faults", "Policies that were out for an answer", "policy", "kind")
        self.seconds = counter("output_policy_seconds", "Time spent in output policies", "policy")
