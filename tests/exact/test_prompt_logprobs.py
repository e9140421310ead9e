"""Log-probabilities of a prompt equal the target's own, whatever is cached, cut, preempted or beside it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from prolepsis.core.errors import InvalidParameter, NotFinite
from prolepsis.core.events import Event, Failed, Finished, TokenLogprobs, Tokens
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import MAX_LOGPROBS, WHOLE_VOCABULARY, GenerateRequest, SamplingParams
from prolepsis.engine.build import assemble
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.tiny import save_tiny
from tests.engine.test_scheduler import Sizes
from tests.engine.test_verification import DAMAGED, DamagedModel
from tests.exact.cuts import cut, serve
from tests.exact.oracle import CONFIG
from tests.exact.serving import setup_of
from tests.fakes import VOCAB, EngineSetup, Letters, build, drain, outputs, run, submit, table_logits, terminals

PROMPT = tuple((5 * i + i // 7) % VOCAB for i in range(4 * PAGE_SIZE + 3))
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SCORED = replace(GREEDY, prompt_logprobs=3)


def expected(prompt: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Return the log-softmax of the table's logits at each token of a prompt but the first."""
    found = []
    for end in range(1, len(prompt)):
        values = torch.tensor(table_logits(prompt[:end]), dtype=torch.float64).log_softmax(0).tolist()
        order = sorted(range(VOCAB), key=lambda token: (-values[token], token))
        token = prompt[end]
        likeliest = tuple((i, values[i]) for i in order[:top])
        found.append(TokenLogprobs(values[token], likeliest, 1 + order.index(token)))
    return found


def check(scores: Sequence[TokenLogprobs] | None, prompt: Sequence[int] = PROMPT, top: int = 3) -> None:
    assert scores is not None
    for one, right in zip(scores, expected(prompt, top), strict=True):
        assert one.logprob == pytest.approx(right.logprob, abs=1e-6)
        assert [token for token, _ in one.top] == [token for token, _ in right.top]
        assert [value for _, value in one.top] == pytest.approx([value for _, value in right.top], abs=1e-6)
        assert one.rank == right.rank


def scores_of(events: Sequence[Event], request_id: str = "r") -> tuple[TokenLogprobs, ...] | None:
    """Return them; they come with the first event, and with no other."""
    mine = [event for event in events if isinstance(event, Tokens) and event.request_id == request_id]
    assert all(event.prompt_logprobs is None for event in mine[1:])
    return mine[0].prompt_logprobs


def engines() -> dict[str, EngineSetup]:
    return {
        "plain": setup_of(),
        "chunks": setup_of(max_step_tokens=16, chunks=Sizes([1, 5, 16])),
        "no cache": setup_of(prefix_cache=False),
        "drafts": setup_of(proposers=[SuffixProposer()]),
    }


@pytest.mark.parametrize("name", engines())
def test_they_equal_the_targets_own_and_change_no_token(name: str) -> None:
    setup = engines()[name]
    plain = outputs(run(build(setup), GenerateRequest("r", PROMPT, GREEDY)))
    engine = build(setup)
    engine.send(ApplyPlan(SpecPlan(fixed_depth=4)))
    for request_id in ("first", "cached"):  # the second finds the pages of the first
        beside = GenerateRequest(f"beside {request_id}", PROMPT[:9], replace(GREEDY, max_tokens=30))
        events = run(engine, beside, GenerateRequest(request_id, PROMPT, SCORED))
        check(scores_of(events, request_id))
        assert outputs(events)[request_id, 0] == plain["r", 0]
        assert scores_of(events, beside.request_id) is None


def test_a_cached_prefix_is_read_again_only_where_it_is_scored() -> None:
    engine = build(setup_of())
    run(engine, GenerateRequest("first", PROMPT, GREEDY))
    for params, cached in ((SCORED, 0), (GREEDY, 4 * PAGE_SIZE)):
        end = terminals(run(engine, GenerateRequest("r", PROMPT, params)))["r"]
        assert end.stats.num_cached_tokens == cached


