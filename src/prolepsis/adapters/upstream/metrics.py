"""What pools do, as metrics."""

from prometheus_client import CollectorRegistry

from prolepsis.adapters.upstream.route import PoolName
from prolepsis.core.telemetry.declare import counter, gauge

DRAFT_COUNTERS = {
    f"{engine}:spec_decode_num_{name}_total": name
    for engine in ("vllm", "llamacpp")
    for name in ("drafts", "draft_tokens", "accepted_tokens")
}
"""Counters of a pool's own /metrics, over all that it serves."""


class UpstreamMetrics:
    """Belongs to one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = gauge(registry, "upstream_up", "1 while a pool of upstream engines answers", "pool")
        text = (
            "Answers (of a sample each) that pools were asked for: finished, lost, busy, refused, left, "
            "replayed in shadow"
        )
        self._answers = counter(registry, "upstream_answers", text, "pool", "outcome")
        texts = {
            "drafts": "Drafts of the speculating pool over all that it serves, by its own metrics (vLLM, llama.cpp)",
            "draft_tokens": "Draft tokens of the speculating pool, by its own metrics",
            "accepted_tokens": "Accepted draft tokens of the speculating pool, by its own metrics",
        }
        self._drafts = {name: counter(registry, f"upstream_{name}", text) for name, text in texts.items()}
        self._read: dict[str, float] = {}

    def up(self, pool: PoolName, *, is_up: bool) -> None:
        """Show whether a pool answers."""
        self._up.labels(pool).set(is_up)

    def answered(self, pool: PoolName, outcome: str) -> None:
        """Count an answer of a pool: finished, lost, busy, refused, or left by its reader."""
        self._answers.labels(pool, outcome).inc()

    def drafted(self, totals: dict[str, float]) -> None:
        """Take in the totals of the pool; lower ones mean that the pool restarted."""
        for name, total in totals.items():
            before = self._read.get(name)
            if before is not None:
                self._drafts[name].inc(total - before if total >= before else total)
        self._read = totals
