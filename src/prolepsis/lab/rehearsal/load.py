"""How many requests come: a rate, or a number in the system at a time."""

from dataclasses import dataclass

from prolepsis.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TrafficLoad:
    """One of the two is given."""

    at_once: int | None = None
    """A closed loop: the next request comes when one ends."""
    per_second: float | None = None
    """Random arrivals, independent of each other (a Poisson process)."""

    def __str__(self) -> str:
        return f"{self.at_once} at once" if self.at_once else f"{self.per_second:g} a second"

    @property
    def name(self) -> str:
        """As it is given, fit for the name of a file."""
        return f"{self.at_once}" if self.at_once else f"{self.per_second:g}-a-second"


def load_of(text: str) -> TrafficLoad:
    """Return the load of a text such as `8` (at once) or `2/s`; raises `ConfigError` for any other."""
    number = text.removesuffix("/s")
    try:
        load = TrafficLoad(at_once=int(text)) if number == text else TrafficLoad(per_second=float(number))
    except ValueError:
        load = TrafficLoad()
    if not 0 < (load.at_once or load.per_second or 0) < 1e6:
        raise ConfigError(f"loads hold {text!r}; allowed: requests at once (8) or a second (2/s)", param="loads")
    return load
