import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.plan import PANIC_PLAN, SpecPlan
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.candidate import DraftRequest
from prolepsis.engine.drafting.choose import ChosenDraft, ProposerSet
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.expected_text import PredictionProposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.window import DraftWindow, StepLoad
from tests.engine.drafting.sequences import VOCAB, FakeSequence, accepted, choose, drafts_of
from tests.fake_proposer import Script, Scripted

PLAN = SpecPlan()


def _set(*proposers: Proposer, ms_per_token: float = 0.1) -> ProposerSet:
    return ProposerSet(proposers, DraftWindow(flat_cost(10.0, ms_per_token)), AcceptanceEstimator(), VOCAB)


def _always(tokens: tuple[int, ...], name: str) -> Script:
    return lambda sequence, limit: chain(tokens[:limit], name)


def _raise(sequence: SequenceView, limit: int) -> Draft | None:
    raise RuntimeError("down")


def _step(proposers: ProposerSet, sequence: FakeSequence, truth: list[int], plan: SpecPlan = PLAN) -> Draft | None:
    """One engine step for one sequence whose target says `truth`."""
    draft = drafts_of(proposers, [sequence], [16], plan)[0]
    num_accepted = len(accepted(draft, truth)) if draft else 0
    sequence.tokens += truth[: num_accepted + 1]
    if draft:
        proposers.observe(draft, accepted(draft, truth))
    proposers.judge(sequence)
    proposers.commit(sequence, num_accepted + 1)
    return draft


def test_the_better_proposer_wins_after_a_few_steps() -> None:
    right, wrong = Scripted(_always((1,) * 8, "right"), "right"), Scripted(_always((2,) * 8, "wrong"), "wrong")
    proposers, sequence = _set(wrong, right), FakeSequence([0])
    drafts = [_step(proposers, sequence, [1] * 17) for _ in range(30)]
    assert all(draft is not None and draft.proposer == "right" for draft in drafts[-20:])
    assert proposers.counts["right"].num_accepted > 150


def test_the_proposer_that_is_right_in_a_class_wins_there() -> None:
    one, two = Scripted(_always((1,) * 8, "one"), "one"), Scripted(_always((2,) * 8, "two"), "two")
    proposers = _set(one, two)
    german, french = (FakeSequence([0], key=name, traffic_class=name) for name in ("de", "fr"))
    for _ in range(40):
        drafts = [_step(proposers, german, [1] * 17), _step(proposers, french, [2] * 17)]
    assert [draft.proposer if draft else None for draft in drafts] == ["one", "two"]


def test_a_costly_proposer_is_asked_in_the_class_in_which_it_is_right() -> None:
    asked = {"good": 0, "poor": 0}

    def script(sequence: SequenceView, limit: int) -> Draft:
        asked[sequence.traffic_class] += 1
        return chain((1,) * min(4, limit), "slow")

    ticks, window = itertools.count(), DraftWindow(flat_cost(10.0, 0.01))
    slow = Scripted(script, "slow", free=False)
    proposers = ProposerSet([slow], window, AcceptanceEstimator(), VOCAB, clock=lambda: next(ticks) / 200.0)
    sequences = [FakeSequence([0], key=name, traffic_class=name) for name in asked]
    for _ in range(120):
        for sequence, token in zip(sequences, (1, 2), strict=True):
            _step(proposers, sequence, [token] * 17)
    assert asked["good"] > 115
    assert asked["poor"] < 60, asked


def test_a_proposer_that_is_never_chosen_is_still_judged_and_comes_back() -> None:
    steady, moody = Scripted(_always((1, 9), "steady"), "steady"), Scripted(_always((1, 2, 3, 4), "moody"), "moody")
    proposers, sequence = _set(steady, moody), FakeSequence([0])
    for _ in range(60):
        _step(proposers, sequence, [1, 9, 9])
    before = proposers.counts["moody"].num_drafts
    for _ in range(10):
        _step(proposers, sequence, [1, 9, 9])
    assert proposers.counts["moody"].num_drafts == before
    drafts = [_step(proposers, sequence, [1, 2, 3, 4, 5]) for _ in range(300)]
    assert drafts[-1] is not None
    assert drafts[-1].proposer == "moody"


