"""The recent counts of a proposer's drafts, on which a breaker decides: older ones fade, and tenants are kept apart."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from math import sqrt
from typing import Self

from prolepsis.core.stats import GrowingCounts, TenantCounts, TrafficClassCounts


@dataclass(frozen=True, slots=True)
class Window:
    """Weighted sums of a proposer's counts; older observations fade. `TrafficClassCounts` explains each."""

    judged: float = 0.0
    right: float = 0.0
    rounds: float = 0.0
    spent: float = 0.0
    gained: float = 0.0
    gained_squared: float = 0.0

    def add(self, before: GrowingCounts, after: GrowingCounts, by_judged: float, by_rounds: float) -> Self:
        """Return the window after another reading; it already contains `before`, faded by these factors."""
        num_judged, num_rounds = after.num_judged - before.num_judged, after.num_rounds - before.num_rounds
        return type(self)(
            self.judged * by_judged + num_judged,
            self.right * by_judged + after.num_right - before.num_right,
            self.rounds * by_rounds + num_rounds,
            self.spent * by_rounds + after.spent - before.spent,
            self.gained * by_rounds + after.gained - before.gained,
            self.gained_squared * by_rounds + after.gained_squared - before.gained_squared,
        )

    def with_also(self, other: Self) -> Self:
        """Return the sum of both."""
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in _SUMS))

    def without(self, part: Self) -> Self:
        """Return the rest of it."""
        return type(self)(*(max(0.0, getattr(self, name) - getattr(part, name)) for name in _SUMS))

    @property
    def acceptance(self) -> float | None:
        """Share of judged drafts whose first token was right; None before the first."""
        return min(1.0, self.right / self.judged) if self.judged else None

    def max_acceptance(self, standard_errors: float) -> float:
        """Return the upper bound of the acceptance (Wilson's score interval, 1927)."""
        if not self.judged:
            return 1.0
        share, square = min(1.0, self.right / self.judged), standard_errors * standard_errors
        spread = standard_errors * sqrt(share * (1.0 - share) / self.judged + square / (4.0 * self.judged**2))
        return (share + square / (2.0 * self.judged) + spread) / (1.0 + square / self.judged)

    def max_gained(self, standard_errors: float) -> float:
        """Return the upper bound of the tokens to expect from these rounds."""
        return self.gained + standard_errors * sqrt(self.gained_squared + 1.0)


_SUMS = tuple(field.name for field in fields(Window))


@dataclass(frozen=True, slots=True)
class Windows:
    """The window of all drafts, and its parts by tenant, for the tenants that are kept apart."""

    whole: Window = field(default_factory=Window)
    parts: Mapping[str, Window] = field(default_factory=dict)

    def read(self, before: TrafficClassCounts, after: TrafficClassCounts, half_life: float) -> Self:
        """Return the windows after another reading; parts fade like the whole."""
        seen = {part.tenant: part for part in before.tenants}
        by_judged = 0.5 ** ((after.num_judged - before.num_judged) / half_life)
        by_rounds = 0.5 ** ((after.num_rounds - before.num_rounds) / half_life)
        parts: dict[str, Window] = {}
        for part in after.tenants:
            was, window = seen.get(part.tenant, TenantCounts(part.tenant)), self.parts.get(part.tenant, Window())
            if part.fell_from(was):  # it was not kept apart for a while
                was, window = part, Window()
            parts[part.tenant] = window.add(was, part, by_judged, by_rounds)
        return type(self)(self.whole.add(before, after, by_judged, by_rounds), parts)

    def of(self, tenants: Collection[str]) -> Self:
        """Return the windows of these tenants."""
        parts = {tenant: window for tenant, window in self.parts.items() if tenant in tenants}
        return type(self)(reduce(Window.with_also, parts.values(), Window()), parts)

    def without(self, tenants: Collection[str]) -> Self:
        """Return the windows of all other tenants."""
        parts = {tenant: window for tenant, window in self.parts.items() if tenant not in tenants}
        return type(self)(self.whole.without(self.of(tenants).whole), parts)
