"""The longest run of accepted tokens of an answer."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from prolepsis.control.health.quality import SHORTEST, loops
from prolepsis.core.events import Event, Tokens
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams
from prolepsis.core.stats import AcceptedRun, RequestStats
from prolepsis.engine.drafting.draft import ROOT, Draft
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from tests.exact.serving import setup_of
from tests.fake_proposer import Script, Scripted
from tests.fakes import EngineSetup, build, draft_chain, draft_tree, outputs, request, run, terminals

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SCRIPTS: dict[str, Script] = {
    "right": lambda sequence, limit: draft_chain(sequence, limit, wrong_from=99),
    "wrong": lambda sequence, limit: draft_chain(sequence, limit, wrong_from=0),
    "partly": lambda sequence, limit: draft_chain(sequence, limit, wrong_from=3),
    "tree": draft_tree,
    "at times wrong": lambda sequence, limit: draft_chain(sequence, limit, wrong_from=_right_at(sequence)),
    "at times none": lambda sequence, limit: (
        draft_chain(sequence, limit, wrong_from=99) if len(sequence.tokens) % 5 else None
    ),
}


def _right_at(sequence: SequenceView) -> int:
    return 2 if len(sequence.tokens) % 3 else 99


def _whole(draft: Draft, tokens: Sequence[int]) -> bool:
    """Return whether no node of the draft contradicts the tokens: by what follows each node that they pass."""
    node = ROOT
    for token in tokens:
        children = {draft.tokens[i]: i for i, parent in enumerate(draft.parents) if parent == node}
        if not children:
            return True
        if token not in children:
            return False
        node = children[token]
    return True


def _runs(events: Sequence[Event], num_samples: int) -> list[AcceptedRun]:
    """Return the runs of accepted tokens by what the events say of each step."""
    found: list[AcceptedRun] = []
    for sample in range(num_samples):
        runs = [0]  # output positions at which a run begins or ends
        length = 0
        for event in events:
            if isinstance(event, Tokens) and event.index == sample:
                length = event.position + len(event.token_ids)
                if event.proposed is None:
                    runs += [event.position, length]
                else:
                    draft = Draft(event.proposed.tokens, event.proposed.parents, "")
                    if not _whole(draft, event.token_ids):
                        runs += [event.position + len(event.accepted_by), length]
        runs.append(length)
        pairs = zip(runs[::2], runs[1::2], strict=True)
        found += [AcceptedRun(sample, start, end - start) for start, end in pairs if end > start]
    return found


def _answered(script: Script, params: SamplingParams = GREEDY, *, n: int = 1) -> tuple[RequestStats, list[Event]]:
    engine = build(EngineSetup(proposers=[Scripted(script)]))
    engine.send(ApplyPlan(SpecPlan(fixed_depth=6)))
    events = run(engine, replace(request("a", [1, 2, 3], params, n=n), tells_drafts=True))
    return terminals(events)["a"].stats, events


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_longest_run_is_that_of_the_steps(script: str, n: int) -> None:
    params = GREEDY if n == 1 else SamplingParams(temperature=1.0, seed=3, max_tokens=33, ignore_eos=True)
    stats, events = _answered(SCRIPTS[script], params, n=n)
    runs = _runs(events, n)
    longest = max((one.length for one in runs), default=0)
    assert stats.longest_run.length == longest
    assert stats.longest_run in (runs if longest else [AcceptedRun()])
    if script in ("partly", "at times wrong"):
        assert len(runs) > 3
        assert longest < params.max_tokens - 1


def test_right_drafts_make_one_run_of_all_tokens_after_the_first() -> None:
    stats, _ = _answered(SCRIPTS["right"])
    assert stats.longest_run == AcceptedRun(0, 1, 39)
    num_judged, num_right = stats.first_tokens
    assert num_judged == num_right == stats.num_drafts > 5


def test_wrong_drafts_make_no_run() -> None:
    stats, _ = _answered(SCRIPTS["wrong"])
    assert stats.longest_run == AcceptedRun()
    assert stats.first_tokens == (stats.num_drafts, 0)


def test_an_answer_that_repeats_itself_is_one_run_that_loops() -> None:
    """The target says one letter for ever, which its proposer finds out."""
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, logit_bias=((5, 100.0),))
    events = run(build(setup_of(proposers=[SuffixProposer()])), request("a", [1, 2, 3], params))
    stats, tokens = terminals(events)["a"].stats, outputs(events)["a", 0]
    longest = stats.longest_run
    assert longest.length > SHORTEST
    assert loops(tokens[longest.start : longest.start + longest.length])


def test_of_two_engines_the_longer_run_counts() -> None:
    total = RequestStats(longest_run=AcceptedRun(0, 3, 20))
    for other, longest in ((AcceptedRun(1, 0, 30), 30), (AcceptedRun(0, 90, 10), 30)):
        total.add(RequestStats(longest_run=other))
        assert total.longest_run == AcceptedRun(1, 0, longest)
