"""What a replay that differs shows: where the two answers part, and how similar they are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import takewhile
from operator import eq

from prolepsis.control.audit.requests import Decode
from prolepsis.control.redaction.values import redacted_text
from prolepsis.core.ended import AuditContent
from prolepsis.core.recording import NUM_BEYOND, Recording, Replayed
from prolepsis.core.stored_text import storable

MOST_COMPARED = 500
LEAST_COMPARED = 20
LOW_SIMILARITY = 0.8
"""Rounding makes few answers part: where the mean is lower, something besides a near-tie goes on behind it."""
_COMMON, _CONTINUED = 80, 400  # most characters that are shown


@dataclass(frozen=True, slots=True)
class AnswerDiff:
    """Two answers of one request from where their redacted texts part."""

    common: str  # the end of what they share
    recorded: str  # how the answer that the client got goes on
    replayed: str  # how plain decoding goes on
    recorded_ids: tuple[int, ...] | None = None
    """Its tokens from the first that differs on; null: tokens are not kept, or redaction found something."""
    replayed_ids: tuple[int, ...] | None = None


def answer_diff(
    recorded: Sequence[int], replayed: Sequence[int], position: int, decode: Decode, content: AuditContent
) -> AnswerDiff | None:
    """Return how two answers part at output token `position`, as far as `content` of requests is kept.

    Whole texts are redacted and then cut. Takes milliseconds per thousand characters: not for an event loop.
    """
    if content == "digests":
        return None
    texts = [decode(tokens) for tokens in (recorded, replayed)]
    shown = [redacted_text(text) for text in texts]
    end = sum(takewhile(bool, map(eq, *shown)))
    before, after = (text[end : end + _CONTINUED] for text in shown)
    diff = AnswerDiff(shown[0][max(0, end - _COMMON) : end], before, after)
    if content == "text" or shown != [*map(storable, texts)]:
        return diff
    beyond = slice(position, position + NUM_BEYOND)
    return replace(diff, recorded_ids=tuple(recorded[beyond]), replayed_ids=tuple(replayed[beyond]))


def similarity(recorded: Recording, replayed: Replayed) -> float:
    """Return 2 * (tokens in common, in order) / (tokens of both), from 0 to 1, of the sample where it is lowest.

    Of a recorded answer as many tokens count behind the difference as the replay decodes there.
    """
    lowest = 1.0
    for sample, first in replayed.differences.items():
        at = first.position
        ends = recorded.tokens[sample][at : at + NUM_BEYOND], replayed.tokens[sample][at:]
        blocks = SequenceMatcher(None, *ends, autojunk=False).get_matching_blocks()
        num_common = at + sum(block.size for block in blocks)
        lowest = min(lowest, 2.0 * num_common / (2.0 * at + sum(map(len, ends))))
    return lowest


@dataclass(frozen=True, slots=True)
class SimilarityReply:
    """Similarity of replays to their answers, 0 to 1, over the last `MOST_COMPARED` that could be compared."""

    num_compared: int
    mean: float | None
    lowest: float | None
    is_low: bool  # the mean of `LEAST_COMPARED` or more is below `LOW_SIMILARITY`: more than rounding explains


def similarity_reply(last: Sequence[float]) -> SimilarityReply:
    mean = sum(last) / len(last) if last else None
    is_low = mean is not None and len(last) >= LEAST_COMPARED and mean < LOW_SIMILARITY
    return SimilarityReply(len(last), mean, min(last, default=None), is_low)
