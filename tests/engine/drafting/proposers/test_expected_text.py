"""Texts that answers are expected to follow: predictions, and drafts of clients."""

import random

from prolepsis.core.client_draft import ClientDraft
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.proposers.expected_text import MOST_AT_ONCE, ClientProposer, PredictionProposer
from tests.engine.drafting.sequences import FakeSequence, accepted

TEXT = tuple(random.Random(0).sample(range(1000), 200))


def _draft(proposer: PredictionProposer, sequence: FakeSequence, limit: int = 4) -> tuple[int, ...]:
    draft = proposer.propose([sequence], [limit])[0]
    return draft.principal if draft else ()


def test_right_from_the_start_of_the_output() -> None:
    sequence = FakeSequence([1, 2], num_prompt_tokens=2, prediction=TEXT)
    draft = PredictionProposer().propose([sequence], [4])[0]
    assert draft is not None
    assert draft.tokens == TEXT[:4]
    assert min(draft.survival) > 0.4, "a whole draft is worth verifying before anything is known of it"


def test_no_draft_without_a_prediction_or_beyond_its_end() -> None:
    assert PredictionProposer().propose([FakeSequence([1, 2])], [4]) == [None]
    ended = FakeSequence(list(TEXT), prediction=TEXT)
    assert PredictionProposer().propose([ended], [4]) == [None]


def test_follows_what_is_committed_in_steps() -> None:
    proposer, sequence = PredictionProposer(), FakeSequence([], prediction=TEXT)
    for num_tokens in (1, 4, 2, 7):
        sequence.tokens += TEXT[len(sequence.tokens) : len(sequence.tokens) + num_tokens]
        assert _draft(proposer, sequence) == TEXT[len(sequence.tokens) : len(sequence.tokens) + 4]


def test_one_tree_goes_on_behind_a_replaced_token_and_at_an_inserted_one() -> None:
    proposer, sequence = PredictionProposer(), FakeSequence([*TEXT[:10], 5000], prediction=TEXT)
    (draft,) = proposer.propose([sequence], [16])
    assert draft is not None
    assert draft.principal[:4] == TEXT[11:15], "likelier replaced"
    assert len(accepted(draft, [*TEXT[10:13]])) == 3


def test_new_text_however_long_does_not_lead_it_away() -> None:
    """The text occurs twice, so no search alone tells where the new text was inserted."""
    text = [*TEXT[:40], *TEXT[20:40], *TEXT[40:]]
    proposer, sequence = PredictionProposer(), FakeSequence([*text[:25]], prediction=tuple(text))
    for new in range(50):
        sequence.tokens.append(7000 + new)
        (draft,) = proposer.propose([sequence], [16])
        assert draft is not None
        assert len(accepted(draft, text[25:28])) >= 2, new
    sequence.tokens += text[25:29]
    assert _draft(proposer, sequence) == tuple(text[29:33])


def test_finds_its_place_after_an_insertion_and_after_a_deletion() -> None:
    proposer, sequence = PredictionProposer(), FakeSequence([*TEXT[:10], 5000, 5001, 5002, 5003], prediction=TEXT)
    _draft(proposer, sequence)
    sequence.tokens += TEXT[10:12]
    assert _draft(proposer, sequence) == TEXT[12:16]
    sequence.tokens += TEXT[60:62]  # the output leaves 48 tokens out
    assert _draft(proposer, sequence)[:3] == TEXT[62:65]


def test_repeated_text_resumes_at_the_occurrence_ahead() -> None:
    text = (1, 2, 3, 10, 1, 2, 3, 20, 1, 2, 3, 30)
    sequence = FakeSequence([1, 2, 3, 10, 99, 1, 2, 3], prediction=text)
    assert _draft(PredictionProposer(), sequence, 1) == (20,)


def test_bad_predictions_of_one_tenant_do_not_make_those_of_another_seem_bad() -> None:
    drafts = [
        PredictionProposer().propose([FakeSequence([1], num_prompt_tokens=1, prediction=TEXT, tenant=tenant)], [4])[0]
        for tenant in ("one", "other")
    ]
    assert len({draft.bucket_of(0) for draft in drafts if draft}) == 2


