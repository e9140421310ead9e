"""An answer that another engine began: the tokens it emitted, and the exact group it belongs to."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.core.exact_group import ExactGroup

OutsideGroup = Literal["refuse", "continue"]
"""What an engine of another group does with an answer: the tokens that it emits may differ from those to come."""

EngineLoss = Literal[
    "engine_dead",  # the engine ended, or the way to it is gone
    "not_alive",  # the engine said nothing more, and its health was bad
    "shutdown",  # the engine was closed: a restart, a deployment
    "step_failed",  # a step of the engine failed; the engine lives
]
"""Why a request needed another engine."""

NotContinuedReason = Literal[
    "no_engine",  # none was there in time
    "other_group",  # there were some, all of other exact groups
    "too_often",  # it had lost as many engines as it may
    "replay",  # it compares engines, so it stays with its own
    "refused",  # another engine did not take it
]
"""Why a request that lost its engine ended with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What the engine that takes a request up must know of the one that began it.

    The tokens are output: positions, keyed noise, penalties, stops, limits and grammar continue after them.
    """

    emitted: tuple[tuple[int, ...], ...]  # all tokens of each sample so far, including samples that have ended
    group: ExactGroup  # exact group of the engine that emitted them
    outside_group: OutsideGroup = "refuse"

    def differences(self, here: ExactGroup) -> tuple[str, ...]:
        """Return why an engine of group `here` is not known to emit the same tokens; empty: it does."""
        needed = {"weights": self.group.weights, "tokenizer": self.group.tokenizer, "forward": self.group.forward}
        unknown = [f"{name} unknown" for name, value in needed.items() if not value]
        return (*unknown, *here.differences(self.group.plain()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A request lost its engine and went on in another."""

    loss: EngineLoss
    num_tokens: int  # output tokens of all samples that its consumer had at that time
    pause_s: float
    """What its consumer waited: from the last tokens before the loss, or its arrival, to the next ones."""
