"""Decides how many drafted tokens a pass verifies: one best-first choice by marginal cost.

Slots of all drafts of the batch compete by survival S. A slot pays while S > b*G (b: marginal ms of a token,
G: tokens per ms). Cost curves have steps, so the objective itself is evaluated for every prefix of the sorted slots:

    (plain tokens + sum of S) / (ms(plain tokens) + ms(tokens + slots) - ms(tokens) + overhead)

Prefill in the pass has to be paid whenever it comes, and accepted tokens do not make it less; they save passes that
only decode. So its milliseconds, ms(tokens) - ms(plain tokens), are not part of it: they would make the
tokens of a busy pass look cheap. What drafts add, and a plain step, count as steps have shown
(`engine.drafting.worth`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.worth import AS_PREDICTED, CostCorrection


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The load of a pass before any draft is added."""

    num_tokens: int
    """Tokens of the pass: one per decoding sequence plus prefill chunks."""
    num_context: int
    """Cached tokens over all sequences of the pass."""
    max_draft_tokens: int
    """Draft nodes that still fit the pass."""
    correction: CostCorrection = AS_PREDICTED
    """How costs of steps differ from what is predicted."""
    num_sequences: int = 0
    """Decoding sequences of the pass; less than those that draft: just these."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Nodes of each draft to verify (ascending, closed under parents), and the tokens and time expected of decoding."""

    nodes: list[list[int]]
    tokens: float
    ms: float


class DraftWindow:
    """Decides by a cost curve; outside the pass a step takes `overhead_ms`, and `token_overhead_ms` a draft token."""

    def __init__(self, cost: CostCurve, *, overhead_ms: float = 0.7, token_overhead_ms: float = 0.0) -> None:
        self.cost = cost
        self._token_overhead = token_overhead_ms
        self._overhead = overhead_ms

    def cut(
        self,
        survivals: Sequence[
            Sequence[float]
        ],  # per sequence that may draft; empty: no draft. A node's never above its parent's
        load: StepLoad,
        spent_ms: float = 0.0,
    ) -> Cut:
        """Return the set of nodes with the most expected tokens per millisecond within the load's budget.

        `spent_ms`: what drafting took, which the step pays in any case.
        """
        slots = sorted((-alive, s, node) for s, draft in enumerate(survivals) for node, alive in enumerate(draft))
        del slots[max(0, load.max_draft_tokens) :]
        number = max(load.num_sequences, len(survivals))
        best, tokens, ms = self._best_prefix([-slot[0] for slot in slots], number, load, spent_ms)
        nodes: list[list[int]] = [[] for _ in survivals]
        for _, s, node in slots[:best]:
            nodes[s].append(node)
        for kept in nodes:
            kept.sort()
        return Cut(nodes, tokens, ms)

    def marginal_ms(self, load: StepLoad) -> float:
        """Return b, the milliseconds of one more token in a pass of this load, over the next 8."""
        return self.added_ms(load, 8) / 8.0

    def added_ms(self, load: StepLoad, num_tokens: int) -> float:
        """Return the milliseconds that verifying so many draft tokens adds to a step."""
        table = self.cost.table(load.num_tokens + num_tokens, load.num_context)
        added = table[load.num_tokens + num_tokens] - table[load.num_tokens] + num_tokens * self._token_overhead
        return load.correction.of_drafts(added, num_tokens)

    def plain_ms(self, load: StepLoad, num_plain: int) -> float:
        """Return the milliseconds of a step that decodes `num_plain` sequences without drafts."""
        return load.correction.plain * (self.cost.table(num_plain, load.num_context)[num_plain] + self._overhead)

    def plain_pace(self, load: StepLoad, num_plain: int) -> float:
        """Return the tokens per millisecond of `num_plain` decoding sequences without drafts."""
        return num_plain / self.plain_ms(load, num_plain)

    def _best_prefix(
        self, alive: Sequence[float], num_plain: int, load: StepLoad, spent_ms: float
    ) -> tuple[int, float, float]:
        size = load.num_tokens
        table = self.cost.table(size + len(alive), load.num_context)
        tokens = float(num_plain)
        ratio = load.correction.verifying
        each = ratio * self._token_overhead + load.correction.token_ms
        base = self.plain_ms(load, num_plain) + spent_ms
        best = (0, tokens, base)
        base -= ratio * table[size]
        best_rate = tokens / best[2]
        for count, gain in enumerate(alive, 1):
            tokens += gain
            ms = ratio * table[size + count] + count * each + base
            if tokens > best_rate * ms:
                best, best_rate = (count, tokens, ms), tokens / ms
        return best
