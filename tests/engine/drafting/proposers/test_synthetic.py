"""Synthetic drafts are right as often as they are told to be, for answers that are known, and change none."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from prolepsis.adapters.vllm.start import check
from prolepsis.core.config import SYNTHETIC, EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.events import Finished
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams
from prolepsis.core.stats import ProposerCounts
from prolepsis.core.terminal.config import load_settings
from prolepsis.engine.build import proposer_names
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposers import synthetic
from prolepsis.engine.drafting.proposers.synthetic import SyntheticProposer
from tests.engine.drafting.sequences import VOCAB, FakeSequence, accepted
from tests.fakes import EngineSetup, build, drain, outputs, request, submit

PROMPT, ANSWER = [3, 1, 4], [(7 * i) % VOCAB for i in range(50)]
NUM_DRAFTS = 1000


def answered(
    rates: Sequence[float], answer: Sequence[int] = ANSWER, *, ended: FakeSequence | None = None
) -> SyntheticProposer:
    """Return a proposer that knows one answer."""
    proposer = SyntheticProposer(rates)
    proposer.forget(ended or FakeSequence([*PROMPT, *answer], len(PROMPT)))
    return proposer


def asked(
    proposer: SyntheticProposer, place: int = 0, limit: int = 4, sequence: FakeSequence | None = None
) -> Draft | None:
    sequence = sequence or FakeSequence([*PROMPT, *ANSWER[:place]], len(PROMPT))
    return proposer.propose([sequence], [limit])[0]


def is_likely(number: int, of: int, rate: float) -> bool:
    """Whether a count lies in the exact binomial interval of 99.9 %."""
    chances = [math.comb(of, i) * rate**i * (1.0 - rate) ** (of - i) for i in range(of + 1)]
    return sum(chances[: number + 1]) > 5e-4 and sum(chances[number:]) > 5e-4


@pytest.mark.parametrize("rates", [(0.8, 0.6, 0.4), (0.7,)])
def test_each_place_is_right_as_often_as_it_should_be(rates: tuple[float, ...]) -> None:
    proposer = answered(rates)
    drafts = [asked(proposer, limit=3) for _ in range(NUM_DRAFTS)]
    lengths = [len(accepted(draft, ANSWER)) for draft in drafts if draft is not None]
    for place, rate in enumerate(rates * 3 if len(rates) == 1 else rates):
        reached, right = (sum(length >= least for length in lengths) for least in (place, place + 1))
        assert is_likely(right, reached, rate), (place, right, reached)
    assert len(lengths) == NUM_DRAFTS


def test_the_interval_excludes_other_rates() -> None:
    assert not is_likely(700, 1000, 0.8)


def test_a_draft_is_as_deep_as_there_are_rates_and_says_what_it_expects() -> None:
    several, one = asked(answered((0.5, 0.5))), asked(answered((0.5,)))
    assert several is not None
    assert one is not None
    assert (len(several.tokens), several.survival, several.fault(VOCAB, 4)) == (2, (0.5, 0.25), None)
    assert (len(one.tokens), one.fault(VOCAB, 4)) == (4, None)
    assert several.proposer == SYNTHETIC


@pytest.mark.parametrize("right", [0, 1, VOCAB - 1])
def test_a_wrong_token_is_another_one_of_the_vocabulary(right: int) -> None:
    draft = asked(answered((0.0,), [right]))
    assert draft is not None
    assert draft.tokens[0] != right
    assert draft.fault(VOCAB, 4) is None


def test_nothing_is_drafted_where_the_answer_is_not_known() -> None:
    known = FakeSequence(PROMPT.copy(), len(PROMPT))
    proposer = answered((1.0,))
    assert asked(proposer, sequence=known) is not None
    assert asked(proposer, sequence=replace(known, tokens=[1, 2, 3])) is None
    assert asked(proposer, sequence=replace(known, tenant="other")) is None
    assert asked(proposer, sequence=replace(known, tokens=[*PROMPT, ANSWER[0] + 1])) is None
    assert asked(proposer, place=len(ANSWER)) is None
    sampled = replace(known, params=SamplingParams(temperature=1.0), noise_key=5)
    assert asked(proposer, sequence=sampled) is None


def test_another_cache_salt_knows_the_answer_and_a_sampled_one_needs_the_seed() -> None:
    known = FakeSequence(PROMPT.copy(), len(PROMPT))
    assert asked(answered((1.0,)), sequence=replace(known, cache_salt="other")) is not None
    sampled = replace(known, params=SamplingParams(temperature=1.0), noise_key=5)
    proposer = answered((1.0,), ended=replace(sampled, tokens=[*PROMPT, *ANSWER]))
    assert asked(proposer, sequence=sampled) is not None
    assert asked(proposer, sequence=replace(sampled, noise_key=6)) is None


def test_a_longer_answer_is_kept_and_another_one_replaces_it() -> None:
    proposer = answered((1.0,))
    proposer.forget(FakeSequence([*PROMPT, *ANSWER[:3]], len(PROMPT)))
    assert asked(proposer, place=5) is not None
    proposer.forget(FakeSequence([*PROMPT, 99, 98], len(PROMPT)))
    draft = asked(proposer)
    assert draft is not None
    assert draft.tokens == (99, 98)


def test_so_many_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "MOST_ANSWERS", 2)
    proposer = SyntheticProposer((1.0,))
    for prompt in range(3):
        proposer.forget(FakeSequence([prompt, 5], 1))
    drafts = [asked(proposer, sequence=FakeSequence([prompt], 1)) for prompt in range(3)]
    assert [draft is not None for draft in drafts] == [False, True, True]


def test_the_engine_accepts_them_at_the_rates_and_says_the_same() -> None:
    rates = (0.8, 0.6, 0.4)
    engine = build(EngineSetup(proposers=[SyntheticProposer(rates)], num_pages=128))
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    asked_for = [request(f"plain {i}", [1 + i, 2, 3], params) for i in range(6)]
    submit(engine, *asked_for)
    plain = drain(engine)
    engine.send(ApplyPlan(SpecPlan(1, num_speculative_tokens=3, fixed_depth=3)))
    submit(engine, *(replace(one, request_id=one.request_id.replace("plain", "drafted")) for one in asked_for))
    drafted = drain(engine)
    assert list(outputs(plain).values()) == list(outputs(drafted).values())
    counts = ProposerCounts()
    for event in drafted:
        if isinstance(event, Finished):
            counts.add(event.stats.proposers[SYNTHETIC])
    assert counts.num_drafts > 400
    (drafts, first), *_ = counts.per_position
    assert is_likely(first, drafts, rates[0])
    assert not any(event.stats.proposers for event in plain if isinstance(event, Finished))


def test_it_is_refused_without_rates() -> None:
    with pytest.raises(ConfigError, match="synthetic is not set"):
        proposer_names(EngineConfig(proposers=(SYNTHETIC,)))


def test_it_drafts_alone() -> None:
    config = EngineConfig(synthetic=(0.7,), draft_model="some")
    assert proposer_names(config) == (SYNTHETIC,)
    assert proposer_names(config.model_copy(update={"num_speculative_tokens": 0})) == ()


def test_rates_are_read_from_a_flag(tmp_path: Path) -> None:
    assert load_settings({"synthetic": "0.8,0.6"}, {}, directory=tmp_path).engine.synthetic == (0.8, 0.6)
    with pytest.raises(ConfigError, match="--synthetic"):
        load_settings({"synthetic": "0.8,1.2"}, {}, directory=tmp_path)
    with pytest.raises(ValidationError):
        EngineConfig(synthetic=(float("nan"),))


def test_with_vllm_its_own_switch_is_refused_by_the_name_of_ours() -> None:
    check(EngineConfig(engine="vllm", synthetic=(0.7,)))
    with pytest.raises(ConfigError, match="allowed: synthetic"):
        check(EngineConfig(engine="vllm", vllm_args='{"speculative_config": {"rejection_sample_method": "synthetic"}}'))
