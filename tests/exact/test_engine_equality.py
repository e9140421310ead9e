"""Same seed, same tokens: whatever proposes, however far, beside whom, after whatever the scheduler had to do.

The real verification and sampler run over a target whose logits depend on every token and position reached through
the paged cache. The yardstick is the same request alone, without speculation, in a pool that is never short.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from prolepsis.core.events import TokenLogprobs, Tokens
from prolepsis.core.messages import Abort, ApplyPlan, SetCorpora
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.corpus import CorpusProposer
from prolepsis.engine.drafting.proposers.expected_text import PredictionProposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.sampling.noise import noise_key
from tests.engine.drafting.executors import AtOnce
from tests.exact.serving import flawed, serve, setup_of
from tests.fake_proposer import Scripted
from tests.fakes import VOCAB, EngineSetup, build, drain, outputs, reference, run, submit, terminals

PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=48, seed=11),
    "truncated": SamplingParams(
        temperature=0.8, top_k=9, top_p=0.9, min_p=0.02, max_tokens=48, seed=5, ignore_eos=True
    ),
    "penalties": SamplingParams(
        temperature=0.7,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.6,
        max_tokens=48,
        seed=2,
        ignore_eos=True,
    ),
    "greedy penalties": SamplingParams(temperature=0.0, frequency_penalty=0.9, max_tokens=48, ignore_eos=True),
    "ends": SamplingParams(max_tokens=48, min_tokens=20, stop_token_ids=(3, 5), seed=3),
    "text": SamplingParams(
        max_tokens=48, stop=("ab", "qr", "x"), seed=9, min_tokens=4, logit_bias=((1, 3.0), (0, -9.0))
    ),
}
PROMPT = tuple((7 * i) % VOCAB for i in range(45))


def without_prediction(name: str, request_id: str, prompt: Sequence[int], n: int) -> GenerateRequest:
    return GenerateRequest(request_id, tuple(prompt), PARAMS[name], n=n)


@cache
def plain_texts() -> dict[str, list[int]]:
    """Return what plain decoding answers to each set of parameters."""
    return {name: serve(setup_of(), SpecPlan(), without_prediction(name, "r", PROMPT, 1))["r", 0] for name in PARAMS}


def ask(name: str, request_id: str = "r", prompt: Sequence[int] = PROMPT, n: int = 1) -> GenerateRequest:
    """Return a request whose prediction is the greedy answer."""
    source = without_prediction(name, request_id, prompt, n)
    return replace(source, prediction_token_ids=tuple(plain_texts()["greedy"]))


def oracle(kind: str, *, free: bool = True) -> Scripted:
    """Propose, knowing the plain output of each parameter set: right, wrong from the third token on, or in branches."""

    def script(sequence: SequenceView, limit: int) -> Draft | None:
        name = next(name for name, params in PARAMS.items() if params == sequence.params)
        done = len(sequence.tokens) - sequence.num_prompt_tokens
        right = plain_texts()[name][done : done + limit]
        return flawed(kind, right, limit)

    return Scripted(script, free=free)


class AlwaysJson:
    """A tokenizer by which every answer seems to be in JSON, so that the prompt is copied in that form."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) % VOCAB for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return '"' + "".join(map(chr, token_ids)) + "\\n"


def corpora() -> CorpusProposer:
    """Propose from the plain outputs and from a text that leaves them after each few tokens."""
    proposer = CorpusProposer(1 << 20, builder=AtOnce())
    texts = [*plain_texts().values(), [token + (i % 5 == 4) for i, token in enumerate(plain_texts()["sampled"])]]
    proposer.take_corpora(SetCorpora("tenant:", tuple(array("i", text).tobytes() for text in texts)))
    return proposer


PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "right": lambda: oracle("right"),
    "wrong": lambda: oracle("wrong"),
    "tree": lambda: oracle("tree"),
    "nonsense": lambda: Scripted(lambda sequence, limit: chain((VOCAB + 1,) * limit, "scripted")),
    "prompt_lookup": lambda: PromptLookupProposer(min_match=1),
    "suffix": SuffixProposer,
    "copies": lambda: SuffixProposer(1 << 16, AlwaysJson()),
    "prediction": PredictionProposer,
    "corpus": corpora,
}


def test_yardstick_equals_the_table_where_sampling_is_plain() -> None:
    source = ask("greedy")
    assert plain_texts()["greedy"] == reference(source, noise_key(0, 0))
    assert len({tuple(text) for text in plain_texts().values()}) == len(plain_texts())


def all_at_once() -> list[GenerateRequest]:
    return [ask(name, name) for name in PARAMS]


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_proposer_at_every_depth(proposer: str) -> None:
    """Fixed depths in company, with room in each pass for all drafts; alone where the depth is found."""
    for depth in (1, 3, 9):
        setup = setup_of(max_step_tokens=128, proposers=[PROPOSERS[proposer]()])
        texts = serve(setup, SpecPlan(fixed_depth=depth), *all_at_once())
        assert {name: texts[name, 0] for name in PARAMS} == plain_texts()
    for name in PARAMS:
        assert serve(setup_of(proposers=[PROPOSERS[proposer]()]), SpecPlan(), ask(name))["r", 0] == plain_texts()[name]


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_shadow_is_plain_decoding_beside_others_that_speculate(proposer: str) -> None:
    for plan in (SpecPlan(fixed_depth=3), SpecPlan()):
        shadows = [replace(ask(name, name), speculation=SpeculationChoice("shadow")) for name in PARAMS]
        texts = serve(setup_of(proposers=[PROPOSERS[proposer]()]), plan, *shadows, ask("sampled"))
        assert {name: texts[name, 0] for name in PARAMS} == plain_texts()
        assert texts["r", 0] == plain_texts()["sampled"]


