from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    """Time that passes when told to, in seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now
