"""What is counted of proposers by traffic class, and who is left out by it."""

from collections.abc import Sequence

import pytest

from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.core.stats import GrowingCounts, TrafficClassCounts
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import ROOT, Draft, chain
from prolepsis.engine.drafting.effort import MarginalCost
from prolepsis.engine.drafting.ledger import DisabledProposers, Ledger
from prolepsis.engine.drafting.window import DraftWindow
from tests.engine.drafting.sequences import VOCAB, FakeSequence, drafts_of
from tests.fake_proposer import Scripted

NAMES = ("head", "suffix")


def of(counts: Sequence[TrafficClassCounts], proposer: str, traffic_class: str) -> TrafficClassCounts:
    [found] = [one for one in counts if (one.proposer, one.traffic_class) == (proposer, traffic_class)]
    return found


def test_time_is_shared_and_counted_at_its_price() -> None:
    ledger = Ledger(NAMES)
    ledger.ask("head", [("chat", ""), ("chat", ""), ("code", ""), ("code", "")], 0.008, MarginalCost(token=0.1, ms=0.5))
    assert of(ledger.counts(), "head", "chat").spent == pytest.approx(2.0)
    assert of(ledger.counts(), "head", "code").num_asked == 2
    ledger.ask("head", [("chat", "")], 0.008, None)
    assert of(ledger.counts(), "head", "chat").spent == pytest.approx(2.0), "not weighed, not counted"


def test_a_late_call_is_late_once_for_each_traffic_class_that_took_part() -> None:
    ledger = Ledger(NAMES, late_s=0.5)
    for seconds, row in ((0.6, 1), (0.7, 2), (0.4, 0)):
        ledger.ask("head", [("chat", ""), ("chat", ""), ("code", "")], seconds, None)
        assert of(ledger.counts(), "head", "chat").late_in_row == row
    assert of(ledger.counts(), "head", "code").num_late == 2


def test_rows_and_tokens_of_a_merged_draft_count_for_whom_they_are_of() -> None:
    draft = Draft((1, 2, 3), (ROOT, 0, 0), "merged", sources=("suffix", "suffix", "head"))
    ledger = Ledger(NAMES)
    ledger.verify(draft, [0, 2], ("chat", ""), MarginalCost(token=0.1, ms=0.0))
    suffix, head = of(ledger.counts(), "suffix", "chat"), of(ledger.counts(), "head", "chat")
    assert suffix.spent == pytest.approx(0.2)
    assert head.spent == pytest.approx(0.1)
    assert [(one.num_rounds, one.gained, one.gained_squared) for one in (suffix, head)] == [(1, 1, 1), (1, 1, 1)]


def test_faults_in_a_row_end_with_a_sound_draft_of_the_traffic_class() -> None:
    ledger = Ledger(NAMES)
    for _ in range(2):
        ledger.fail("head", "chat")
        ledger.fail("head", "code")
    ledger.succeed("head", "code")
    assert [(c.num_errors, c.errors_in_row) for c in ledger.counts()] == [(2, 2), (2, 0)]


def test_strangers_are_not_counted_and_pairs_are_bounded() -> None:
    ledger = Ledger(NAMES)
    ledger.judge("merged", ("chat", ""), right=True)
    assert ledger.counts() == ()
    for i in range(5000):
        ledger.judge("head", (str(i), ""), right=True)
    assert len(ledger.counts()) == 1024


def test_what_was_counted_elsewhere_is_added_for_class_and_tenant() -> None:
    ledger = Ledger(NAMES)
    ledger.judge("head", ("chat", "bank"), right=True)
    ledger.add("head", ("chat", "bank"), GrowingCounts(num_asked=3, num_judged=8, num_right=5))
    ledger.add("merged", ("chat", "bank"), GrowingCounts(num_judged=8))
    [counts] = ledger.counts()
    assert (counts.num_asked, counts.num_judged, counts.num_right, counts.num_rounds) == (3, 9, 6, 0)
    assert [(part.tenant, part.num_judged) for part in counts.tenants] == [("bank", 9)]


def test_another_proposer_of_the_name_is_counted_again() -> None:
    ledger = Ledger(NAMES)
    ledger.judge("head", ("chat", ""), right=True)
    ledger.judge("suffix", ("chat", ""), right=True)
    ledger.exchange("head")
    assert {one.proposer: one.num_judged for one in ledger.counts()} == {"head": 0, "suffix": 1}