def test_right_drafts_are_accepted() -> None:
    engine = build(setup_of(proposers=[oracle("tree")]))
    engine.send(ApplyPlan(SpecPlan(fixed_depth=6)))
    submit(engine, ask("truncated"))
    (end,) = terminals(drain(engine)).values()
    assert end.stats.num_accepted >= 30
    assert end.stats.num_steps <= 18


def test_tokens_of_a_corpus_are_accepted() -> None:
    engine = build(setup_of(proposers=[corpora()]))
    events = run(engine, ask("greedy"))
    assert outputs(events)["r", 0] == plain_texts()["greedy"]
    assert terminals(events)["r"].stats.proposers["corpus"].num_accepted > 20


def test_a_message_brings_corpora_and_takes_them_away() -> None:
    engine = build(setup_of(proposers=[CorpusProposer(1 << 20, builder=AtOnce())]))
    text = array("i", plain_texts()["greedy"]).tobytes()
    accepted = []
    for i, texts in enumerate([(), (text,), ()]):
        engine.send(SetCorpora("tenant:", texts))
        events = run(engine, replace(ask("greedy", str(i)), cache_salt=str(i)))
        assert outputs(events)[str(i), 0] == plain_texts()["greedy"]
        accepted.append(terminals(events)[str(i)].stats.num_accepted)
    assert accepted[0] == accepted[2] == 0
    assert accepted[1] > 20


@pytest.mark.parametrize("kind", ["right", "wrong", "tree"])
def test_merged_drafts(kind: str) -> None:
    proposers: list[Proposer] = [oracle(kind, free=False), PromptLookupProposer(min_match=1), SuffixProposer()]
    engine = build(setup_of(proposers=proposers))
    submit(engine, *all_at_once(), ask("sampled", "other", [4] * 20))
    events = drain(engine)
    assert {name: outputs(events)[name, 0] for name in PARAMS} == plain_texts()
    counts = engine.speculation.proposers.counts
    of_requests = [end.stats for end in terminals(events).values()]
    assert sum(c.num_accepted for c in counts.values()) == sum(stats.num_accepted for stats in of_requests)
    assert sum(c.num_drafts for c in counts.values()) == sum(stats.num_drafts for stats in of_requests)


@pytest.mark.parametrize("depth", [None, 0, 5])
def test_any_mix_of_neighbours(depth: int | None) -> None:
    proposers: list[Proposer] = [oracle("tree"), PromptLookupProposer(min_match=1), SuffixProposer()]
    sources = all_at_once()
    sources += [ask("sampled", f"other {i}", [i] * (10 * i + 1)) for i in range(4)]
    texts = serve(setup_of(proposers=proposers), SpecPlan(fixed_depth=depth), *sources)
    assert {name: texts[name, 0] for name in PARAMS} == plain_texts()


def test_preemption_and_chunked_prefill() -> None:
    setup = setup_of(
        num_pages=8, max_model_len=128, max_step_tokens=24, prefix_cache=False, proposers=[oracle("wrong")]
    )
    engine = build(setup)
    engine.send(ApplyPlan(SpecPlan(fixed_depth=4)))
    submit(engine, *all_at_once())
    events = drain(engine)
    assert {name: outputs(events)[name, 0] for name in PARAMS} == plain_texts()
    assert sum(end.stats.num_preemptions for end in terminals(events).values()) > 0


def test_prefix_cache_hits() -> None:
    engine = build(setup_of(proposers=[oracle("right")]))
    for i, name in enumerate(PARAMS):
        submit(engine, ask(name, name))
        events = drain(engine)
        assert outputs(events)[name, 0] == plain_texts()[name]
        assert terminals(events)[name].stats.num_cached_tokens == (32 if i else 0)


def test_aborts_of_neighbours() -> None:
    engine = build(setup_of(proposers=[oracle("tree")]))
    engine.send(ApplyPlan(SpecPlan(fixed_depth=6)))
    submit(engine, *all_at_once(), *(ask(name, f"victim {name}") for name in PARAMS))
    events = []
    for name in PARAMS:
        events += engine.step()
        engine.send(Abort(f"victim {name}"))
    events += drain(engine)
    assert {name: outputs(events)[name, 0] for name in PARAMS} == plain_texts()


@pytest.mark.parametrize("num_pages", [64, 9])
def test_sequences_of_one_request(num_pages: int) -> None:
    plain = {name: serve(setup_of(), SpecPlan(), ask(name, n=3)) for name in PARAMS}
    for name in PARAMS:
        assert plain[name]["r", 0] == plain_texts()[name]
        setup = setup_of(
            num_pages=num_pages, max_model_len=128, proposers=[SuffixProposer(), PromptLookupProposer(min_match=1)]
        )
        assert serve(setup, SpecPlan(fixed_depth=4), ask(name, n=3)) == plain[name]


def test_logprobs_are_those_of_plain_decoding() -> None:
    params = SamplingParams(max_tokens=30, seed=4, logprobs=3, ignore_eos=True)

    def logprobs(setup: EngineSetup) -> list[TokenLogprobs]:
        engine = build(setup)
        engine.send(ApplyPlan(SpecPlan(fixed_depth=4)))
        submit(engine, GenerateRequest("r", PROMPT, params))
        events = [e for e in drain(engine) if isinstance(e, Tokens)]
        assert all(e.logprobs and len(e.logprobs) == len(e.token_ids) for e in events)
        return [entry for e in events for entry in e.logprobs or ()]

    plain = logprobs(setup_of())
    assert len(plain) == 30
    assert all(len(entry.top) == 3 and entry.top[0][1] >= entry.logprob for entry in plain)
    assert logprobs(setup_of(proposers=[PromptLookupProposer(min_match=1)])) == plain