def test_hopeless_drafts_are_declined_and_cost_no_rows() -> None:
    proposers, sequence = _set(Scripted(_always((2, 2, 2), "p"), "p")), FakeSequence([0])
    drafts = [_step(proposers, sequence, [1]) for _ in range(300)]
    assert drafts[0] is not None
    assert drafts[-1] is None
    assert choose(proposers, [sequence], [16], PLAN) == [ChosenDraft(None, "not_worth_it")]


def test_no_draft_is_distinguished_from_a_draft_that_does_not_pay() -> None:
    proposers = _set(Scripted(lambda sequence, limit: None))
    assert choose(proposers, [FakeSequence([1])], [4], PLAN) == [ChosenDraft(None, "no_draft")]


@pytest.mark.parametrize(
    ("plan", "limit"), [(PANIC_PLAN, 16), (SpecPlan(num_speculative_tokens=0, fixed_depth=4), 16), (PLAN, 0)]
)
def test_depth_zero_asks_no_proposer(plan: SpecPlan, limit: int) -> None:
    proposers = _set(Scripted(_raise))
    assert drafts_of(proposers, [FakeSequence([1])] * 2, [limit] * 2, plan) == [None, None]
    assert proposers.failures == {"scripted": 0}


def test_ceilings_and_budgets_hold() -> None:
    proposers = _set(Scripted(lambda sequence, limit: chain((1,) * limit, "scripted")))
    sequences = [FakeSequence([0], key=key) for key in "abc"]
    limits = [16, 3, 0]
    sizes = [
        len(d.tokens) if d else 0 for d in drafts_of(proposers, sequences, limits, SpecPlan(num_speculative_tokens=5))
    ]
    assert sizes[0] <= 5
    assert sizes[1] <= 3
    assert sizes[2] == 0
    drafts = drafts_of(proposers, sequences, limits, PLAN, StepLoad(3, 3, 4))
    assert sum(len(d.tokens) for d in drafts if d) <= 4


def test_a_fixed_depth_overrides_the_window_but_not_the_limits() -> None:
    proposers = _set(Scripted(lambda sequence, limit: chain((2,) * limit, "scripted")), ms_per_token=100.0)
    sequences = [FakeSequence([0], key=key) for key in "abc"]
    drafts = drafts_of(proposers, sequences, [16, 2, 16], SpecPlan(fixed_depth=5), StepLoad(3, 3, 9))
    assert [len(d.tokens) if d else 0 for d in drafts] == [5, 2, 2]


def test_plan_and_sequence_choose_the_proposers() -> None:
    proposers = _set(Scripted(_always((1,), "a"), "a"), Scripted(_always((2,), "b"), "b"))
    sequences = [FakeSequence([0], key=key) for key in "xyz"]
    drafts = drafts_of(proposers, sequences, [4] * 3, SpecPlan(proposers=("b",)), allowed=[None, ("a",), ("b", "a")])
    assert [d.proposer if d else None for d in drafts] == ["b", None, "b"]


def test_faults_of_one_proposer_leave_the_others_at_work() -> None:
    proposers, sequence = _set(Scripted(_raise, "bad"), Scripted(_always((1, 1), "good"), "good")), FakeSequence([0])
    drafts = [_step(proposers, sequence, [1, 1, 1]) for _ in range(40)]
    assert all(draft is not None and draft.proposer == "good" for draft in drafts)
    assert 3 <= proposers.failures["bad"] < 10
    assert proposers.failures["good"] == 0


def test_a_costly_proposer_that_never_hits_is_left_then_retried() -> None:
    asked: list[int] = []

    def script(sequence: SequenceView, limit: int) -> Draft | None:
        asked.append(len(sequence.tokens))
        return chain((2,) * limit, "slow")

    ticks = iter(range(10**9))
    proposers = ProposerSet(
        [Scripted(script, "slow", free=False)],
        DraftWindow(flat_cost()),
        AcceptanceEstimator(),
        VOCAB,
        clock=lambda: next(ticks) / 200.0,  # each call takes 5 ms
    )
    sequence = FakeSequence([0])
    for _ in range(600):
        proposers.explore.earn(1)
        _step(proposers, sequence, [1])
    assert asked[-1] > 300, "it is still retried"
    assert len([at for at in asked if at > 300]) < 5


