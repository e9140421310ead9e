"""Prometheus metrics of rollouts, by the policy's rule."""

from prometheus_client import CollectorRegistry, Counter, Gauge

_OUTCOMES = {"fail": -1, "inconclusive": 0, "pass": 1}
_PHASES = ("off", "running", "gate", "held", "on", "rolled_back")


class RolloutMetrics:
    """The state of each rollout, its verdicts and changes, and the assignments of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"prolepsis_rollout_{name}", text, ["rule", *labels], registry=registry)

        self._phase = gauge("phase", "1 for the phase that the rollout is in", "phase")
        self._stage = gauge("stage", "Number of the stage, from 0; the number of stages once it is on")
        self._share = gauge("share", "Share of requests that get the mode of the rule, 0 to 1")
        self._verdict = gauge("verdict", "Verdict on the stage: 1 pass, 0 inconclusive, -1 fail")
        self._changes = Counter(
            "prolepsis_rollout_changes", "Changes of rollouts by kind", ["rule", "kind"], registry=registry
        )
        self._requests = Counter(
            "prolepsis_rollout_requests", "Requests by arm and mode given", ["rule", "arm", "mode"], registry=registry
        )
        self.not_kept = Counter(
            "prolepsis_rollout_not_kept", "Changes of rollouts that could not be stored", registry=registry
        )

    def show(self, rule: str, phase: str, stage: int, share: float) -> None:
        """Set the state of a rollout."""
        for name in _PHASES:
            self._phase.labels(rule, name).set(name == phase)
        self._stage.labels(rule).set(stage)
        self._share.labels(rule).set(share)

    def judged(self, rule: str, outcome: str) -> None:
        """Set the verdict: pass, fail or inconclusive."""
        self._verdict.labels(rule).set(_OUTCOMES[outcome])

    def changed(self, rule: str, kind: str) -> None:
        """Count a change: started, promoted, rolled_back, ..."""
        self._changes.labels(rule, kind).inc()

    def assigned(self, rule: str, arm: str, mode: str) -> None:
        """Count a request that was assigned to an arm."""
        self._requests.labels(rule, arm, mode).inc()
