"""What window and effort decide, by trying everything: the plain statement of what the fast ones must find."""

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.draft import ROOT, Draft
from prolepsis.engine.drafting.effort import ExpectedDraft, MarginalCost
from prolepsis.engine.drafting.window import StepLoad


def closed_sets(draft: Draft | None) -> Iterator[tuple[int, ...]]:
    """Yield every set of nodes that holds each node's parent with it."""
    nodes = range(len(draft.tokens) if draft else 0)
    for size in range(len(nodes) + 1):
        for kept in combinations(nodes, size):
            if draft is None or all(draft.parents[node] in (ROOT, *kept) for node in kept):
                yield kept


def pace(
    kept: Sequence[Sequence[int]],
    survivals: Sequence[Sequence[float]],
    cost: CostCurve,
    load: StepLoad,
    step_ms: float,  # outside the pass
) -> float:
    """Return the expected tokens of decoding per millisecond that is spent on it."""
    tokens = len(survivals) + sum(survivals[s][node] for s, nodes in enumerate(kept) for node in nodes)
    prefill_ms = cost.ms(load.num_tokens, load.num_context) - cost.ms(len(survivals), load.num_context)
    rows = load.num_tokens + sum(map(len, kept))
    return tokens / (cost.ms(rows, load.num_context) - prefill_ms + step_ms)


def best_pace(
    drafts: Sequence[Draft | None],
    survivals: Sequence[Sequence[float]],
    cost: CostCurve,
    load: StepLoad,
    step_ms: float,
) -> float:
    """Return the highest pace of all choices within the budget."""
    choices = product(*(closed_sets(draft) for draft in drafts))
    fitting = (kept for kept in choices if sum(map(len, kept)) <= load.max_draft_tokens)
    return max(pace(kept, survivals, cost, load, step_ms) for kept in fitting)


def best_drafting_gain(expected: Sequence[ExpectedDraft], costs: MarginalCost, level_ms: float) -> float:
    """Return the highest gain that any depth for any sequences has; asking nobody is one of the choices."""
    deepest = max((len(expected_draft.survivals) for expected_draft in expected), default=0)
    asked = [subset for size in range(len(expected) + 1) for subset in combinations(expected, size)]
    return max(drafting_gain(subset, depth, costs, level_ms) for subset in asked for depth in range(deepest + 1))


def drafting_gain(asked: Sequence[ExpectedDraft], depth: int, costs: MarginalCost, level_ms: float) -> float:
    """Return the tokens gained if `depth` levels are drafted for `asked`, less those that the time is worth."""
    row, tokens = costs.token, -depth * level_ms * costs.ms
    for expected_draft in asked:
        levels = sum(alive > row for alive in expected_draft.survivals[:depth])  # none is drafted below
        free = [*expected_draft.free, *[0.0] * levels]
        for alive, taken in zip(expected_draft.survivals[:levels], free, strict=False):
            tokens += max(0.0, alive * (1.0 - taken) - row)
    return tokens