def test_counts_follow_verification() -> None:
    proposers, sequence = _set(Scripted(_always((1, 1, 2), "p"), "p")), FakeSequence([0])
    _step(proposers, sequence, [1, 1, 1, 1], SpecPlan(fixed_depth=3))
    counts = proposers.counts["p"]
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted) == (1, 3, 2)
    assert counts.per_position == [[1, 1], [1, 1], [1, 0]]
    assert proposers.seconds["p"] > 0.0


def test_memory_is_reported_of_proposers_that_use_some() -> None:
    suffix = SuffixProposer(1 << 16)
    found = _set(suffix, PromptLookupProposer()).memory()
    assert found == (ProposerMemory("suffix", index=suffix.shared.num_bytes), ProposerMemory("prompt_lookup"))
    assert 0 < found[0].total <= 1 << 16


def test_every_verb_reaches_the_proposers() -> None:
    scripted = Scripted(lambda sequence, limit: None)
    proposers, sequence = _set(scripted), FakeSequence([1, 2, 3], num_prompt_tokens=3)
    proposers.commit(sequence, 3)
    _step(proposers, sequence, [1])
    proposers.forget(sequence)
    assert scripted.committed == [("r0/0", 3), ("r0/0", 1)]
    assert scripted.forgotten == ["r0/0"]


@given(st.lists(st.integers(0, 4), min_size=2, max_size=120), st.integers(1, 16))
def test_free_proposers_never_change_the_text_and_always_move(truth: list[int], limit: int) -> None:
    proposers = _set(SuffixProposer(1 << 16), PromptLookupProposer(), PredictionProposer())
    sequence = FakeSequence([truth[0]], num_prompt_tokens=1, prediction=tuple(truth[1::2]))
    while len(sequence.tokens) < len(truth):
        draft = _step(proposers, sequence, truth[len(sequence.tokens) :])
        assert draft is None or draft.fault(VOCAB, 16) is None
    assert sequence.tokens == truth
    assert sum(proposers.failures.values()) == 0
    proposers.forget(sequence)


def test_a_forced_sequence_has_its_draft_verified_at_any_price() -> None:
    proposers = _set(Scripted(_always((1, 2, 3), "scripted")), ms_per_token=1000.0)
    sequences = [FakeSequence([5, 6], key="a"), FakeSequence([5, 7], key="b")]
    requests = [DraftRequest(sequences[0], 8), DraftRequest(sequences[1], 8, always_verify=True)]
    plain, always = proposers.propose(requests, PLAN)
    assert plain.draft is None
    assert always.draft is not None
    assert always.draft.tokens == (1, 2, 3)
    assert [plain.plain, always.plain] == ["not_worth_it", None]


def test_each_sequence_learns_why_it_got_no_draft() -> None:
    ticks = iter(range(10**9))
    slow = Scripted(_always((2,), "slow"), "slow", free=False)
    proposers = ProposerSet(
        [Scripted(_raise, "bad"), Scripted(lambda sequence, limit: None, "mute"), slow],
        DraftWindow(flat_cost()),
        AcceptanceEstimator(),
        VOCAB,
        clock=lambda: next(ticks) / 20.0,  # each call takes 50 ms
    )
    names = [("bad",), ("mute",), ("slow",), ("mute", "slow"), None, None]
    sequences = [FakeSequence([0], key=str(i)) for i in range(len(names))]
    for _ in range(10):
        chosen = choose(proposers, sequences, [4] * 5 + [0], PLAN, allowed=names)
    assert [choice.plain for choice in chosen] == [
        "backoff",
        "no_draft",
        "too_costly",
        "too_costly",
        "too_costly",
        "no_capacity",
    ]
    chosen = choose(proposers, sequences[1:3], [4] * 2, SpecPlan(fixed_depth=2), StepLoad(2, 2, 0), allowed=names[1:3])
    assert [choice.plain for choice in chosen] == ["no_draft", "no_capacity"]
    [lender] = [known for known in proposers.contained if known.name == "slow"]
    assert lender.lend()
    chosen = choose(proposers, sequences, [4] * 5 + [0], SpecPlan(fixed_depth=2), allowed=names)
    assert [choice.plain for choice in chosen] == ["backoff", "no_draft", *["memory_lent"] * 3, "no_capacity"]
    lender.take_back()
    chosen = choose(proposers, sequences, [4] * 5 + [0], SpecPlan(fixed_depth=2), allowed=names)
    assert [choice.plain for choice in chosen] == ["backoff", "no_draft", None, None, None, "no_capacity"]


