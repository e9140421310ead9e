"""Where two answers part, without what redaction hides, and how similar they are."""

import pytest

from prolepsis.control.correctness.evidence import (
    LEAST_COMPARED,
    AnswerDiff,
    answer_diff,
    similarity,
    similarity_reply,
)
from prolepsis.core.ended import AuditContent
from prolepsis.core.events import Difference
from prolepsis.core.recording import NUM_BEYOND, Recording, Replayed
from tests.fakes import request
from tests.server.fakes import ByteTokenizer


def diff(recorded: str, replayed: str, content: AuditContent) -> AnswerDiff | None:
    first = next(at for at, (one, other) in enumerate(zip(recorded, replayed, strict=False)) if one != other)
    return answer_diff([*recorded.encode()], [*replayed.encode()], first, ByteTokenizer().decode, content)


def similar(*samples: tuple[str, str, int | None]) -> float:
    """Return the similarity of samples: each recorded, replayed, and where they part."""
    parts = {i: Difference(at, 0, 1, "near_tie") for i, (*_, at) in enumerate(samples) if at is not None}
    recorded = Recording(request("a", [1], n=len(samples)), tuple(tuple(one.encode()) for one, *_ in samples))
    return similarity(recorded, Replayed(parts, tuple(tuple(other.encode()) for _, other, _ in samples)))


def test_two_answers_are_shown_from_where_they_part() -> None:
    assert diff("The sky is blue.", "The sky is clear.", "text") == AnswerDiff("The sky is ", "blue.", "clear.")
    tokens = diff("The sky is blue.", "The sky is clear.", "tokens")
    assert tokens == AnswerDiff("The sky is ", "blue.", "clear.", tuple(b"blue."), tuple(b"clear."))
    long = diff("a" * 100 + "b" * 900, "a" * 100 + "c" * 900, "tokens")
    assert long == AnswerDiff("a" * 80, "b" * 400, "c" * 400, tuple(b"b" * NUM_BEYOND), tuple(b"c" * NUM_BEYOND))


def test_nothing_is_shown_where_only_digests_are_kept() -> None:
    assert diff("The sky is blue.", "The sky is clear.", "digests") is None


def test_a_secret_across_the_place_where_they_part_is_redacted_whole_and_its_tokens_are_not_kept() -> None:
    shown = diff("Write to ann.mueller@example.org", "Write to ann.miller@example.org today", "tokens")
    assert shown == AnswerDiff("Write to [EMAIL]", "", " today")


def test_a_token_that_rounding_decides_changes_little_and_another_answer_much() -> None:
    assert similar(("one two", "one two", None)) == 1.0
    assert similar(("one two three", "one twa three", 6)) == pytest.approx(12 / 13)
    assert similar(("one two", "one xyz", 4)) == pytest.approx(2 * 4 / 14)
    assert similar(("abc", "", 0)) == similar(("abc", "xyz", 0)) == 0.0
    assert similar(("same", "same", None), ("ab", "ax", 1)) == 0.5, "the sample that is least similar counts"


def test_a_recorded_answer_counts_as_far_as_the_replay_went() -> None:
    assert similar(("ab" + "c" * 1000, "ax" + "c" * (NUM_BEYOND - 1), 1)) == pytest.approx(1 - 1 / (NUM_BEYOND + 1))


@pytest.mark.parametrize(
    ("values", "is_low"),
    [
        ([0.1] * (LEAST_COMPARED - 1), False),
        ([0.1] * LEAST_COMPARED, True),
        ([0.1] * 4 + [1.0] * (LEAST_COMPARED - 4), False),
        ([], False),
    ],
)
def test_a_low_mean_is_an_alarm_and_a_few_different_answers_are_not(values: list[float], is_low: bool) -> None:
    reply = similarity_reply(values)
    assert (reply.num_compared, reply.is_low) == (len(values), is_low)
    assert reply.lowest == (0.1 if values else None)
