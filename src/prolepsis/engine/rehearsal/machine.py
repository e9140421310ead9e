"""What a machine takes for the parts of a step, as measured, and a clock that such times move."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.rows import Row


class VirtualClock:
    """Seconds that pass when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerCost:
    """Milliseconds of a call: a constant, and amounts for each sequence and for each level of the deepest draft."""

    call_ms: float = 0.0
    sequence_ms: float = 0.0
    level_ms: float = 0.0
    free: bool = False
    """As `Proposer.free`; so is the next."""
    one_pass: bool = False

    def ms(self, num_sequences: int, depth: int) -> float:
        return self.call_ms + self.sequence_ms * num_sequences + self.level_ms * depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine with a model, in milliseconds."""

    passes: CostCurve
    """Passes as they are."""
    expected: CostCurve
    """Passes as the engine expects them: its profile of this machine."""
    scatter: Sequence[float] = (1.0,)
    """Measured over predicted times of passes, all equally likely."""
    step_ms: float = 0.0
    """Of a step outside its pass and its proposers."""
    row_ms: float = 0.0
    """The same, for each row."""
    proposers: Mapping[str, ProposerCost] = field(default_factory=dict)

    def pass_ms(self, rows: Sequence[Row], chance: random.Random) -> float:
        """Return the milliseconds that a pass of these rows takes this time."""
        num_tokens, num_context = sum(row.num_scheduled_tokens for row in rows), sum(row.start for row in rows)
        return self.passes.ms(num_tokens, num_context) * chance.choice(self.scatter)

    def host_ms(self, num_rows: int) -> float:
        return self.step_ms + self.row_ms * num_rows
