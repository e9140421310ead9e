"""What a request must keep to count for goodput."""

from dataclasses import dataclass
from typing import Annotated

import typer

GoalFirstMs = Annotated[float, typer.Option(min=0, help="latest first token that counts for goodput")]
GoalTokenMs = Annotated[float, typer.Option(min=0, help="longest time a token that counts")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyGoal:
    """Longest times, in seconds."""

    first_token_s: float = 2.0
    per_token_s: float = 0.1

    def is_kept(self, first_token_s: float | None, per_token_s: float | None) -> bool:
        """Return whether an answer keeps it; a time that it has not counts as kept."""
        return (first_token_s or 0.0) <= self.first_token_s and (per_token_s or 0.0) <= self.per_token_s
