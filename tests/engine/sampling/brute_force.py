"""The distribution of one row written out in plain Python floats: the independent check of every sampling parameter."""

import math
from collections.abc import Sequence

from prolepsis.core.requests import SamplingParams


def edited(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    ends: frozenset[int],
    *,
    allowed: frozenset[int] | None = None,
) -> list[float]:
    """Return the logits after bias, grammar, ban, penalties; `output` is everything generated before this position."""
    values = list(logits)
    is_complete = allowed is not None and allowed <= ends
    banned = ends if len(output) < params.min_tokens and not is_complete else frozenset()
    possible = set(params.allowed_token_ids or range(len(values))) & set(allowed or range(len(values))) - banned
    for token, bias in params.logit_bias:
        values[token] += bias
    for token in range(len(values)):
        if token not in possible:
            values[token] = logits[token] if not possible and token in ends else -math.inf
        if token in prompt or token in output:
            penalty = params.repetition_penalty
            values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
        values[token] -= params.presence_penalty * (token in output)
        values[token] -= params.frequency_penalty * list(output).count(token)
    return values


def distribution(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    ends: frozenset[int],
    *,
    allowed: frozenset[int] | None = None,
) -> list[float]:
    """Return the probability of each token, in float64 throughout."""
    values = edited(logits, params, prompt, output, ends, allowed=allowed)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if params.temperature == 0:
        return [float(token == order[0]) for token in range(len(values))]
    largest = values[order[0]]
    weights = [math.exp((value - largest) / params.temperature) for value in values]
    if params.top_k:
        order = order[: params.top_k]
    order = _nucleus(order, weights, params.top_p)
    order = [token for token in order if weights[token] >= params.min_p]
    total = math.fsum(weights[token] for token in order)
    return [weights[token] / total if token in order else 0.0 for token in range(len(values))]


def _nucleus(order: list[int], weights: list[float], top_p: float) -> list[int]:
    if top_p >= 1.0:
        return order
    needed = top_p * math.fsum(weights[token] for token in order)
    for size in range(1, len(order) + 1):
        if math.fsum(weights[token] for token in order[:size]) >= needed:
            return order[:size]
    return order
