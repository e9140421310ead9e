"""What a request's own processing of its logits and its text takes, next to the target's pass."""

from prolepsis.core.requests import GenerateRequest

_EDIT, _BIAS, _GRAMMAR, _LOGPROB, _LIKELIEST, _SHOWN = 0.03, 2e-6, 0.14, 0.1, 0.14, 0.005
"""In tokens, of 1 ms as in a full batch of the default model on one core: an edited row, each bias, a grammar's mask, a
log-probability, the search of the likeliest, each one's text."""


def processing_per_token(request: GenerateRequest) -> float:
    """Return what the request's own processing adds to each of its output tokens, in plain tokens."""
    params = request.params
    added = 0.0
    if params.logit_bias or params.has_penalties:
        added += _EDIT + _BIAS * len(params.logit_bias)
    if request.grammar is not None:
        added += _GRAMMAR
    if params.logprobs is not None:
        added += _LOGPROB + (_LIKELIEST if params.logprobs else 0.0) + _SHOWN * params.logprobs
    return added
