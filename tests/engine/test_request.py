"""A request's state, and one that another engine began."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prolepsis.core.continuation import Continuation
from prolepsis.core.errors import ContextTooLong, InvalidParameter, OtherExactGroup, ProlepsisError
from prolepsis.core.events import Failed, Finished
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.core.stats import ProposerCounts
from prolepsis.engine.accounting import close_stats
from prolepsis.engine.chunks import ChunkLimit
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.worth import StepCost
from prolepsis.engine.request import Request, open_request
from prolepsis.engine.rows import Row
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine
from tests.engine.text.grammar.tiny import few_tokens, grammars
from tests.fake_proposer import Scripted
from tests.fakes import EOS, VOCAB, EngineSetup, Letters, build, draft_chain, drain, request, run, submit, terminals


def test_samples_share_the_arrays_of_their_bias() -> None:
    params = SamplingParams(logit_bias=((3, 1.5), (1, -2.0)))
    sequences = open_request(GenerateRequest("r", (1,), params, n=3), 0.0, 0, (), Letters()).sequences
    bias = sequences[0].bias
    assert bias is not None
    assert (bias.ids.tolist(), bias.values.tolist()) == ([3, 1], [1.5, -2.0])
    assert all(sequence.bias is bias for sequence in sequences)


def test_stop_strings_are_found_by_each_sample_for_itself() -> None:
    request = GenerateRequest("r", (1,), SamplingParams(stop=("ab",)), n=2)
    first, second = (sequence.text for sequence in open_request(request, 0.0, 0, (), Letters()).sequences)
    assert first is not None
    assert second is not None
    first.push([0])
    second.push([1])
    first.push([1])
    assert (first.matched, second.matched) == ("ab", None)


@pytest.mark.parametrize(
    ("prompt", "prediction", "rejected"),
    [
        ((3, 4, 5, 9, 9, 9, 9, 9, 9, 6), (9, 9, 9, 9), 0),  # it stands in the prompt
        ((3, 4, 5, 9, 9, 9, 9, 9, 9, 6), (8, 9, 9, 9, 9, 9, 7), 0),  # but for a token at its ends
        ((3, 4, 5), (9, 9, 9, 9), 4),
        ((3, 4, 5, 9, 9, 8, 9, 9), (9, 9, 9, 9), 4),
    ],
)
def test_a_prediction_that_brought_nothing_is_not_billed_where_it_stands_in_the_prompt(
    prompt: tuple[int, ...], prediction: tuple[int, ...], rejected: int
) -> None:
    source = GenerateRequest("a", prompt, SamplingParams(), prediction_token_ids=prediction)

    def opened() -> Request:
        return open_request(source, 0.0, 0, (), Letters())

    closed, partly = opened(), opened()
    closed.stats.proposers["prediction"] = ProposerCounts(num_drafts=1, num_draft_tokens=4)
    close_stats(closed, SpecPlan(), 1.0)
    assert (closed.stats.prediction_accepted, closed.stats.prediction_rejected) == (0, rejected)
    partly.stats.proposers["prediction"] = ProposerCounts(num_drafts=1, num_draft_tokens=4, num_accepted=1)
    close_stats(partly, SpecPlan(), 1.0)
    assert (partly.stats.prediction_accepted, partly.stats.prediction_rejected) == (1, 3)


GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def continued(
    engine: Engine,
    *emitted: tuple[int, ...],
    params: SamplingParams = GREEDY,
    grammar: GrammarSpec | None = None,
) -> GenerateRequest:
    source = replace(request("r", [1, 2, 3], params, n=len(emitted)), grammar=grammar)
    return replace(source, continue_from=Continuation(emitted=emitted, group=engine.info.exact_group))


def refusal(engine: Engine, source: GenerateRequest) -> ProlepsisError:
    """Submit a request that must be refused, and prove that the engine serves the next one."""
    submit(engine, source, request("next", [4, 5]))
    ends = terminals(drain(engine))
    assert isinstance(ends["next"], Finished)
    failed = ends["r"]
    assert isinstance(failed, Failed)
    assert getattr(failed.error, "param", None) == "continue_from"
    return failed.error


@pytest.mark.parametrize(
    ("emitted", "message"),
    [
        (((1,) * 9,), "has 9 tokens of sample 0; allowed: at most max_tokens (8)"),
        (((1,), (2, VOCAB)), f"holds token {VOCAB}; allowed: 0 to {VOCAB - 1}"),
        (((1,), (2, -1)), f"holds token -1; allowed: 0 to {VOCAB - 1}"),
        (((1,) * 8,), "has ended already, each of its samples; allowed: a sample that has not ended"),
        (((1,) * 8, (2,) * 8), "has ended already"),
    ],
)
def test_tokens_that_cannot_be_output(emitted: tuple[tuple[int, ...], ...], message: str) -> None:
    engine = build(EngineSetup())
    error = refusal(engine, continued(engine, *emitted))
    assert isinstance(error, InvalidParameter)
    assert message in str(error)


@pytest.mark.parametrize(
    ("params", "emitted"),
    [
        (replace(GREEDY, ignore_eos=False), (1, EOS, 2)),
        (replace(GREEDY, stop_token_ids=(7,)), (1, 7, 2)),
        (replace(GREEDY, stop=("bc",)), (1, 2, 2)),
    ],
)
def test_tokens_after_the_end(params: SamplingParams, emitted: tuple[int, ...]) -> None:
    engine = build(EngineSetup())
    error = refusal(engine, continued(engine, emitted, params=params))
    assert "continues after sample 0 ended with token 1" in str(error)
    patient = replace(params, min_tokens=3)
    submit(engine, continued(engine, emitted, params=patient))
    assert isinstance(terminals(drain(engine))["r"], Finished), "below min_tokens nothing ends it"


@pytest.mark.parametrize(
    ("text", "regex", "says"),
    [
        ("abb", "(ab|a){2,5}1", "holds token {} as number 1 of sample 0"),
        ("0", "(ab|a){2,5}1", "holds token {} as number 0 of sample 0"),
        ("01", "01", "has ended already"),
    ],
)
def test_tokens_that_the_grammar_refuses_or_behind_which_it_has_ended(text: str, regex: str, says: str) -> None:
    tokenizer = few_tokens()
    engine = build(EngineSetup(grammars=grammars(tokenizer), detokenizer=tokenizer))
    tokens = tuple(tokenizer.encode(text).ids)
    error = refusal(engine, continued(engine, tokens, grammar=GrammarSpec("regex", regex)))
    assert says.format(tokens[min(1, len(tokens) - 1)]) in str(error)


def test_more_than_the_context_holds() -> None:
    engine = build(EngineSetup(max_model_len=16))
    error = refusal(engine, continued(engine, (1,) * 14, params=replace(GREEDY, max_tokens=40)))
    assert isinstance(error, ContextTooLong)
    assert "maximum context length is 16 tokens; given: 3 in the prompt and 14 in continue_from" in str(error)


def test_as_many_answers_as_samples_and_no_replay() -> None:
    engine = build(EngineSetup())
    source = continued(engine, (1,), (2,))
    assert "is of 2 samples; allowed: of all 3" in str(refusal(engine, replace(source, n=3)))
    assert "was given with emitted" in str(refusal(engine, replace(source, emitted=((1,), (2,)))))


def test_outside_its_exact_group_it_is_refused_or_marked() -> None:
    engine = build(EngineSetup())
    source = continued(engine, (1, 2))
    assert source.continue_from is not None
    elsewhere = replace(source.continue_from, group=replace(engine.info.exact_group, forward="other"))
    with pytest.raises(OtherExactGroup, match="forward other recorded, table here; allowed: the same group"):
        engine.validate(replace(source, continue_from=elsewhere))
    assert isinstance(refusal(engine, replace(source, continue_from=elsewhere)), OtherExactGroup)
    submit(engine, replace(source, continue_from=replace(elsewhere, outside_group="continue")))
    end = terminals(drain(engine))["r"]
    assert isinstance(end, Finished)
    assert end.stats.not_exact == ("forward other recorded, table here",)


@pytest.mark.parametrize("num_turns", [0, 1])
def test_a_sample_has_pages_for_the_tokens_that_a_displaced_request_leaves_it(num_turns: int) -> None:
    """The second sample has its prompt's page, and reads what it emitted; a place is taken from `low` meanwhile."""
    engine = build(EngineSetup(max_sequences=3, max_step_tokens=PAGE_SIZE + 3))  # two rows decode, the rest ends a page
    params = replace(GREEDY, max_tokens=200)
    for number in range(num_turns):  # prompts are read in another order in every other pass
        run(engine, request(f"before {number}", [1], replace(GREEDY, max_tokens=1)))
    submit(engine, request("low", [1], params, priority=5))
    engine.step()
    source = request("r", [2] * PAGE_SIZE, params, n=2)
    emitted = ((1,), (1,) * 3 * PAGE_SIZE)
    submit(engine, replace(source, continue_from=Continuation(emitted=emitted, group=engine.info.exact_group)))
    engine.step()
    submit(engine, request("better", [3], params, priority=3))
    assert all(isinstance(end, Finished) for end in terminals(drain(engine)).values())


