"""Drafts by the part of an answer: within a call or a form, and within text."""

from collections.abc import Sequence
from functools import cache

import pytest

from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine
from tests.engine.test_payback import Told
from tests.engine.text.grammar.tiny import few_tokens, grammars, text_of, token_id
from tests.exact.serving import setup_of
from tests.fake_proposer import Scripted
from tests.fakes import EngineSetup, build, drain, outputs, run, submit, terminals

TOKENIZER = few_tokens()
GRAMMARS = grammars(TOKENIZER)
CALLS = GrammarSpec(
    "lark",
    '%llguidance {}\nstart: (open body)* TEXT\nopen[lazy]: TEXT "["\nbody: /[01]{7}/ "]"\nTEXT: /(.|\\n)*/\n',
)
"""As of `tool_choice: auto`: any text, and from a mark on seven digits and the mark of the end."""
ON, OFF = SpeculationChoice(), SpeculationChoice("off", off_reason="rule_off")
Parts = tuple[SpeculationChoice, SpeculationChoice]


def _ask(inside: Parts | None, grammar: GrammarSpec | None = CALLS) -> GenerateRequest:
    bias = ((0, -100.0), (token_id(TOKENIZER, "["), 4.0))
    params = SamplingParams(max_tokens=80, seed=3, logit_bias=bias)
    return GenerateRequest("r", (3, 4, 5), params, grammar=grammar, speculation=SpeculationChoice(inside=inside))


@cache
def _plain(grammar: GrammarSpec | None) -> tuple[int, ...]:
    return tuple(outputs(run(build(_setup()), _ask(None, grammar)))["r", 0])


def _setup(*proposers: Scripted) -> EngineSetup:
    return setup_of(grammars=GRAMMARS, proposers=proposers)


def _knowing(drafted_at: list[int], grammar: GrammarSpec | None = CALLS, name: str = "scripted") -> Scripted:
    """Return a proposer that drafts what follows, and notes where."""

    def script(sequence: SequenceView, limit: int) -> Draft | None:
        done = len(sequence.tokens) - sequence.num_prompt_tokens
        drafted_at.append(done)
        right = _plain(grammar)[done : done + min(limit, 3)]
        return chain(right, name) if right else None

    return Scripted(script, name)


def _places_in_calls(tokens: Sequence[int]) -> set[int]:
    """Return the places of tokens that follow within a call: behind the mark and before its end."""
    text = [text_of(TOKENIZER, tokens[:place]) for place in range(len(tokens))]
    return {place for place, before in enumerate(text) if before.rfind("[") > before.rfind("]")}


def _stats(engine: Engine, source: GenerateRequest) -> RequestStats:
    events = run(engine, source)
    assert outputs(events)["r", 0] == list(_plain(source.grammar))
    return terminals(events)["r"].stats


@pytest.mark.parametrize("is_call", [True, False])
def test_drafts_are_made_only_in_the_part_that_is_on(is_call: bool) -> None:
    places: list[int] = []
    stats = _stats(build(_setup(_knowing(places))), _ask((ON, OFF) if is_call else (OFF, ON)))
    in_calls = _places_in_calls(_plain(CALLS))
    assert 10 < len(in_calls) < 70, "the answer has calls and text"
    assert places
    assert all((place in in_calls) == is_call for place in places)
    drafting, plain = ("call", "text") if is_call else ("text", "call")
    assert stats.inside[drafting]["accepted"] == stats.num_accepted > 5  # type: ignore[index]
    assert stats.inside[plain]["drafted"] == 0  # type: ignore[index]
    assert sum(counts["emitted"] for counts in stats.inside.values()) == 80
    assert stats.mode.reason == "speculating"


def test_each_part_has_proposers_and_a_ceiling_of_its_own() -> None:
    of_call: list[int] = []
    of_text: list[int] = []
    parts = SpeculationChoice(proposers=("a",), num_speculative_tokens=1), SpeculationChoice(proposers=("b",))
    stats = _stats(build(_setup(_knowing(of_call, name="a"), _knowing(of_text, name="b"))), _ask(parts))
    assert set(of_call) <= _places_in_calls(_plain(CALLS))
    assert not set(of_text) & _places_in_calls(_plain(CALLS))
    assert len(stats.proposers["a"].per_position) == 1 < len(stats.proposers["b"].per_position)


def test_a_part_that_is_off_throughout_is_the_reason_and_without_a_grammar_all_is_text() -> None:
    stats = _stats(build(_setup(_knowing([], None))), _ask((ON, OFF), None))
    assert (stats.num_drafts, stats.mode.reason) == (0, "rule_off")
    assert list(stats.inside) == ["text"]


def test_without_terms_by_part_nothing_is_asked_and_nothing_counted() -> None:
    engine = build(_setup(_knowing([])))
    submit(engine, _ask(None))
    engine.step()
    assert engine.scheduler.requests["r"].sequences[0].part is None
    assert not terminals(drain(engine))["r"].stats.inside


def test_a_part_in_which_drafts_do_not_pay_pauses_alone_and_states_are_kept_for_the_other() -> None:
    payback = Told(["r/0/call"])
    places: list[int] = []
    engine = build(_setup(_knowing(places)))
    proposers = engine.speculation.proposers
    engine.speculation = Speculation(proposers, max_step_tokens=64, max_model_len=256, payback=payback)
    submit(engine, _ask((ON, ON)))
    engine.step()
    (sequence,) = engine.scheduler.requests["r"].sequences
    assert sequence.part == "text"
    assert engine.speculation.decisions.may_draft(engine.plan.current, sequence, "scripted")
    drain(engine)
    assert {key for keys, _ in payback.begun for key in keys} == {"r/0/call", "r/0/text"}
    assert set(places) <= _places_in_calls(_plain(CALLS))
    assert payback.forgotten == ["r/0/call", "r/0/text"]


def test_a_head_takes_states_in_text_for_the_calls_that_it_drafts_in() -> None:
    engine = build(_setup(_knowing([], name="a"), _knowing([], name="b"), _knowing([], name="c")))
    submit(engine, _ask((SpeculationChoice(proposers=("a",)), SpeculationChoice(proposers=("b",)))))
    engine.step()
    (sequence,) = engine.scheduler.requests["r"].sequences
    may = [engine.speculation.decisions.may_draft(engine.plan.current, sequence, name) for name in "abc"]
    assert may == [True, True, False]