def test_a_long_prediction_is_indexed_over_several_steps() -> None:
    text = tuple(range(1, 3 * MOST_AT_ONCE + 1))
    proposer, sequence = PredictionProposer(), FakeSequence([], prediction=text)
    found = []
    for _ in range(4):
        sequence.tokens += [5_000_000, *text[-6:-2]]  # it goes on near the end
        found.append(_draft(proposer, sequence))
    assert text[-2:] not in found[:2], "that part has not been looked at"
    assert found[2:] == [text[-2:]] * 2


def test_edits_cost_few_extra_passes() -> None:
    rng, output = random.Random(1), []
    for token in TEXT:
        kind = rng.random()
        output += [] if kind < 0.03 else [token, 7000 + token] if kind < 0.06 else [token]
    proposer, sequence, passes = PredictionProposer(), FakeSequence([], prediction=TEXT), 0
    while len(sequence.tokens) < len(output):
        draft = proposer.propose([sequence], [8])[0]
        truth = output[len(sequence.tokens) :]
        sequence.tokens += truth[: 1 + (len(accepted(draft, truth)) if draft else 0)]
        passes += 1
    assert passes < len(output) / 3


DRAFT = ClientDraft(1, (11, 12, 13, 14))


def test_it_proposes_what_the_output_has_not_confirmed_yet() -> None:
    sequence = FakeSequence([5, 10], num_prompt_tokens=1, client_draft=DRAFT)
    proposer, found = ClientProposer(), []
    for token in (11, 12, 13):
        (draft,) = proposer.propose([sequence], [3])
        found.append(draft and draft.tokens)
        sequence.tokens.append(token)
    assert found == [(11, 12, 13), (12, 13, 14), (13, 14)]


def test_it_goes_on_where_the_output_differs_in_a_token() -> None:
    sequence = FakeSequence([5, 10, 11, 99], num_prompt_tokens=1, client_draft=DRAFT)
    (draft,) = ClientProposer().propose([sequence], [4])
    assert draft is not None
    assert len(accepted(draft, [13, 14])) == 2, "12 was replaced"
    assert len(accepted(draft, [12, 13])) == 2, "99 was inserted"


def test_a_draft_is_not_proposed_before_its_place_and_a_new_one_replaces_it() -> None:
    sequence = FakeSequence([5], num_prompt_tokens=1, client_draft=DRAFT)
    proposer = ClientProposer()
    assert proposer.propose([sequence], [3]) == [None], "the output has not come there"
    sequence.tokens += [10, 11]
    assert [draft and draft.tokens for draft in proposer.propose([sequence], [3])] == [(12, 13, 14)]
    sequence.client_draft = ClientDraft(2, (40, 41))
    assert [draft and draft.tokens for draft in proposer.propose([sequence], [3])] == [(40, 41)]
    proposer.forget(sequence)
    assert not proposer._texts


def test_it_serves_only_sequences_whose_client_has_sent_a_draft() -> None:
    sequence = FakeSequence([5])
    assert not ClientProposer().serves(sequence)
    assert ClientProposer().propose([sequence], [3]) == [None]
    sequence.client_draft = DRAFT
    assert ClientProposer().serves(sequence)


def test_bad_drafts_of_one_tenant_do_not_make_those_of_another_seem_bad() -> None:
    acceptance, proposer = AcceptanceEstimator(), ClientProposer()
    good, bad = (FakeSequence([5, 10], num_prompt_tokens=1, client_draft=DRAFT, tenant=tenant) for tenant in "ab")
    for sequence, hit in ((good, True), *[(bad, False)] * 50):
        (draft,) = proposer.propose([sequence], [1])
        assert draft is not None
        before = acceptance.rates(draft)[0]
        acceptance.record(draft, 0, 0, hit=hit)
    (draft,) = proposer.propose([good], [1])
    assert draft is not None
    assert acceptance.rates(draft)[0] > 2 * before, "what the other tenant's are expected to do"