class Limit(ChunkLimit):
    """Prompts get `most` tokens of a step."""

    def __init__(self, most: int) -> None:
        super().__init__(0.0, flat_cost())
        self._most = most

    def max_tokens(self, decoding: Sequence[Row], start: int, most: int, *, is_short: bool = False) -> int:
        return min(most, self._most)


class Learned(Payback):
    """Counts the steps that it is told of, and wants each."""

    is_due = True

    def __init__(self) -> None:
        super().__init__()
        self.num_steps = 0

    def observe(self, step: StepCost, drafts: Mapping[str, tuple[int, int]]) -> None:
        self.num_steps += 1


def drafting(most: int, payback: Payback | None = None) -> Engine:
    proposer = Scripted(lambda sequence, limit: draft_chain(sequence, limit, wrong_from=2))
    engine = build(EngineSetup(proposers=[proposer], chunks=Limit(most)))
    proposers = engine.speculation.proposers
    engine.speculation = Speculation(proposers, max_step_tokens=64, max_model_len=256, payback=payback)
    return engine


def test_no_draft_follows_a_chunk_of_one_token_amid_an_answer() -> None:
    engine = drafting(41)
    submit(engine, request("first", [1] * 40, replace(GREEDY, max_tokens=1)), continued(engine, (1, 2, 3, 4)))
    engine.step()
    assert [row.num_tokens for row in engine._rows] == [40, 1]
    assert isinstance(terminals(drain(engine))["r"], Finished)


def test_a_step_with_a_chunk_of_one_token_tells_nothing_of_drafts() -> None:
    payback = Learned()
    engine = drafting(1, payback)
    submit(engine, request("decodes", [1], replace(GREEDY, max_tokens=60)))
    for _ in range(3):
        engine.step()
    before = payback.num_steps
    submit(engine, continued(engine, (1, 2, 3, 4)))
    for _ in range(5):
        engine.step()
        assert [row.num_tokens for row in engine._rows] == [1, 1]
    assert payback.num_steps == before > 0