@pytest.mark.parametrize("max_step_tokens", [16, 200])
@pytest.mark.parametrize("length", [1, 2, PAGE_SIZE, len(PROMPT)])
def test_nothing_is_generated_where_max_tokens_is_0(length: int, max_step_tokens: int) -> None:
    engine = build(setup_of(max_step_tokens=max_step_tokens, proposers=[SuffixProposer()]))
    events = run(engine, GenerateRequest("r", PROMPT[:length], replace(SCORED, max_tokens=0)))
    tokens, end = events
    assert isinstance(tokens, Tokens)
    assert isinstance(end, Finished)
    assert (tokens.token_ids, tokens.finish_reason, end.stats.num_output_tokens) == ((), "length", 0)
    check(tokens.prompt_logprobs, PROMPT[:length])
    [unscored, _] = run(engine, GenerateRequest("r", PROMPT[:length], replace(GREEDY, max_tokens=0)))
    assert isinstance(unscored, Tokens)
    assert unscored.prompt_logprobs is None


def test_a_preempted_prompt_goes_on_where_it_was() -> None:
    engine = build(setup_of(num_pages=8, max_model_len=192, max_step_tokens=16, proposers=[SuffixProposer()]))
    low = GenerateRequest("r", PROMPT, SCORED, priority=1)
    submit(engine, low)
    events = engine.step() + engine.step()
    submit(engine, *(GenerateRequest(str(i), PROMPT[i:], replace(GREEDY, max_tokens=40)) for i in range(3)))
    events += drain(engine)
    ended = terminals(events)["r"]
    assert ended.stats.num_preemptions > 0
    check(scores_of(events))


def test_a_step_scores_few_tokens_and_reads_others_beside_them() -> None:
    engine = build(setup_of(max_step_tokens=200, max_model_len=512, num_pages=128))
    scored = [GenerateRequest(str(i), PROMPT[i:], SCORED) for i in range(3)]
    submit(engine, *scored, GenerateRequest("plain", PROMPT[:9], GREEDY))
    events = list[Event]()
    for step in range(1, 6):
        events += engine.step()
        num_scored = sum(engine.scheduler.requests[str(i)].sequences[0].num_scored for i in range(3))
        assert 0 < num_scored <= 64 * step
    assert next(event.request_id for event in events) == "plain", "it waits for none of them"
    events += drain(engine)
    for i in range(3):
        check(scores_of(events, str(i)), PROMPT[i:])


def test_samples_share_the_scores_of_the_first() -> None:
    events = run(build(setup_of(max_sequences=2)), GenerateRequest("r", PROMPT, replace(SCORED, temperature=1.0), n=3))
    first = next(event for event in events if isinstance(event, Tokens))
    check(first.prompt_logprobs)
    assert len([event for event in events if isinstance(event, Tokens) and event.prompt_logprobs is not None]) == 1


def test_a_continued_request_has_them_once() -> None:
    source = GenerateRequest("r", PROMPT, SCORED)
    engine = build(setup_of())
    answer = serve(engine, source)["r"]
    for at in (0, 1, 5):
        continued = cut(source, engine.info.exact_group, answer, at)
        scores = scores_of(run(engine, continued), continued.request_id)
        check(scores) if at == 0 else None
        assert (scores is None) == (at > 0)