def test_a_request_that_insists_on_a_costly_proposer_gets_its_draft_and_teaches_no_effort() -> None:
    ticks = iter(range(10**9))
    slow = Scripted(_always((1, 2, 3, 4, 5), "slow"), "slow", free=False)
    window = DraftWindow(flat_cost())
    proposers = ProposerSet([slow], window, AcceptanceEstimator(), VOCAB, clock=lambda: next(ticks) / 20.0)
    weighed, insisting = FakeSequence([0], key="a"), FakeSequence([0], key="b")
    requests = [DraftRequest(weighed, 4), DraftRequest(insisting, 4, ("slow",), always_verify=True)]
    for _ in range(40):  # calls of 50 ms do not pay
        chosen = proposers.propose(requests, PLAN)
    assert [choice.plain for choice in chosen] == ["too_costly", "too_costly"]
    requests[1] = DraftRequest(insisting, 4, ("slow",), always_verify=True, insists_on=("slow",))
    for _ in range(3):
        before, insists = proposers.propose(requests, PLAN)
        assert before.plain == "too_costly"
        assert insists.draft is not None
        assert insists.draft.tokens == (1, 2, 3)
    disabled = DraftRequest(insisting, 4, (), always_verify=True, insists_on=("slow",))
    assert proposers.propose([disabled], PLAN)[0].draft is None


def test_a_free_draft_and_a_costly_tree_become_one_and_count_for_their_own() -> None:
    """The target follows now the one, now the other: together they are right in every step."""
    free = Scripted(_always((1, 1), "free"), "free")
    slow = Scripted(_always((2, 2), "slow"), "slow", free=False)
    proposers, sequence = _set(slow, free, ms_per_token=0.01), FakeSequence([0])
    drafts = [_step(proposers, sequence, [1, 1, 3] if i % 2 else [2, 2, 3]) for i in range(60)]
    assert all(draft is not None and len(accepted(draft, [1, 1])) == 2 for draft in drafts[-20:])
    assert all(draft is not None and len(accepted(draft, [2, 2])) == 2 for draft in drafts[-20:])
    counts = proposers.counts
    assert counts["free"].num_accepted > 50
    assert counts["slow"].num_accepted > 50
    assert counts.keys() == {"free", "slow"}
    assert sum(c.num_drafts for c in counts.values()) == len([d for d in drafts if d])


def test_each_part_of_a_merged_draft_is_judged_by_itself() -> None:
    acceptance = AcceptanceEstimator()
    free, slow = Scripted(_always((1, 1), "free"), "free"), Scripted(_always((2,), "slow"), "slow", free=False)
    proposers = ProposerSet([free, slow], DraftWindow(flat_cost(10.0, 0.01)), acceptance, VOCAB)
    sequence = FakeSequence([0])
    for _ in range(30):
        _step(proposers, sequence, [1, 1, 3])
    assert acceptance.trials("free", 0, 0)[0] == acceptance.trials("free", 0, 0)[1] > 20
    hits, trials = acceptance.trials("slow", 0, 0)
    assert hits == 0.0
    assert trials > 0.0


def test_at_a_fixed_depth_nothing_is_merged() -> None:
    free, slow = Scripted(_always((1, 1), "free"), "free"), Scripted(_always((2, 2), "slow"), "slow", free=False)
    draft = drafts_of(_set(free, slow), [FakeSequence([0])], [16], SpecPlan(fixed_depth=2))[0]
    assert draft is not None
    assert not draft.sources


