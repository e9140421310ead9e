"""At which loads drafts can pay on a model and a machine, by the measured cost of passes alone: known at the start.

A load is so many sequences at once with so many cached tokens together. Drafts can pay there if a pass that verifies
the best ones emits more tokens per millisecond than plain decoding of the same sequences. The best ones cost nothing to
make, and each token is accepted with `BEST_ACCEPTANCE` if the one before was. So where they cannot pay, none do; where
they can, it is left to the drafts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.window import DraftWindow, StepLoad

BEST_ACCEPTANCE = 0.9
"""Of each token of a draft, after the one before: the highest that was measured, of copies in edits of whole files with
Qwen2.5-Coder 1.5B, which emit 9.9 tokens a step. Draft heads reached 0.73 on text of their own kind."""
_LONGEST = 16  # tokens of a draft
_LEAST_GAIN = 1.02  # of tokens per millisecond: less is within the error of the curve
_SURVIVALS = [BEST_ACCEPTANCE**depth for depth in range(1, _LONGEST + 1)]


@dataclass(frozen=True, slots=True)
class PayingLoads:
    """Most sequences at once with drafts that can pay, by the cached tokens that they have together."""

    contexts: tuple[int, ...]
    most: tuple[int, ...]
    """0: drafts cannot pay there."""
    measured: int
    """Sequences that a measured pass can hold with a draft token each."""

    def describe(self) -> str:
        """Return where drafts cannot pay, in one sentence."""
        if not any(self.most):
            return "drafts cannot pay on this model here, at any measured size"
        if min(self.most) == self.measured:
            longest = f"{self.contexts[-1]:,} tokens of context"
            return f"drafts can pay at all measured sizes: {self.measured} at once, {longest}"
        return f"drafts cannot pay on this model here {', or '.join(self._beyond())}"

    def _beyond(self) -> Iterator[str]:
        """Yield the loads from which on drafts cannot pay, neighbouring contexts of one result together."""
        groups = [(most, list(group)) for most, group in groupby(zip(self.contexts, self.most, strict=True), _most)]
        for most, group in groups:
            first, last = group[0][0], group[-1][0]
            among = f"{first:,}" if first == last else f"{first:,} to {last:,}"
            where = f" with {among} tokens of context" if len(groups) > 1 else ""
            if most < self.measured:
                yield f"beyond {most} at once{where}" if most else f"at all{where}"


def _most(point: tuple[int, int]) -> int:
    return point[1]


def paying_loads(cost: CostCurve) -> PayingLoads:
    """Return the loads, of those whose passes were measured."""
    window, measured = DraftWindow(cost), cost.tokens[-1] // 2
    most = tuple(
        next((number for number in range(measured, 0, -1) if _can_pay(window, number, context)), 0)
        for context in cost.contexts
    )
    return PayingLoads(cost.contexts, most, measured)


def _can_pay(window: DraftWindow, number: int, context: int) -> bool:
    room = window.cost.tokens[-1] - number
    load = StepLoad(number, context, room)
    cut = window.cut([_SURVIVALS[: 1 + room // number]] * number, load)
    return cut.tokens / cut.ms >= _LEAST_GAIN * window.plain_pace(load, number)
