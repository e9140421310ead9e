"""Whether a head that was trained drafts better than the one before it, on texts that neither learnt from.

Legend: N documents, r anchors, V vocabulary, D draft vocabulary, d hidden size.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, median

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.core.config import CANDIDATE_HEAD, EngineConfig
from prolepsis.core.events import Aborted, Failed, Finished, Tokens
from prolepsis.core.messages import Submit
from prolepsis.core.requests import UNCOUNTED_CLASS, GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.engine.models.heads.levels import HeadLevels, load_levels
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.targets.lean_weights import output_rows
from prolepsis.engine.step import Engine
from prolepsis.training.acceptance import measure
from prolepsis.training.batches import TargetEnds, lay_flat
from prolepsis.training.data import BASE_KIND, DocumentRef, TrainingDocument, read, responses
from prolepsis.training.head import drafted, read_head
from prolepsis.training.levels import drafted_ahead
from prolepsis.training.synthesis import plain
from prolepsis.training.target import Target, count_tokens, covered
from prolepsis.training.unroll import unroll

LEAST_DOCUMENTS = 40  # of own and base text, and of a class that is judged by itself
BASE_DOCUMENTS = 120
"""Of base text that are worth holding out: of heads that lose nothing on it, a third would fail by 40 short ones."""
MOST_MEGABYTES = 24.0  # of a head's folder, as of those that are distributed
MOST_SLOWER = 1.1  # times the champion's seconds a pass
DEPTH = 3  # of the chain whose tokens a pass are compared
_LEVEL, _RESAMPLES, _ROWS = 0.05, 2_000, 64
_CHECKED, _ANSWER_TOKENS = 4, 32


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """How a head drafts for one document."""

    kind: str  # traffic class, or `BASE_KIND` and a kind
    hits: tuple[int, ...]  # by position of a greedy chain, as `AcceptedCounts`; zeros for a sampled document
    trials: tuple[int, ...]
    overlap: float = 0.0  # of a sampled document: sum over positions of 1 - TV of the head's and the target's
    num_positions: int = 0
    seconds: float = 1.0  # of a pass over all positions


@dataclass(frozen=True, slots=True)
class TokensRatio:
    """A candidate's tokens a pass over the champion's, with bounds that hold one-sided at 95 %."""

    estimate: float
    lower: float
    upper: float
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    passed: bool
    reason: str  # what it gains; if it did not pass, the first thing that was not shown
    own: TokensRatio
    base: TokensRatio
    by_class: Mapping[str, TokensRatio]
    first: tuple[float, float]  # share of first tokens that are accepted: of the champion, of the candidate
    covered: tuple[float, float] = (0.0, 0.0)
    """Share of the tokens of own answers that are in the draft vocabulary, likewise."""


ScorePair = tuple[DocumentScore, DocumentScore]  # of one document: the champion's, the candidate's


def evaluate(
    config: EngineConfig,
    target: Target,
    heads: tuple[Path, Path],
    refs: Sequence[DocumentRef],
    terms: LearningTerms,
    *,
    progress: Callable[[int], None],
) -> EvaluationResult:
    """Compare the second of `heads`, which was trained from the first, on documents and in answers to some prompts.

    `progress` receives the number of documents that were scored.
    """
    layers = [read_head(folder, target) for folder in heads]
    stored = [load_levels(folder, target.shape.hidden) for folder in heads]
    levels = [
        HeadLevels(own.to(torch.float32), layer.weights.norm, target.shape.eps) if own else None
        for own, layer in zip(stored, layers, strict=True)
    ]
    ends = target.ends_for(layers[0].weights.target_ids)
    whole = output_rows(target.ends, torch.arange(target.shape.vocab)).float()
    own, base = list[ScorePair](), list[ScorePair]()
    for number, ref in enumerate(refs, 1):
        for document in read([ref]):
            champion, candidate = (score(*head, document, ends, whole) for head in zip(layers, levels, strict=True))
            (base if document.kind.startswith(BASE_KIND) else own).append((champion, candidate))
        progress(number)
    megabytes = sum(file.stat().st_size for file in heads[1].rglob("*") if file.is_file()) / 1e6
    result = judge(own, base, gain=terms.gain, loss=terms.loss, megabytes=megabytes)
    counts = count_tokens(responses(refs, without=BASE_KIND), target.shape.vocab)
    before, after = (covered(counts, layer.weights.target_ids) for layer in layers)
    words = "" if before == after else f"; its vocabulary has {after:.1%} of their tokens, {before:.1%} before"
    result = replace(result, covered=(before, after), reason=result.reason + words)
    prompts = [document.tokens[: document.response_start].tolist() for document in read(refs[:_CHECKED])]
    if result.passed and not _answers_alike(config, heads[1], prompts):
        return replace(result, passed=False, reason="answers with its drafts differ from those without")
    return result


@torch.no_grad()
def score(
    head: HeadLayer,
    levels: HeadLevels | None,
    document: TrainingDocument,
    ends: TargetEnds,  # their output head is not looked at
    whole: Tensor,  # [V, d] float32: the target's output head
) -> DocumentScore:
    """Score a head on a document."""
    batch = lay_flat([document], ends, len(head.config.aux_layers))
    started = time.perf_counter()
    [step] = unroll(head, batch.flat, 1)
    seconds = time.perf_counter() - started
    if document.greedy:
        drafts = drafted(head, document, ends) if levels is None else drafted_ahead(head, levels, document, ends)
        counts = measure([document], lambda _: drafts)["all"]
        return DocumentScore(document.kind, tuple(counts.hits), tuple(counts.trials), seconds=seconds)
    overlap, nothing = 0.0, (0,) * DEPTH
    for states, out in zip(torch.split(batch.states, _ROWS), torch.split(step.out, _ROWS), strict=True):
        q = torch.zeros(len(out), len(whole))  # the head drafts no token outside its vocabulary
        q[:, head.weights.target_ids] = torch.softmax(F.linear(out, head.weights.lm_head), -1)
        overlap += float(overlap_of(torch.softmax(F.linear(states, whole), -1), q).sum())
    return DocumentScore(document.kind, nothing, nothing, overlap, len(step.out), seconds)


def overlap_of(p: Tensor, q: Tensor) -> Tensor:  # [r]
    """Return the chance that the best rejection sampling keeps a draft: 1 - TV of distributions [r, V].

    Source: Leviathan et al., arXiv 2211.17192, section 3.
    """
    return torch.minimum(p, q).sum(-1)


def judge(
    own: Sequence[ScorePair], base: Sequence[ScorePair], *, gain: float, loss: float, megabytes: float
) -> EvaluationResult:
    """Compare scores of the same documents by a paired bootstrap over documents.

    A candidate passes if it surely drafts better by `gain` on the rule's own text, not surely worse on any class of it,
    surely not worse by `loss` on the base text, and is neither too large nor too slow. Each is shown at 95 %: a
    candidate that gains no more than `gain` passes with a probability of 5 % at most.
    """
    of_own, of_base, faults = ratio(own), ratio(base), list[str]()
    for text, found, least in (("own text", of_own, gain), ("base text", of_base, -loss)):
        if found.num_documents < LEAST_DOCUMENTS:
            faults.append(f"{text}: {found.num_documents} documents; at least {LEAST_DOCUMENTS} are needed")
        elif found.lower <= 1.0 + least:
            faults.append(f"{text}: {found.lower - 1.0:+.1%} at least; allowed: more than {least:+.1%}")
    numbers = Counter(champion.kind for champion, _ in own)
    kinds = [kind for kind, number in numbers.items() if number >= LEAST_DOCUMENTS]
    by_class = {kind: ratio([pair for pair in own if pair[0].kind == kind]) for kind in kinds}
    for kind, found in by_class.items():
        if found.upper < 1.0:
            faults.append(f"class {kind}: {found.upper - 1.0:+.1%} at most, so surely worse")
    if megabytes > MOST_MEGABYTES:
        faults.append(f"size: {megabytes:.1f} MB; allowed: {MOST_MEGABYTES:g}")
    if own and (slower := median(after.seconds / before.seconds for before, after in own)) > MOST_SLOWER:
        faults.append(f"a pass takes {slower:.2f} times as long; allowed: {MOST_SLOWER:g}")
    shown = f"{of_own.estimate - 1.0:+.1%} tokens a pass on later examples, at least {of_own.lower - 1.0:+.1%}"
    return EvaluationResult(
        passed=not faults,
        reason=[*faults, shown][0],
        own=of_own,
        base=of_base,
        by_class=by_class,
        first=(_first(before for before, _ in own), _first(after for _, after in own)),
    )


def ratio(pairs: Sequence[ScorePair]) -> TokensRatio:
    """Return the ratio of tokens a pass, bounded by bootstrap percentiles that are widened as Student's t is.

    Documents of a single token, after which nothing is known, do not count.
    Source: the expanded percentile interval, Hesterberg, arXiv 1411.5279, section 3.3.
    """
    pairs = [pair for pair in pairs if any(_figures(pair[0]))]
    n = len(pairs)
    if n < 2:
        return TokensRatio(1.0, 1.0 / (DEPTH + 1), DEPTH + 1.0, n)
    figures = torch.tensor([[_figures(score) for score in pair] for pair in pairs], dtype=torch.float64)
    drawn = torch.randint(n, (_RESAMPLES, n), generator=torch.Generator().manual_seed(0))
    weights = torch.zeros(_RESAMPLES, n, dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())
    before, after = _tokens_a_pass(torch.einsum("bn, nhf -> hbf", weights, figures))
    z = NormalDist().inv_cdf(1.0 - _LEVEL)
    t = z + (z**3 + z) / (4 * (n - 1))
    tail = NormalDist().cdf(-t * math.sqrt(n / (n - 1)))
    lower, upper = torch.quantile(after / before, torch.tensor([tail, 1.0 - tail], dtype=torch.float64)).tolist()
    champion, candidate = _tokens_a_pass(figures.sum(0)).tolist()
    return TokensRatio(candidate / champion, lower, upper, n)


def _figures(of: DocumentScore) -> tuple[float, ...]:
    return (*of.hits[:DEPTH], *of.trials[:DEPTH], of.overlap, of.num_positions)


def _tokens_a_pass(figures: Tensor) -> Tensor:  # [.., 2 * DEPTH + 2] to [..]
    """Return the expected tokens of a step with a chain of `DEPTH`, over summed `_figures`.

    A sampled draft is accepted at most as often as the distributions overlap, at every position alike.
    """
    hits, trials, overlaps, positions = torch.split_with_sizes(figures, [DEPTH, DEPTH, 1, 1], -1)
    greedy = 1.0 + (hits / trials.clamp_min(1.0)).cumprod(-1).sum(-1)
    sampled = 1.0 + (overlaps / positions.clamp_min(1.0)).expand(hits.shape).cumprod(-1).sum(-1)
    in_greedy, in_sampled = trials[..., 0], positions[..., 0]
    return (greedy * in_greedy + sampled * in_sampled) / (in_greedy + in_sampled)


def _first(of: Iterable[DocumentScore]) -> float:
    rights = [(score.hits[0] + score.overlap, score.trials[0] + score.num_positions) for score in of]
    return sum(right for right, _ in rights) / max(1, sum(number for _, number in rights))


def _answers_alike(config: EngineConfig, head: Path, prompts: Sequence[list[int]]) -> bool:
    """Return whether greedy answers to `prompts` are the same with a head's drafts and without."""
    own = {"num_speculative_tokens": DEPTH, "max_requests": len(prompts), "proposers": (), "draft_head": "none"}
    config = plain(config, max(map(len, prompts)) + _ANSWER_TOKENS).model_copy(update=own)
    engine = assemble(config, load_model(config))
    plainly = _answers(engine, prompts)
    swap, _ = engine.load_head(str(head), CANDIDATE_HEAD)
    engine.send(swap)
    return _answers(engine, prompts) == plainly


def _answers(engine: Engine, prompts: Sequence[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=_ANSWER_TOKENS)
    always = SpeculationChoice("always", proposers=(CANDIDATE_HEAD,))
    for i, prompt in enumerate(prompts):
        # of no tenant: a head drafts for everybody in this class, in which no client is
        request = GenerateRequest(str(i), tuple(prompt), params, traffic_class=UNCOUNTED_CLASS, speculation=always)
        engine.send(Submit(request, time.monotonic()))
    answers, num_ended = [list[int]() for _ in prompts], 0
    while num_ended < len(prompts):
        for event in engine.step():
            if isinstance(event, Tokens):
                answers[int(event.request_id)] += event.token_ids
            num_ended += isinstance(event, Finished | Aborted | Failed)
    return answers