@given(st.lists(st.integers(0, 4), min_size=2, max_size=80), st.integers(0, 4))
def test_merged_drafts_never_change_the_text_and_stay_within_limits(truth: list[int], wrong: int) -> None:
    def script(sequence: SequenceView, limit: int) -> Draft | None:
        after = truth[len(sequence.tokens) : len(sequence.tokens) + limit]
        return chain((*after[:-1], wrong), "slow") if after else None

    proposers = _set(SuffixProposer(1 << 16), Scripted(script, "slow", free=False))
    sequence = FakeSequence([truth[0]], num_prompt_tokens=1)
    while len(sequence.tokens) < len(truth):
        draft = _step(proposers, sequence, truth[len(sequence.tokens) :])
        assert draft is None or draft.fault(VOCAB, 16) is None
    assert sequence.tokens == truth
    assert sum(proposers.failures.values()) == 0


def test_a_costly_proposer_is_asked_at_once_after_a_miss_and_not_inside_a_long_copy() -> None:
    """A file of 90 tokens is copied with 12 new ones after each 30; the costly proposer knows 2 tokens each time."""
    ticks, asked = itertools.count(), set[tuple[str, int]]()

    def script(sequence: SequenceView, limit: int) -> Draft | None:
        done = len(sequence.tokens) - sequence.num_prompt_tokens
        asked.add((sequence.key, done))
        return chain((*answer[done : done + 2], 999)[:limit], "slow")

    window = DraftWindow(flat_cost(10.0, 0.1))
    proposers = ProposerSet(
        [SuffixProposer(1 << 16), Scripted(script, "slow", free=False)],
        window,
        AcceptanceEstimator(),
        1000,
        clock=lambda: next(ticks) / 400.0,  # each call takes 2.5 ms
    )
    steps = list[tuple[str, int]]()
    for i in range(12):
        draw = random.Random(i)
        source = draw.sample(range(900), 90)
        parts = [[*source[first : first + 30], *draw.sample(range(900, 1000), 12)] for first in (0, 30, 60)]
        answer = [token for part in parts for token in part]
        sequence = FakeSequence([*source], 90, f"r{i}", cache_salt=f"r{i}")
        while (done := len(sequence.tokens) - 90) < len(answer):
            steps.append((sequence.key, done))
            _step(proposers, sequence, answer[done:])
        proposers.forget(sequence)
    later = [step for step in steps if int(step[0][1:]) >= 6]
    missed = {step for step in later if step[1] % 42 > 30}
    copying = {step for step in later if 16 <= step[1] % 42 < 26}
    assert missed
    assert missed <= asked
    assert copying
    assert not copying & asked


class Costly(Proposer):
    """Proposes nothing, and raises where it is told of tokens if it is `broken`."""

    name = "costly"

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return []

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        if self.broken:
            raise RuntimeError("broken")


def test_counters_go_on_and_estimates_start_over() -> None:
    acceptance = AcceptanceEstimator()
    proposers = ProposerSet([Costly(broken=True)], DraftWindow(flat_cost()), acceptance, 24)
    draft = chain((1, 2), "costly")
    acceptance.record(draft, 0, 0, hit=False)
    proposers.observe(draft, (0,))
    proposers.commit(FakeSequence([1, 2, 3]), 1)
    assert acceptance.survival("costly", 1)[0] < 0.6
    proposers.exchange("costly", None)
    assert (proposers.names, proposers.failures) == ((), {})
    proposers.exchange("costly", Costly())
    assert (proposers.names, proposers.failures) == (("costly",), {"costly": 1})
    assert proposers.counts["costly"].num_accepted == 1
    assert acceptance.survival("costly", 1) == (0.6,)
    proposers.commit(FakeSequence([1, 2, 3]), 1)
    assert proposers.failures == {"costly": 1}, "the new one is sound"


def test_a_proposer_is_exchanged_for_one_of_its_name() -> None:
    proposers = ProposerSet([], DraftWindow(flat_cost()), AcceptanceEstimator(), 24)
    with pytest.raises(AssertionError, match="of its name"):
        proposers.exchange("other", Costly())
