"""What a client shows before it is verified, and what becomes of it."""

from collections.abc import Sequence

from prolepsis.adapters.edge.provisional import ProvisionalAnswer, ProvisionalCounts
from prolepsis.core.client_draft import ClientDraft
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.remote.verify_events import Drafting, Emitted, Started

STARTED = Started(
    "r", "m", "f", 1, (1, 2, 3, 4, 5, 1, 2), ("a", "b", "c", "d", "e", "a", "b"), Drafting(True, None, 64)
)


class Fixed(Proposer):
    """Expects a fixed answer, in a tree whose first chain it is."""

    name = "fixed"

    def __init__(self, expected: Sequence[int]) -> None:
        self.expected = tuple(expected)
        self.forgotten = 0

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        (sequence,), (limit,) = sequences, limits
        rest = self.expected[len(sequence.tokens) - sequence.num_prompt_tokens :][: limit - 1]
        return [Draft((*rest, 99), (*range(-1, len(rest) - 1), -1), self.name) if rest else None]

    def forget(self, sequence: SequenceView) -> None:
        self.forgotten += 1


def emitted(position: int, *tokens: int) -> Emitted:
    texts = tuple(chr(ord("a") + token - 1) for token in tokens)
    return Emitted(position, tokens, texts, "".join(texts), 0)


def test_text_of_the_prompt_is_shown_before_any_token_came() -> None:
    answer = ProvisionalAnswer(STARTED, PromptLookupProposer(), num_ahead=4)
    assert (answer.text, answer.provisional_text) == ("", "cdea")
    assert answer.due_draft() == ClientDraft(0, (3, 4, 5, 1))
    assert answer.due_draft() is None, "the server has it"


def test_confirmed_tokens_become_text_and_the_rest_stands() -> None:
    answer = ProvisionalAnswer(STARTED, Fixed([3, 4, 5, 1, 2, 3]), num_ahead=7)
    assert not answer.take(emitted(0, 3, 4))
    assert (answer.text, answer.provisional_text) == ("cd", "eabc")
    assert answer.due_draft() == ClientDraft(2, (5, 1, 2, 3))
    assert answer.counts == ProvisionalCounts(num_confirmed=2)


def test_a_correction_withdraws_what_stood_behind_it() -> None:
    answer = ProvisionalAnswer(STARTED, Fixed([3, 4, 5]), num_ahead=4)
    assert answer.take(emitted(0, 3, 2))
    assert answer.text == "cb"
    assert answer.counts == ProvisionalCounts(num_confirmed=1, num_withdrawn=2, num_corrections=1)
    assert answer.provisional == (5,), "drafted anew"
    assert answer.due_draft() == ClientDraft(2, (5,))


def test_provisional_text_does_not_change_before_it_is_decided() -> None:
    proposer = Fixed([3, 4, 5, 1])
    answer = ProvisionalAnswer(STARTED, proposer, num_ahead=8)
    proposer.expected = (3, 2, 2, 2, 2, 2)
    answer.take(emitted(0, 3))
    assert [*answer.provisional] == [4, 5, 1]
    proposer.expected = (3, 4, 5, 1, 2, 3)
    answer.take(emitted(1, 4))
    assert [*answer.provisional] == [5, 1, 2, 3], "extended"


def test_tokens_that_were_never_seen_are_drafted_and_not_shown() -> None:
    answer = ProvisionalAnswer(STARTED, Fixed([3, 77, 4]), num_ahead=4)
    assert answer.provisional == (3, 77, 4)
    assert answer.provisional_text == "c"


def test_at_the_end_nothing_is_provisional() -> None:
    proposer = Fixed([3, 4])
    answer = ProvisionalAnswer(STARTED, proposer, num_ahead=4)
    answer.take(emitted(0, 3))
    answer.finish()
    assert (answer.text, answer.provisional_text, answer.counts.num_withdrawn) == ("c", "", 1)
    assert (answer.token_ids, proposer.forgotten) == ((3,), 1)
    assert answer.due_draft() is None


def test_a_draft_that_did_not_arrive_is_sent_again() -> None:
    answer = ProvisionalAnswer(STARTED, Fixed([3, 4, 5]), num_ahead=4)
    first = answer.due_draft()
    assert (answer.due_draft(), first) == (None, ClientDraft(0, (3, 4, 5)))
    answer.not_sent()
    assert answer.due_draft() == first


def test_without_room_ahead_nothing_is_drafted() -> None:
    answer = ProvisionalAnswer(STARTED, PromptLookupProposer(), num_ahead=0)
    answer.take(emitted(0, 3))
    assert (answer.provisional, answer.due_draft()) == ((), None)


def test_wrong_drafts_become_rare_until_one_is_right() -> None:
    proposer = Fixed([9] * 400)
    answer = ProvisionalAnswer(STARTED, proposer, num_ahead=4)
    drafted_at = []
    for position in range(100):
        answer.take(emitted(position, 3))
        if answer.provisional:
            drafted_at.append(position + 1)
    assert drafted_at == [1, 2, 3, 5, 9, 17, 33, 65, 97]
    proposer.expected = (*[9] * 100, *[3] * 300)
    for position in range(100, 140):
        answer.take(emitted(position, 3))
    assert len(answer.provisional) >= 2, "one right token was enough"
