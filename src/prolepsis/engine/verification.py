"""Verifies the rows of a step by `engine.drafting.verify`, and adds the log-probabilities of the emitted tokens."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import structlog
from torch import Tensor

from prolepsis.core.errors import NotFinite
from prolepsis.core.events import Difference, TokenLogprobs
from prolepsis.engine.drafting.divergence import classify
from prolepsis.engine.drafting.verify import SequenceStep, VerifyResult, verify_batch
from prolepsis.engine.request import SequenceState
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow

log = structlog.get_logger(__name__)


class Verification:
    def __init__(self, sampler: Sampler, *, max_model_len: int) -> None:
        self._sampler = sampler
        self._max_model_len = max_model_len

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        """Return the result of each row; None for rows that neither sample nor score anything."""
        steps: list[SequenceStep] = []
        scores: list[tuple[TokenLogprobs, ...]] = []
        logits = computed.logits
        first_row = 0
        for row in rows:
            top, tokens = row.sequence.params.prompt_logprobs or 0, row.sequence.tokens
            places = enumerate(row.scored, first_row)
            scores.append(tuple(self._sampler.logprobs(logits[place], tokens[i + 1], top) for place, i in places))
            first_row += row.num_kept
            if row.samples_next:
                sequence = row.sequence
                steps.append(
                    SequenceStep(
                        row.draft,
                        sequence.params,
                        sequence.noise_key,
                        sequence.num_output_tokens,
                        first_row - 1,
                        sequence.history,
                        self._max_model_len - len(sequence.tokens),
                        sequence.matcher,
                        sequence.bias,
                    )
                )
                first_row += len(row.draft.tokens) if row.draft else 0
        assert first_row == logits.shape[0], f"{first_row} rows of logits expected, {logits.shape[0]} given"
        results = verify_batch(steps, logits, self._sampler, computed.argmax)
        pairs = zip(results, num_usable(results, logits, self._sampler), strict=True)
        sampled = [self._sampled(row.sequence, *next(pairs), logits) if row.samples_next else None for row in rows]
        return [_with_scores(*pair) if pair[1] else pair[0] for pair in zip(sampled, scores, strict=True)]

    def _sampled(self, sequence: SequenceState, result: VerifyResult, usable: int, logits: Tensor) -> SampledTokens:
        if result.fault is not None and not result.tokens:
            return SampledTokens((), fault=result.fault)
        if not usable:
            return SampledTokens((), fault=NotFinite("the model computed no number for the next token of this answer"))
        if usable < len(result.tokens):  # as plain decoding: those before are emitted, and the next step fails
            result = replace(result, tokens=result.tokens[:usable], path=result.path[: usable - 1], fault=None)
        if sequence.replays is not None:
            return self._compared(sequence, sequence.replays, result, logits)
        top, named = sequence.params.logprobs, sequence.params.logprob_token_ids
        logprobs: tuple[TokenLogprobs, ...] | None = None
        if top is not None:
            pairs = zip(result.rows, result.tokens, strict=True)
            logprobs = tuple(self._sampler.logprobs(logits[row], token, top, named) for row, token in pairs)
        return SampledTokens(result.tokens, result.path, logprobs, result.fault)

    def _compared(
        self, sequence: SequenceState, emitted: Sequence[int], result: VerifyResult, logits: Tensor
    ) -> SampledTokens:
        """Return the result of a replay, with the first token that was not emitted before as its difference."""
        assert not result.path, "a replay is decoded plainly"
        [token], position = result.tokens, sequence.num_output_tokens
        before = emitted[position] if position < len(emitted) else None
        if token == before or sequence.differs_at is not None:
            return SampledTokens(result.tokens)
        if before is None:
            return SampledTokens(result.tokens, difference=Difference(position, None, token, "structural"))
        matcher = sequence.matcher
        try:
            allowed = matcher.mask() if matcher is not None else None
            params, history = sequence.params, sequence.history
            row = SamplingRow(params, sequence.noise_key, position, history, (), allowed, sequence.bias)
            read = classify(logits[result.first_row], row, (token, before), self._sampler)
        except Exception:  # contained: a comparison must not take the step with it
            log.exception("difference_not_classified", position=position)
            return SampledTokens(result.tokens, difference=Difference(position, before, token, "structural"))
        margin = read.margin if math.isfinite(read.margin) else None
        difference = Difference(position, before, token, read.kind, margin, read.tolerance)
        return SampledTokens(result.tokens, difference=difference)


def _with_scores(sampled: SampledTokens | None, scores: tuple[TokenLogprobs, ...]) -> SampledTokens:
    if any(math.isnan(score.logprob) for score in scores):
        return SampledTokens((), fault=NotFinite("the model computed no number for a token of this prompt"))
    return SampledTokens((), scores=scores) if sampled is None else replace(sampled, scores=scores)


def num_usable(results: Sequence[VerifyResult], logits: Tensor, sampler: Sampler) -> list[int]:
    """Return of each result how many tokens come before the first one whose row of logits cannot be sampled from.

    Neither NaN nor plus infinity may be in the row, nor minus infinity be the logit of the token: a model may rule
    tokens out, but not all.
    """
    places = [place for result in results for place in zip(result.rows, result.tokens, strict=False)]
    below = sampler.below_infinity(logits, [row for row, _ in places])
    usable = iter([ok and value > -math.inf for ok, value in zip(below, _values(logits, places), strict=True)])
    return [[*islice(usable, len(result.tokens)), False].index(False) for result in results]


def _values(logits: Tensor, places: Sequence[tuple[int, int]]) -> list[float]:
    """Return the logits at (row, token); on the CPU in a tenth of the time that indexing a tensor takes."""
    if logits.is_cpu:
        read = logits.numpy().item
        return [read(row, token) for row, token in places]
    rows, tokens = [row for row, _ in places], [token for _, token in places]
    values: list[float] = logits[rows, tokens].tolist() if places else []  # a step that reads prompts picks none
    return values
