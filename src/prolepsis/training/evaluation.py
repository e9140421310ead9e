"""Whether a head that was trained drafts better than the one before it, on texts that neither learnt from.

Legend: N documents, r anchors, V vocabulary, D draft vocabulary, d hidden size.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.core.json_value import JsonValue
from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.engine.models.heads.levels import HeadLevels
from prolepsis.training.acceptance import AcceptedCounts, DraftedPosition, measure
from prolepsis.training.batches import TargetEnds, lay_flat
from prolepsis.training.data import TrainingDocument
from prolepsis.training.head import drafted
from prolepsis.training.levels import drafted_ahead
from prolepsis.training.losses import missed
from prolepsis.training.unroll import unroll

LEAST_DOCUMENTS = 40
"""Of own and base text, and of a class that is judged by itself."""
BASE_DOCUMENTS = 120
"""Of base text that are worth holding out: of heads that lose nothing on it, a third would fail by 40 short ones."""
MOST_MEGABYTES = 24.0  # of a head's folder, as of those that are distributed
MOST_SLOWER = 1.1  # times the champion's milliseconds a draft
DEPTH = 3  # of the chain whose tokens a pass are compared
_LEVEL, _RESAMPLES, _ROWS = 0.05, 2_000, 64
_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """How a head drafts for one document."""

    kind: str  # traffic class, or kind of the base text
    num_positions: int
    overlap: float  # sum over positions of 1 - TV of the head's and the target's distributions
    agreement: float  # sum over positions of the chance that keyed draws of both agree at temperature 0.8
    hits: tuple[int, ...]  # by position of a greedy chain, as `Acceptance`; zeros for a sampled document
    trials: tuple[int, ...]
    greedy: bool  # its answer was decoded greedily


@dataclass(frozen=True, slots=True)
class TokensRatio:
    """A candidate's tokens a pass over the champion's, with bounds that hold one-sided at 95 %."""

    estimate: float
    lower: float
    upper: float
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult(JsonValue):
    passed: bool
    reason: str  # the first thing that was not shown; empty if it passed
    own: TokensRatio
    base: TokensRatio
    by_class: dict[str, TokensRatio]
    overlap: tuple[float, float]  # mean 1 - TV by position: of the champion, of the candidate
    first: tuple[float, float]  # first tokens right: of the champion, of the candidate
    megabytes: float
    ms: tuple[float, float]  # of a draft: of the champion, of the candidate


ScorePair = tuple[DocumentScore, DocumentScore]
"""Scores of one document: the champion's, the candidate's."""


@torch.no_grad()
def scores(
    head: HeadLayer,
    levels: HeadLevels | None,
    documents: Iterable[TrainingDocument],
    ends: TargetEnds,
    whole: Tensor,  # [V, d] float32: the target's output head
) -> list[DocumentScore]:
    """Score a head on `documents`; `ends` are cut to its draft vocabulary."""

    def draft(document: TrainingDocument) -> Iterable[DraftedPosition]:
        return drafted(head, document, ends) if levels is None else drafted_ahead(head, levels, document, ends)

    result = []
    for document in documents:
        batch = lay_flat([document], ends, len(head.config.aux_layers))
        [step] = unroll(head, batch.flat, 1)
        parts = zip(torch.split(batch.states, _ROWS), torch.split(step.out, _ROWS), strict=True)
        overlap, agreement = torch.stack([_compared(head, whole, *part) for part in parts]).sum(0).tolist()
        counts = measure([document], draft).get("all", AcceptedCounts())
        result.append(
            DocumentScore(
                kind=document.kind,
                num_positions=len(step.out),
                overlap=overlap,
                agreement=agreement,
                hits=tuple(counts.hits),
                trials=tuple(counts.trials),
                greedy=document.greedy,
            )
        )
    return result


def _compared(head: HeadLayer, whole: Tensor, states: Tensor, out: Tensor) -> Tensor:
    """Return the sums over rows of `overlap` and of keyed agreement, [2]; `states` and `out` are [r, d]."""
    p = torch.softmax(F.linear(states, whole), -1)
    logits = torch.full_like(p, -math.inf)  # the head drafts no token outside its vocabulary
    logits[:, head.weights.target_ids] = F.linear(out, head.weights.lm_head)
    agreement = 1.0 - missed(logits, p, _TEMPERATURE)
    return torch.stack([overlap_of(p, torch.softmax(logits, -1)).sum(), agreement.sum()])


def overlap_of(p: Tensor, q: Tensor) -> Tensor:  # [r]
    """Return the chance that the best rejection sampling keeps a draft: 1 - TV of distributions [r, V].

    Source: Leviathan et al., arXiv 2211.17192, section 3.
    """
    return torch.minimum(p, q).sum(-1)


def judge(
    own: Sequence[ScorePair],
    base: Sequence[ScorePair],
    *,
    gain: float,
    loss: float,
    megabytes: float,
    ms: tuple[float, float],
    seed: int = 0,
) -> EvaluationResult:
    """Compare scores of the same documents by a paired bootstrap over documents.

    A candidate passes if it surely drafts better by `gain` on the rule's own text, not surely worse on any class of it,
    surely not worse by `loss` on the base text, and is neither too large nor too slow. Each is shown at 95 %: a
    candidate that gains no more than `gain` passes with a probability of 5 % at most.
    """
    classes: dict[str, list[ScorePair]] = defaultdict(list)
    for pair in own:
        classes[pair[0].kind].append(pair)
    ratios = {name: ratio(pairs, seed) for name, pairs in classes.items() if len(pairs) >= LEAST_DOCUMENTS}
    texts = {"own text": (ratio(own, seed), gain), "base text": (ratio(base, seed), -loss)}
    faults = [fault for name, (found, least) in texts.items() if (fault := _fault(name, found, least))]
    faults += [
        f"class {name}: {found.upper - 1.0:+.1%} at most, so surely worse"
        for name, found in ratios.items()
        if found.upper < 1.0
    ]
    if megabytes > MOST_MEGABYTES:
        faults.append(f"size: {megabytes:.1f} MB; allowed: {MOST_MEGABYTES:g}")
    if ms[1] > MOST_SLOWER * ms[0]:
        faults.append(f"a draft takes {ms[1]:.2f} ms; allowed: {MOST_SLOWER * ms[0]:.2f}")
    champion, candidate = [pair[0] for pair in own], [pair[1] for pair in own]
    return EvaluationResult(
        passed=not faults,
        reason=faults[0] if faults else "",
        own=texts["own text"][0],
        base=texts["base text"][0],
        by_class=ratios,
        overlap=(_overlap(champion), _overlap(candidate)),
        first=(_first(champion), _first(candidate)),
        megabytes=megabytes,
        ms=ms,
    )


def ratio(pairs: Sequence[ScorePair], seed: int = 0) -> TokensRatio:
    """Return the ratio of tokens a pass, bounded by bootstrap percentiles that are widened as Student's t is.

    Documents of a single token, after which nothing is known, do not count.
    Source: the expanded percentile interval, Hesterberg, arXiv 1411.5279, section 3.3.
    """
    pairs = [pair for pair in pairs if any(_figures(pair[0]))]
    n = len(pairs)
    if n < 2:
        return TokensRatio(1.0, 1.0 / (DEPTH + 1), DEPTH + 1.0, n)
    figures = torch.tensor([[_figures(score) for score in pair] for pair in pairs], dtype=torch.float64)
    drawn = torch.randint(n, (_RESAMPLES, n), generator=torch.Generator().manual_seed(seed))
    weights = torch.zeros(_RESAMPLES, n, dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())
    before, after = _tokens_a_pass(torch.einsum("bn, nhf -> hbf", weights, figures))
    z = NormalDist().inv_cdf(1.0 - _LEVEL)
    t = z + (z**3 + z) / (4 * (n - 1))
    tail = NormalDist().cdf(-t * math.sqrt(n / (n - 1)))
    lower, upper = torch.quantile(after / before, torch.tensor([tail, 1.0 - tail], dtype=torch.float64)).tolist()
    champion, candidate = _tokens_a_pass(figures.sum(0)).tolist()
    return TokensRatio(candidate / champion, lower, upper, n)


def _figures(score: DocumentScore) -> tuple[float, ...]:
    """Return hits and trials by position of a greedy document, and overlap and positions of a sampled one."""
    if score.greedy:
        return (*score.hits[:DEPTH], *score.trials[:DEPTH], 0.0, 0.0)
    return (*(0.0,) * 2 * DEPTH, score.overlap, score.num_positions)


def _tokens_a_pass(figures: Tensor) -> Tensor:  # [.., 2 * DEPTH + 2] to [..]
    """Return the expected tokens of a step with a chain of `DEPTH`, over summed `_figures`.

    A sampled draft is accepted at most as often as the distributions overlap, at every position alike.
    """
    hits, trials, overlaps, positions = torch.split_with_sizes(figures, [DEPTH, DEPTH, 1, 1], -1)
    greedy = 1.0 + (hits / trials.clamp_min(1.0)).cumprod(-1).sum(-1)
    sampled = 1.0 + (overlaps / positions.clamp_min(1.0)).expand(hits.shape).cumprod(-1).sum(-1)
    in_greedy, in_sampled = trials[..., 0], positions[..., 0]
    return (greedy * in_greedy + sampled * in_sampled) / (in_greedy + in_sampled)


def _fault(text: str, found: TokensRatio, least: float) -> str:
    """Return what was not shown on a text, given the least relative gain; empty: it was."""
    if found.num_documents < LEAST_DOCUMENTS:
        return f"{text}: {found.num_documents} documents; at least {LEAST_DOCUMENTS} are needed"
    if found.lower <= 1.0 + least:
        return f"{text}: {found.lower - 1.0:+.1%} at least; allowed: more than {least:+.1%}"
    return ""


def _overlap(of: Sequence[DocumentScore]) -> float:
    return sum(score.overlap for score in of) / max(1, sum(score.num_positions for score in of))


def _first(of: Sequence[DocumentScore]) -> float:
    return sum(score.hits[0] for score in of) / max(1, sum(score.trials[0] for score in of))
