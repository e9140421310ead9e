"""What became of the drafts that the remote proposer was asked for."""

from prometheus_client import CollectorRegistry

from prolepsis.core.remote import RemoteRounds
from prolepsis.telemetry.declare import counter, gauge
from prolepsis.telemetry.distribution import Distribution

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class RemoteMetrics:
    """Of one engine's remote proposer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Drafts that the remote proposer was asked for, by what became of them"
        self._drafts = counter(registry, "remote_proposer_drafts", text, "outcome")
        text = "Time from asking for drafts until the engine saw the answer"
        self._seconds = Distribution(registry, "remote_proposer_round_seconds", text, buckets=_BUCKETS).labels()
        text = "1 while the remote proposer is connected to its server"
        self._connected = gauge(registry, "remote_proposer_connected", text, "proposer")

    def count(self, rounds: RemoteRounds) -> None:
        """Add what was reported."""
        self._connected.labels("remote").set(rounds.is_connected)
        for outcome, number in rounds.outcomes.items():
            self._drafts.labels(outcome).inc(number)
        for seconds in rounds.seconds:
            self._seconds.add(seconds)