def test_a_grant_of_probes_to_a_proposer_that_is_exchanged_begins_again() -> None:
    ledger = Ledger(NAMES)
    disabled = DisabledProposers(ledger)
    plan = SpecPlan(disabled=(DisabledProposer("head", "chat", num_trials=2),))
    allowed = [disabled.allowed(("chat", ""), ("head",), plan)]
    for _ in range(5):
        ledger.ask("head", [("chat", "")], 0.0, None)
    allowed.append(disabled.allowed(("chat", ""), ("head",), plan))
    ledger.exchange("head")
    disabled.exchange("head")
    for _ in range(3):
        allowed.append(disabled.allowed(("chat", ""), ("head",), plan))
        ledger.ask("head", [("chat", "")], 0.0, None)
    assert allowed == [("head",), (), ("head",), ("head",), ()]


def test_every_draft_is_judged_whether_or_not_it_is_verified() -> None:
    """Rows so dear that nothing is verified: what is right is counted all the same, by traffic class."""
    proposers = ProposerSet(
        [Scripted(lambda s, n: chain((7,), "scripted"))],
        DraftWindow(flat_cost(1.0, 50.0)),
        AcceptanceEstimator(),
        VOCAB,
    )
    sequences = [
        FakeSequence([1, 2], key="a", traffic_class="chat"),
        FakeSequence([1, 2], key="b", traffic_class="code"),
    ]
    for _ in range(10):
        assert drafts_of(proposers, sequences, [4, 4], SpecPlan()) == [None, None]
        for sequence, token in zip(sequences, (7, 8), strict=True):
            sequence.tokens.append(token)
            proposers.judge(sequence)
    chat, code = of(proposers.ledger.counts(), "scripted", "chat"), of(proposers.ledger.counts(), "scripted", "code")
    assert (chat.num_asked, chat.num_judged, chat.num_right, chat.num_rounds) == (10, 10, 10, 0)
    assert (code.num_judged, code.num_right) == (10, 0)


def test_a_fault_is_counted_with_the_traffic_class_whose_sequence_it_was() -> None:
    def script(sequence: object, limit: int) -> Draft:
        if isinstance(sequence, FakeSequence) and sequence.traffic_class == "code":
            raise ValueError("not this one")
        return chain((7,), "scripted")

    proposers = ProposerSet([Scripted(script)], DraftWindow(flat_cost()), AcceptanceEstimator(), VOCAB)
    sequences = [
        FakeSequence([1, 2], key="a", traffic_class="chat"),
        FakeSequence([1, 2], key="b", traffic_class="code"),
    ]
    for _ in range(3):
        drafts_of(proposers, sequences, [4, 4], SpecPlan())
    assert [(c.traffic_class, c.errors_in_row) for c in proposers.ledger.counts() if c.num_errors] == [("code", 3)]


def test_those_left_out_of_a_traffic_class_may_not_draft_there() -> None:
    leaving = DisabledProposers(Ledger(NAMES))
    plan = SpecPlan(disabled=(DisabledProposer("head", "chat"),))
    assert leaving.allowed(("code", ""), NAMES, plan) == NAMES
    assert leaving.allowed(("chat", ""), NAMES, plan) == ("suffix",)
    assert leaving.allowed(("chat", ""), ("head",), plan) == ()
    assert leaving.allowed(("code", ""), ("head",), plan) == ("head",)
    assert leaving.allowed(("chat", ""), NAMES, SpecPlan()) == NAMES


def test_a_grant_of_probes_is_used_up_and_not_renewed_by_an_equal_plan() -> None:
    ledger = Ledger(NAMES)
    leaving = DisabledProposers(ledger)
    ledger.ask("head", [("chat", "")] * 50, 0.0, None)

    def may_draft(version: int, trial_round: int) -> bool:
        plan = SpecPlan(
            version=version, disabled=(DisabledProposer("head", "chat", num_trials=3, trial_round=trial_round),)
        )
        return leaving.allowed(("chat", ""), NAMES, plan) == NAMES

    assert may_draft(1, 1)
    ledger.ask("head", [("chat", "")] * 2, 0.0, None)
    assert may_draft(2, 1)
    ledger.ask("head", [("chat", "")], 0.0, None)
    assert not may_draft(3, 1)
    assert may_draft(4, 2), "another round is another grant"


def test_the_chance_of_a_first_token_is_that_of_any_of_them() -> None:
    tree = Draft((1, 2, 3), (ROOT, ROOT, 0), "head", survival=(0.5, 0.25, 0.4))
    assert tree.first_chance == pytest.approx(0.75), "of one of the first tokens, whichever"
    assert chain((1,), "head").first_chance is None