def test_the_whole_vocabulary_and_its_bound() -> None:
    engine = build(setup_of())
    short = GenerateRequest(
        "r", PROMPT[:5], replace(GREEDY, prompt_logprobs=WHOLE_VOCABULARY, logprobs=WHOLE_VOCABULARY)
    )
    events = run(engine, short)
    check(scores_of(events), PROMPT[:5], VOCAB)
    tokens = next(event for event in events if isinstance(event, Tokens))
    assert tokens.logprobs is not None
    assert sorted(token for token, _ in tokens.logprobs[0].top) == list(range(VOCAB))
    limit = MAX_LOGPROBS // VOCAB + 1
    long = replace(short, params=replace(GREEDY, logprobs=WHOLE_VOCABULARY, max_tokens=limit))
    with pytest.raises(InvalidParameter, match=f"{limit} places are {limit * VOCAB} values; allowed: {MAX_LOGPROBS}"):
        engine.validate(long)


def test_named_tokens_stand_in_place_of_the_likeliest() -> None:
    params = replace(GREEDY, logprobs=2, logprob_token_ids=(9, 4, 9, 17), max_tokens=1)
    tokens, _ = run(build(setup_of()), GenerateRequest("r", PROMPT, params))
    assert isinstance(tokens, Tokens)
    assert tokens.logprobs is not None
    values = torch.tensor(table_logits(PROMPT), dtype=torch.float64).log_softmax(0).tolist()
    order = sorted({4, 9, 17, tokens.token_ids[0]}, key=lambda token: -values[token])
    assert [token for token, _ in tokens.logprobs[0].top] == order
    assert [value for _, value in tokens.logprobs[0].top] == pytest.approx([values[token] for token in order], abs=1e-6)
    assert math.isclose(tokens.logprobs[0].logprob, max(values), abs_tol=1e-6)


@pytest.mark.parametrize(
    ("changes", "n", "param"),
    [
        ({"prompt_logprobs": 21}, 1, "prompt_logprobs"),
        ({"prompt_logprobs": -2}, 1, "prompt_logprobs"),
        ({"logprob_token_ids": (VOCAB,)}, 1, "logprob_token_ids"),
        ({"max_tokens": 0}, 2, "n"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, int], n: int, param: str) -> None:
    params = replace(GREEDY, **changes)  # type: ignore[arg-type]  # the parameters of this test
    with pytest.raises(InvalidParameter) as refused:
        build(setup_of()).validate(GenerateRequest("r", PROMPT, params, n=n))
    assert refused.value.param == param


def test_a_prompt_whose_logits_are_no_numbers_fails_alone() -> None:
    setup = setup_of(model=DamagedModel())
    sound = tuple(token for token in PROMPT if token != DAMAGED)[:20]
    forbidden = replace(SCORED, logit_bias=((DAMAGED, -100.0),))
    events = run(build(setup), GenerateRequest("r", (1, DAMAGED, 2), forbidden), GenerateRequest("s", sound, forbidden))
    ends = terminals(events)
    failed = ends["r"]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NotFinite)
    assert isinstance(ends["s"], Finished)


@pytest.mark.parametrize("depth", [0, 4])
def test_they_equal_those_of_transformers_in_float32(depth: int, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "llama", {"head_dim": 32})
    checkpoint = open_checkpoint(tmp_path, torch.float32)
    shape = LeanShape.from_config(checkpoint.config)
    model = LeanModel(checkpoint, shape, "tiny", torch.device("cpu"))
    loaded = LoadedModel(model, cast(ModelTokenizer, Letters()), "tiny", "tiny", "tiny")
    engine = assemble(CONFIG.model_copy(update={"proposers": ("suffix",)}), loaded)
    engine.send(ApplyPlan(SpecPlan(fixed_depth=depth)))
    prompt = tuple(3 + (11 * i) % 90 for i in range(100))
    with torch.no_grad():
        right = reference(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
    for request_id in ("first", "cached"):
        source = GenerateRequest(request_id, prompt, replace(SCORED, prompt_logprobs=0))
        scores = scores_of(run(engine, source, replace(source, request_id="beside", params=GREEDY)), request_id)
        assert scores is not None
        found = [one.logprob for one in scores]
        assert found == pytest.approx([float(right[i, token]) for i, token in enumerate(prompt[1:])], abs=1e-4)
