"""A request that continues in another engine gets the tokens that it would have got, wherever it was cut."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpecMode, SpeculationChoice
from prolepsis.engine.drafting.proposer import Proposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from tests.exact import test_grammar as constrained
from tests.exact.cuts import Answer, check_cuts, cut, serve
from tests.exact.serving import setup_of
from tests.exact.test_engine_equality import PARAMS, PROMPT, PROPOSERS, ask
from tests.fakes import build, drain, outputs, submit, terminals


@cache
def undisturbed(source: GenerateRequest) -> Answer:
    return serve(build(setup_of()), source)[source.request_id]


def everywhere(answer: Answer) -> list[tuple[int, ...]]:
    """Return all cuts in the answer's only sample, before its first token and before its last included."""
    return [(count,) for count in range(len(answer[0].tokens))]


@pytest.mark.parametrize("proposer", [None, *PROPOSERS])
@pytest.mark.parametrize("name", PARAMS)
def test_every_cut_with_every_proposer(name: str, proposer: str | None) -> None:
    source = ask(name)
    answer = undisturbed(source)
    engine = build(setup_of(proposers=[PROPOSERS[proposer]()] if proposer else []))
    cuts = everywhere(answer)[:: 5 if proposer else 1]
    check_cuts(engine, source, answer, cuts, SpecPlan(fixed_depth=3))


@pytest.mark.parametrize("mode", ["auto", "always", "shadow"])
def test_every_mode_of_speculation(mode: SpecMode) -> None:
    proposers: list[Proposer] = [SuffixProposer(), PromptLookupProposer(min_match=1)]
    for name in PARAMS:
        source = replace(ask(name), speculation=SpeculationChoice(mode))
        check_cuts(build(setup_of(proposers=proposers)), source, undisturbed(source), [(0,), (7,), (11,)])


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_preemption_short_chunks_and_prefix_hits(prefix_cache: bool) -> None:
    source = ask("sampled")
    answer = undisturbed(source)
    engine = build(
        setup_of(
            num_pages=8, max_model_len=128, max_step_tokens=16, prefix_cache=prefix_cache, proposers=[SuffixProposer()]
        )
    )
    check_cuts(engine, source, answer, everywhere(answer))


@pytest.mark.parametrize("num_pages", [64, 9])
@pytest.mark.parametrize("name", ["sampled", "ends", "text", "penalties"])
def test_samples_go_on_each_from_its_own_cut(name: str, num_pages: int) -> None:
    """Some have ended: they stay silent, whichever they are."""
    source = ask(name, n=3)
    answer = undisturbed(source)
    lengths = [len(answer[index].tokens) for index in range(3)]
    cuts = [at for at in product(*({0, length // 2, length} for length in lengths)) if list(at) != lengths]
    setup = setup_of(num_pages=num_pages, max_model_len=128, proposers=[SuffixProposer()])
    check_cuts(build(setup), source, answer, cuts)


def test_log_probabilities_go_on() -> None:
    source = GenerateRequest("r", PROMPT, SamplingParams(max_tokens=30, seed=4, logprobs=3, ignore_eos=True))
    answer = undisturbed(source)
    assert len(answer[0].logprobs) == 30
    check_cuts(build(setup_of(proposers=[SuffixProposer()])), source, answer, everywhere(answer))


class Bytes:
    """Tokens are letters and the single bytes of some characters."""

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        parts = {20: b"\xe2", 21: b"\x82", 22: b"\xac", 23: b"\xc3"}
        return b"".join(parts.get(token, bytes([ord("a") + token])) for token in token_ids).decode("utf-8", "replace")


def test_stop_strings_straddle_the_cut_also_inside_a_character() -> None:
    """The bias makes it a text of the three bytes of a euro sign, in any order."""
    bias = tuple((token, 20.0) for token in (20, 21, 22))
    params = SamplingParams(
        max_tokens=90, seed=8, ignore_eos=True, logit_bias=bias, stop=("never", "\u20ac"), min_tokens=12
    )
    setup = setup_of(detokenizer=Bytes())
    source = GenerateRequest("r", PROMPT, params)
    answer = serve(build(setup), source)["r"]
    assert answer[0].stop_reason == "\u20ac"
    assert answer[0].tokens[-3:] == (20, 21, 22)
    check_cuts(build(setup), source, answer, everywhere(answer))


@pytest.mark.parametrize("proposer", ["none", "all"])
@pytest.mark.parametrize("spec", constrained.SPECS)
def test_grammars_go_on_where_they_were(spec: str, proposer: str) -> None:
    for name in constrained.PARAMS:
        source = constrained.ask(spec, name)
        answer = serve(build(constrained.grammar_setup()), source)["r"]
        length = len(answer[0].tokens)
        cuts = [(count,) for count in range(length) if count < 8 or count % 5 == 0 or count >= length - 2]
        engine = build(constrained.grammar_setup(proposers=constrained.PROPOSERS[proposer]()))
        check_cuts(engine, source, answer, cuts)


def test_samples_under_a_grammar_go_on_each_from_its_own_cut() -> None:
    source = constrained.ask("record", "sampled", n=3)
    answer = serve(build(constrained.grammar_setup()), source)["r"]
    lengths = [len(answer[index].tokens) for index in range(3)]
    cuts = [at for at in product(*({0, 3, length - 1, length} for length in lengths)) if list(at) != lengths]
    engine = build(constrained.grammar_setup(proposers=constrained.PROPOSERS["all"]()))
    check_cuts(engine, source, answer, cuts)


def test_a_chain_of_engines_that_each_give_one_token() -> None:
    """Nothing is lost by being continued again and again."""
    source = ask("penalties")
    answer = undisturbed(source)
    emitted: list[int] = []
    while len(emitted) < len(answer[0].tokens):
        engine = build(setup_of())
        submit(engine, cut(source, engine.info.exact_group, answer, len(emitted)))
        while not (events := outputs(engine.step())):
            pass
        emitted += next(iter(events.values()))
    assert tuple(emitted) == answer[0].tokens


def test_figures_count_what_was_emitted_here_and_what_before() -> None:
    source = ask("greedy", n=2)
    answer = undisturbed(source)
    engine = build(setup_of())
    submit(engine, cut(source, engine.info.exact_group, answer, 5, 30))
    (end,) = terminals(drain(engine)).values()
    assert (end.stats.num_prompt_tokens, end.stats.num_output_tokens) == (45, 2 * 48 - 35)
    assert (end.stats.num_continued_tokens, end.stats.not_exact) == (35, ())
    submit(engine, cut(source, engine.info.exact_group, answer, 47, 48))
    (end,) = terminals(drain(engine)).values()
    assert end.stats.num_cached_tokens == 45, "of the prompt, although more was found"
