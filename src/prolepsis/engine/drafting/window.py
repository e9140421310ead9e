"""Decides how many drafted tokens a pass verifies: one best-first choice by marginal cost.

Slots of all drafts of the batch compete by survival S. A slot pays while S > b*G (b: marginal ms of a token,
G: tokens per ms). Cost curves have steps, so the objective itself is evaluated for every prefix of the sorted slots:

    (plain tokens + sum of S) / (ms(plain tokens) + ms(tokens + slots) - ms(tokens) + overhead)

Prefill in the pass has to be paid whenever it comes, and accepted tokens do not make it less; they save passes that
only decode. So its milliseconds, ms(tokens) - ms(plain tokens), are not part of it: they would make the
tokens of a busy pass look cheap. What drafts add, and a plain step, count as steps have shown
(`engine.drafting.worth`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.worth import AS_PREDICTED, CostCorrection


@dataclass(frozen=True, slots=True)
class StepLoad:
    num_tokens: int  # tokens of the pass: one per decoding sequence plus prefill chunks
    num_context: int  # cached tokens over all sequences of the pass
    max_draft_tokens: int  # draft nodes that still fit the pass
    correction: CostCorrection = AS_PREDICTED  # how costs of steps differ from what is predicted
    num_sequences: int = 0  # decoding sequences of the pass; less than those that draft: just these


@dataclass(frozen=True, slots=True)
class Cut:
    """Nodes of each draft to verify (ascending, closed under parents), and tokens and time expected of decoding.

    Where sequences have targets, tokens are weighed.
    """

    nodes: list[list[int]]
    tokens: float
    ms: float


_FACTORS = (8.0, 2.0)  # by which tokens of sequences that are behind count more
_KEPT = 0.95  # of the pace of sequences that are neither behind a target nor ahead of it


class DraftWindow:
    """Decides by a cost curve; outside the pass a step takes `overhead_ms`, and `token_overhead_ms` a draft token."""

    def __init__(self, cost: CostCurve, *, overhead_ms: float = 0.7, token_overhead_ms: float = 0.0) -> None:
        self.cost = cost
        self._token_overhead = token_overhead_ms
        self._overhead = overhead_ms

    def cut(
        self,
        # per sequence that may draft; empty: no draft. A node's is never above its parent's
        survivals: Sequence[Sequence[float]],
        load: StepLoad,
        spent_ms: float = 0.0,
        urgencies: Sequence[int] = (),
    ) -> Cut:
        """Return the set of nodes with the most expected tokens per millisecond within the load's budget.

        `spent_ms`: what drafting took, which the step pays in any case. `urgencies`: of the same sequences
        (`engine.drafting.urgency`). Where one is behind its target, its tokens count more and tokens of those ahead
        less, as far as the others keep most of the pace that they would have.
        """
        number = len(survivals)
        best = self._cut(survivals, load, spent_ms, [1.0] * number, others=[True] * number)
        if 1 in urgencies:
            others = [urgency == 0 for urgency in urgencies]
            kept = (sum(survivals[s][node] for node in nodes) for s, nodes in enumerate(best.nodes) if others[s])
            least = _KEPT * (max(load.num_sequences - number, 0) + sum(others) + sum(kept)) / best.ms
            for factor in _FACTORS:
                weights = [factor**urgency for urgency in urgencies]
                weighed = self._cut(survivals, load, spent_ms, weights, others=others, least=least)
                if weighed.ms < math.inf:
                    return weighed
        return best

    def _cut(
        self,
        survivals: Sequence[Sequence[float]],
        load: StepLoad,
        spent_ms: float,
        weights: Sequence[float],
        *,
        others: Sequence[bool],  # sequences whose tokens per millisecond are at least `least`; their weight is 1
        least: float = 0.0,
    ) -> Cut:
        """Return the set with the most weight of tokens per millisecond; its time is infinite if none keeps `least`."""
        slots = sorted(
            (-weight * alive, s, node)
            for s, (draft, weight) in enumerate(zip(survivals, weights, strict=True))
            for node, alive in enumerate(draft)
        )
        del slots[max(0, load.max_draft_tokens) :]
        size, num_besides = load.num_tokens, max(0, load.num_sequences - len(survivals))
        table = self.cost.table(size + len(slots), load.num_context)
        tokens, kept = num_besides + sum(weights), float(num_besides + sum(others))
        ratio = load.correction.verifying
        each = ratio * self._token_overhead + load.correction.token_ms
        base = self.plain_ms(load, num_besides + len(survivals)) + spent_ms
        best = (0, tokens, base) if kept >= least * base else (0, 0.0, math.inf)
        base -= ratio * table[size]
        best_rate = best[1] / best[2]
        for count, (negative, s, _) in enumerate(slots, 1):
            tokens -= negative
            if others[s]:
                kept -= negative
            ms = ratio * table[size + count] + count * each + base
            if tokens > best_rate * ms and kept >= least * ms:
                best, best_rate = (count, tokens, ms), tokens / ms
        nodes: list[list[int]] = [[] for _ in survivals]
        for _, s, node in slots[: best[0]]:
            nodes[s].append(node)
        for chosen in nodes:
            chosen.sort()
        return Cut(nodes, *best[1:])

    def marginal_ms(self, load: StepLoad) -> float:
        """Return b, the milliseconds of one more token in a pass of this load, over the next 8."""
        return self.added_ms(load, 8) / 8.0

    def added_ms(self, load: StepLoad, num_tokens: int) -> float:
        table = self.cost.table(load.num_tokens + num_tokens, load.num_context)
        added = table[load.num_tokens + num_tokens] - table[load.num_tokens] + num_tokens * self._token_overhead
        return load.correction.of_drafts(added, num_tokens)

    def plain_ms(self, load: StepLoad, num_plain: int) -> float:
        return load.correction.plain * (self.cost.table(num_plain, load.num_context)[num_plain] + self._overhead)

    def plain_pace(self, load: StepLoad, num_plain: int) -> float:
        """Return the tokens per millisecond of `num_plain` decoding sequences without drafts."""
        return num_plain / self.plain_ms(load, num_plain)


BEST_ACCEPTANCE = 0.9
"""Of each token of a draft, after the one before: the highest that was measured, of copies in edits of whole files with
Qwen2.5-Coder 1.5B, which emit 9.9 tokens a step. Draft heads reached 0.73 on text of their own kind."""
_LONGEST = 16  # tokens of a draft
_LEAST_GAIN = 1.02  # of tokens per millisecond: less is within the error of the curve
_SURVIVALS = [BEST_ACCEPTANCE**depth for depth in range(1, _LONGEST + 1)]


@dataclass(frozen=True, slots=True)
class PayingLoads:
    """Most sequences at once with drafts that can pay, by the cached tokens that they have together.

    By the measured cost of passes alone, so known at the start. Drafts can pay at a load if a pass that verifies the
    best ones emits more tokens per millisecond than plain decoding of the same sequences. The best ones cost nothing to
    make, and each token is accepted with `BEST_ACCEPTANCE` if the one before was. So where they cannot pay, none do.
    """

    contexts: tuple[int, ...]
    most: tuple[int, ...]  # 0: drafts cannot pay there
    measured: int  # sequences that a measured pass can hold with a draft token each

    def describe(self) -> str:
        if not any(self.most):
            return "drafts cannot pay on this model here, at any measured size"
        if min(self.most) == self.measured:
            longest = f"{self.contexts[-1]:,} tokens of context"
            return f"drafts can pay at all measured sizes: {self.measured} at once, {longest}"
        return f"drafts cannot pay on this model here {', or '.join(self._beyond())}"

    def _beyond(self) -> Iterator[str]:
        """Yield the loads from which on drafts cannot pay, neighbouring contexts of one result together."""
        points = zip(self.contexts, self.most, strict=True)
        groups = [(most, list(group)) for most, group in groupby(points, itemgetter(1))]
        for most, group in groups:
            first, last = group[0][0], group[-1][0]
            among = f"{first:,}" if first == last else f"{first:,} to {last:,}"
            where = f" with {among} tokens of context" if len(groups) > 1 else ""
            if most < self.measured:
                yield f"beyond {most} at once{where}" if most else f"at all{where}"


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
