"""What one request took of the device: the counts behind every statement about cost."""

from dataclasses import dataclass, fields
from typing import Literal

DeviceKind = Literal["prefill", "plain", "verify", "propose", "host"]


@dataclass(slots=True)
class DeviceSeconds:
    """Wall seconds of engine steps, a request's share of each (`engine.charging`), by what they went into."""

    prefill: float = 0.0
    """Passes over its prompt, and over tokens computed again after a preemption."""
    plain: float = 0.0
    """Of passes that decoded: what they had taken of it without drafts."""
    verify: float = 0.0
    """What its draft tokens added to them."""
    propose: float = 0.0
    """Making drafts, and what proposers learn."""
    host: float = 0.0
    """Scheduling and committing, while the device waits."""
    predicted_plain: float = 0.0
    """What decoding all of it plainly had taken, by the cost curve; no part of the total."""

    @property
    def total(self) -> float:
        return self.prefill + self.plain + self.verify + self.propose + self.host

    @property
    def speculation(self) -> float:
        """What it took more than its steps had taken without drafts."""
        return self.verify + self.propose

    def by_kind(self) -> dict[DeviceKind, float]:
        """Return the parts of the total."""
        return {
            "prefill": self.prefill,
            "plain": self.plain,
            "verify": self.verify,
            "propose": self.propose,
            "host": self.host,
        }

    def add(self, other: "DeviceSeconds") -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_NAMES = tuple(field.name for field in fields(DeviceSeconds))
