"""Sums over requests that ended, and their ratios: counts add, so a ratio is taken last."""

from dataclasses import dataclass

from prolepsis.core.stats import RequestStats


def ratio(part: float, whole: float) -> float | None:
    """Return `part` / `whole`, None where there is nothing to be a part of."""
    return part / whole if whole else None


@dataclass(slots=True)
class Drafted:
    """Draft tokens, and those that were accepted."""

    num_draft_tokens: int = 0
    num_accepted: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        return ratio(self.num_accepted, self.num_draft_tokens)


@dataclass(slots=True)
class TrafficSums(Drafted):
    """Requests that ended, and what they took of the device."""

    num_requests: int = 0
    num_output_tokens: int = 0
    device_s: float = 0.0
    predicted_plain_s: float = 0.0

    @property
    def saved(self) -> float | None:
        """1 - device time / predicted device time of plain decoding."""
        spent = ratio(self.device_s, self.predicted_plain_s)
        return None if spent is None else 1.0 - spent

    def add(self, other: "TrafficSums") -> None:
        self.num_requests += other.num_requests
        self.num_output_tokens += other.num_output_tokens
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted += other.num_accepted
        self.device_s += other.device_s
        self.predicted_plain_s += other.predicted_plain_s


def sums_of(stats: RequestStats) -> TrafficSums:
    """Return the sums of one request."""
    return TrafficSums(
        num_requests=1,
        num_output_tokens=stats.num_output_tokens,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted=stats.num_accepted,
        device_s=stats.device.total,
        predicted_plain_s=stats.device.predicted_plain,
    )
