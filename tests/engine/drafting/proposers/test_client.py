from prolepsis.core.client_draft import ClientDraft
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.proposers.expected_text import ClientProposer
from tests.engine.drafting.sequences import FakeSequence, accepted

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
