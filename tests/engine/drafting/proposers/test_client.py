from prolepsis.core.client_draft import ClientDraft
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.proposers.client import ClientProposer
from tests.engine.drafting.sequences import FakeSequence

DRAFT = ClientDraft(1, (11, 12, 13, 14))


def test_it_proposes_what_the_output_has_not_confirmed_yet() -> None:
    sequence = FakeSequence([5, 10], num_prompt_tokens=1, client_draft=DRAFT)
    proposer, found = ClientProposer(), []
    for token in (11, 12, 99):
        (draft,) = proposer.propose([sequence], [3])
        found.append(None if draft is None else (draft.tokens, draft.bucket))
        sequence.tokens.append(token)
    assert found == [((11, 12, 13), 0), ((12, 13, 14), 1), ((13, 14), 2)]
    assert proposer.propose([sequence], [3]) == [None], "the output has left the draft"


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
