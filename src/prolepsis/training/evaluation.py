"""Whether a head that was trained drafts better than the one before it, on texts that neither learnt from."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.core.json_value import JsonValue


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """How a head drafts for one document."""

    kind: str  # traffic class, or kind of the base text
    num_positions: int
    overlap: float  # sum over positions of 1 - TV of the head's and the target's distributions
    agreement: float  # sum over positions of the chance that keyed draws of both agree at temperature 0.8
    hits: tuple[int, ...]  # by position of a greedy chain, as `Acceptance`
    trials: tuple[int, ...]
    greedy: bool  # its answer was decoded greedily


@dataclass(frozen=True, slots=True)
class Ratio:
    """A candidate's tokens a pass over the champion's, with bounds that hold one-sided at 95 %."""

    estimate: float
    lower: float
    upper: float
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult(JsonValue):
    passed: bool
    reason: str  # the first thing that was not shown; empty if it passed
    own: Ratio
    base: Ratio
    by_class: dict[str, Ratio]
    overlap: tuple[float, float]  # mean 1 - TV by position: of the champion, of the candidate
    first: tuple[float, float]  # first tokens right: of the champion, of the candidate
    megabytes: float
    ms: tuple[float, float]  # of a draft: of the champion, of the candidate


def judge(
    own: Sequence[tuple[DocumentScore, DocumentScore]],
    base: Sequence[tuple[DocumentScore, DocumentScore]],
    *,
    gain: float,
    loss: float,
    megabytes: float,
    ms: tuple[float, float],
    seed: int = 0,
) -> EvaluationResult:
    """Compare pairs of scores of the same documents, the champion's first, by a paired bootstrap."""
    raise NotImplementedError
