"""Prometheus metrics of rollouts, by the policy's rule."""

from typing import get_args

from prometheus_client import CollectorRegistry

from prolepsis.control.rollout.machine import Phase
from prolepsis.core.telemetry.declare import counter, gauge

_HARM = ("rolled_back", "set_back")
"""Changes that are shown before they happen: an alert on a rise needs the 0 before it."""


class RolloutMetrics:
    """The state of each rollout, its changes, and the assignments of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._phase = gauge(
            registry, "rollout_phase", "1 for the phase that the rollout is in", "rule", "phase", most=300
        )
        text = "Number of the stage, from 0; the number of stages once it is on"
        self._stage = gauge(registry, "rollout_stage", text, "rule")
        self._share = gauge(
            registry, "rollout_share", "Share of requests that get the mode of the rule, 0 to 1", "rule"
        )
        self.changes = counter(registry, "rollout_changes", "Changes of rollouts by kind", "rule", "kind", most=320)
        text = "Requests by arm and mode given"
        self.requests = counter(registry, "rollout_requests", text, "rule", "arm", "mode", most=150)
        text = "Requests that no judgement counts, as too many assigned keys wait for the store"
        self.lost = counter(registry, "rollout_lost_requests", text)
        self.not_kept = counter(registry, "rollout_not_kept", "Changes of rollouts that could not be stored")

    def show(self, rule: str, phase: str, stage: int, share: float) -> None:
        """Set the state of a rollout."""
        for name in get_args(Phase):
            self._phase.labels(rule, name).set(name == phase)
        for kind in _HARM:
            self.changes.labels(rule, kind)
        self._stage.labels(rule).set(stage)
        self._share.labels(rule).set(share)
