"""With a grammar: same seed, same tokens, whatever proposes; every answer in the language; one request fails alone.

The yardstick decodes with the target's table, the keyed noise and a fresh matcher for every token, and nothing else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.errors import GrammarFailed, InvalidGrammar
from prolepsis.core.events import Failed, Finished, Tokens
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.draft_model import DraftModelProposer
from prolepsis.engine.drafting.proposers.expected_text import PredictionProposer
from prolepsis.engine.drafting.proposers.grammar import GrammarProposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.protocol import TargetModel
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.sampling.processors import LogitBias, TokenHistory
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow
from prolepsis.engine.text.grammar.closed import closed
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import CompiledGrammar, Matcher
from prolepsis.engine.text.grammar.relaxed import relaxed
from tests.engine.models.tiny import save_tiny
from tests.engine.text.grammar.tiny import RECORD, few_tokens, grammars, json_schema, text_of
from tests.exact.serving import flawed, serve
from tests.exact.serving import setup_of as unconstrained
from tests.fake_proposer import Scripted
from tests.fakes import EOS, VOCAB, EngineSetup, TableModel, build, drain, outputs, submit, table_logits, terminals

TOKENIZER = few_tokens()
assert TOKENIZER.get_vocab_size() == VOCAB
GRAMMARS = grammars(TOKENIZER, max_compiled=64)
SAMPLER = Sampler(VOCAB, (EOS,))
PROMPT = tuple((7 * i) % VOCAB for i in range(45))
INVENTED: dict[str, object] = {"type": "object", "additionalProperties": {"enum": [0, 1]}, "maxProperties": 2}
DEPENDENT: dict[str, object] = {
    "type": "object",
    "properties": {"a": {"oneOf": [{"enum": [0, 1]}, {"enum": [1, 10]}]}, "b": {"enum": ["a", "b"]}, "ab": INVENTED},
    "dependentRequired": {"a": ["b"]},
}
SPECS = {
    "record": json_schema(RECORD),
    "relaxed": json_schema(closed(relaxed(DEPENDENT).schema)),
    "regex": GrammarSpec("regex", "(ab|0)*1{2,9}"),
    "choice": GrammarSpec("choice", '["ab", "aba", "a0", "01ab"]'),
    "lark": GrammarSpec("lark", 'start: "a" start "b" | "0"'),
}
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=90),
    "sampled": SamplingParams(max_tokens=90, seed=11),
    "truncated": SamplingParams(temperature=0.8, top_k=9, top_p=0.9, min_p=0.02, max_tokens=90, seed=5),
    "penalties": SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.6, max_tokens=90, seed=2),
    "ignored ends": SamplingParams(max_tokens=90, seed=4, ignore_eos=True),
    "at least": SamplingParams(max_tokens=90, seed=6, min_tokens=12),
    "biased": SamplingParams(max_tokens=90, seed=9, logit_bias=((EOS, 5.0), (3, -2.0))),
    "stops": SamplingParams(max_tokens=90, seed=3, stop_token_ids=(11,)),
}
PARTS = {
    "off": SpeculationChoice("off"),
    "any": SpeculationChoice(),
    "always": SpeculationChoice("always", num_speculative_tokens=2, proposers=("grammar",)),
}
CASES = [(spec, name) for spec in SPECS for name in PARAMS]


def ask(spec: str, name: str, request_id: str = "r", n: int = 1) -> GenerateRequest:
    return GenerateRequest(request_id, PROMPT, PARAMS[name], n=n, grammar=SPECS[spec])


def reference(source: GenerateRequest, index: int = 0) -> list[int]:
    """Decode one sequence token by token; the mask of each comes from a matcher made for it alone."""
    assert source.grammar is not None
    params, key = source.params, noise_key(source.params.seed, index)
    grammar, output = GRAMMARS.compile(source.grammar), list[int]()
    history = TokenHistory(source.prompt_token_ids)
    ends = SAMPLER.ends(params)
    while len(output) < params.max_tokens:
        matcher = grammar.matcher(ignore_eos=params.ignore_eos)
        matcher.advance(output)
        if matcher.is_over():
            break
        logits = torch.tensor([table_logits([*source.prompt_token_ids, *output])])
        row = SamplingRow(params, key, len(output), history, (), matcher.mask(), LogitBias.of(params))
        (token,) = SAMPLER.pick(logits, [row])
        output.append(token)
        history.append([token])
        if token in ends and len(output) >= params.min_tokens:
            break
    return output


@cache
def plain_texts() -> dict[tuple[str, str], list[int]]:
    """Return what plain decoding answers under each grammar to each set of parameters."""
    return {case: reference(ask(*case)) for case in CASES}


def grammar_setup(**changes: object) -> EngineSetup:
    return unconstrained(grammars=GRAMMARS, **changes)


def oracle(kind: str) -> Scripted:
    """Propose, knowing the plain output: right, wrong from the third token on, or in branches; past its end, too."""

    def script(sequence: SequenceView, limit: int) -> Draft | None:
        case = next(
            case for case in CASES if PARAMS[case[1]] == sequence.params and sequence.key.startswith(f"{case[0]}:")
        )
        done = len(sequence.tokens) - sequence.num_prompt_tokens
        right = [*plain_texts()[case], EOS, 1, 2][done : done + limit]
        return flawed(kind, right, limit)

    return Scripted(script)


PROPOSERS: dict[str, Callable[[], Sequence[Proposer]]] = {
    "none": lambda: [],
    "right": lambda: [oracle("right")],
    "wrong": lambda: [oracle("wrong")],
    "tree": lambda: [oracle("tree")],
    "grammar": lambda: [GrammarProposer()],
    "suffix": lambda: [SuffixProposer()],
    "prompt_lookup": lambda: [PromptLookupProposer(min_match=1)],
    "all": lambda: [GrammarProposer(), SuffixProposer(), PromptLookupProposer(min_match=1), PredictionProposer()],
}


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("spec", SPECS)
def test_every_proposer_at_every_depth(spec: str, proposer: str) -> None:
    """Fixed depths in company, with room in each pass for all drafts; alone where the depth is found."""
    sources = {name: ask(spec, name, f"{spec}:{name}") for name in PARAMS}
    expected = {(source.request_id, 0): plain_texts()[spec, name] for name, source in sources.items()}
    for depth in (1, 3, 9):
        setup = grammar_setup(max_step_tokens=128, proposers=PROPOSERS[proposer]())
        assert serve(setup, SpecPlan(fixed_depth=depth), *sources.values()) == expected
    for source in sources.values():
        found = serve(grammar_setup(proposers=PROPOSERS[proposer]()), SpecPlan(), source)
        assert found[source.request_id, 0] == expected[source.request_id, 0]


@pytest.mark.parametrize("text", PARTS)
@pytest.mark.parametrize("call", PARTS)
def test_terms_by_part_of_the_answer_change_no_token(call: str, text: str) -> None:
    choice = SpeculationChoice(inside=(PARTS[call], PARTS[text]))
    sources = [replace(ask(*case, ":".join(case)), speculation=choice) for case in CASES]
    setup = grammar_setup(max_step_tokens=128, proposers=[oracle("wrong"), GrammarProposer()])
    found = serve(setup, SpecPlan(), *sources)
    assert {case: found[":".join(case), 0] for case in CASES} == plain_texts()


@dataclass(frozen=True)
class FewTokens:
    """What a draft model compares of tokenizers."""

    fingerprint: str = "few"
    vocab: Mapping[str, int] = field(default_factory=TOKENIZER.get_vocab)


@pytest.fixture(scope="module")
def draft_targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TargetModel]:
    """A random llama, which knows nothing of the target, and the target's own table."""
    folder = tmp_path_factory.mktemp("llama")
    save_tiny(folder, "llama", {"vocab_size": VOCAB})
    checkpoint = open_checkpoint(folder, torch.float32)
    llama = LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "draft", torch.device("cpu"))
    return {"random": llama, "table": TableModel()}


@pytest.mark.parametrize("beside", [(), (GrammarProposer,)])
@pytest.mark.parametrize("kind", ["random", "table"])
def test_a_draft_model_knows_no_grammar_and_changes_nothing(
    draft_targets: dict[str, TargetModel], kind: str, beside: tuple[Callable[[], Proposer], ...]
) -> None:
    for plan in (SpecPlan(fixed_depth=4), SpecPlan()):
        drafting = DraftModelProposer(draft_targets[kind], FewTokens(), FewTokens(), num_pages=40)
        engine = build(grammar_setup(proposers=[drafting, *(make() for make in beside)]))
        engine.send(ApplyPlan(plan))
        submit(engine, *(ask(spec, name, f"{spec}:{name}") for spec, name in CASES))
        events = drain(engine)
        found = outputs(events)
        assert {(spec, name): found[f"{spec}:{name}", 0] for spec, name in CASES} == plain_texts()
        assert engine.speculation.proposers.failures["draft_model"] == 0
        if plan.fixed_depth:
            assert engine.speculation.proposers.counts["draft_model"].num_accepted > 0


def is_valid(spec: str, text: str) -> bool:
    if SPECS[spec].kind == "json_schema":
        jsonschema.validate(json.loads(text), json.loads(SPECS[spec].source))
        return True
    if spec == "choice":
        return text in json.loads(SPECS[spec].source)
    depth = text.count("a")
    return text == "a" * depth + "0" + "b" * depth


def test_answers_are_in_the_language_and_end_by_themselves() -> None:
    cases = {f"{spec}:{name}": (spec, name) for spec, name in CASES if spec != "regex" and name != "stops"}
    engine = build(grammar_setup(proposers=PROPOSERS["all"]()))
    submit(engine, *(ask(*case, request_id) for request_id, case in cases.items()))
    last = {event.request_id: event for event in drain(engine) if isinstance(event, Tokens)}
    for request_id, (spec, name) in cases.items():
        if last[request_id].finish_reason == "stop":
            assert is_valid(spec, text_of(TOKENIZER, plain_texts()[spec, name]))
        else:
            assert (spec, last[request_id].finish_reason) == ("lark", "length")  # a^n may continue for ever
    assert sum(event.finish_reason == "stop" for event in last.values()) >= 15


def test_drafts_help_and_those_outside_the_grammar_are_not_counted() -> None:
    engine = build(grammar_setup(proposers=[GrammarProposer()]))
    submit(engine, ask("record", "sampled"))
    (end,) = terminals(drain(engine)).values()
    assert end.stats.num_steps <= 0.8 * end.stats.num_output_tokens
    assert end.stats.num_accepted >= 10
    assert end.stats.num_accepted >= 0.9 * end.stats.num_draft_tokens
    outside = Scripted(lambda sequence, limit: chain((EOS,) * min(limit, 1), "scripted"))
    engine = build(grammar_setup(proposers=[outside]))
    submit(engine, ask("record", "sampled"))
    (end,) = terminals(drain(engine)).values()
    assert end.stats.num_draft_tokens == 0


def test_neighbours_with_and_without_a_grammar_preemption_and_short_chunks() -> None:
    sources = [ask(spec, name, f"{spec}:{name}") for spec, name in CASES]
    sources += [GenerateRequest(f"free {i}", (i, 1, 2), SamplingParams(max_tokens=30, seed=i)) for i in range(4)]
    roomy = serve(grammar_setup(), SpecPlan(num_speculative_tokens=0), *sources)
    engine = build(grammar_setup(max_sequences=3, max_step_tokens=24, proposers=PROPOSERS["all"]()))
    late = [source for source in sources if source.request_id.startswith(("free", "lark"))]
    submit(engine, *(replace(source, priority=1) for source in sources if source not in late))
    events = []
    while late:
        events += engine.step()
        if engine.timings.num_steps % 6 == 0:
            submit(engine, late.pop())
    events += drain(engine)
    assert outputs(events) == roomy
    assert sum(end.stats.num_preemptions for end in terminals(events).values()) > 0
    for spec, name in CASES:
        assert roomy[f"{spec}:{name}", 0] == plain_texts()[spec, name]


@pytest.mark.parametrize("num_pages", [64, 9])
def test_sequences_of_one_request_have_a_matcher_each(num_pages: int) -> None:
    for spec in SPECS:
        source = ask(spec, "sampled", f"{spec}:sampled", n=4)
        setup = grammar_setup(num_pages=num_pages, max_model_len=160, proposers=PROPOSERS["all"]())
        found = serve(setup, SpecPlan(), source)
        assert [found[source.request_id, i] for i in range(4)] == [reference(source, i) for i in range(4)]


def test_stop_strings_end_an_answer_before_the_grammar_does() -> None:
    plain = plain_texts()["record", "sampled"]
    params = replace(PARAMS["sampled"], stop=("".join(chr(ord("a") + t) for t in plain[4:6]),))
    source = GenerateRequest("r", PROMPT, params, grammar=SPECS["record"])
    found = [serve(grammar_setup(proposers=PROPOSERS[p]()), SpecPlan(), source)["r", 0] for p in ("none", "all")]
    assert found[0] == found[1]
    assert len(found[0]) < len(plain)
    assert found[0] == plain[: len(found[0])]


@pytest.mark.parametrize("name", ["sampled", "ignored ends", "at least"])
def test_a_grammar_that_can_only_stop_ends_the_sample(name: str) -> None:
    for spec, length in (("choice", 4), ("lark", 90)):
        engine = build(grammar_setup())
        submit(engine, ask(spec, name))
        events = [event for event in drain(engine) if isinstance(event, Tokens)]
        assert len(outputs(events)["r", 0]) <= length
        if len(outputs(events)["r", 0]) < length:
            assert (events[-1].finish_reason, events[-1].stop_reason) == ("stop", None)


def test_end_of_sequence_only_where_the_answer_is_whole() -> None:
    eager = SamplingParams(temperature=0.0, max_tokens=40, logit_bias=((EOS, 100.0),))
    source = GenerateRequest("r", PROMPT, eager, grammar=GrammarSpec("regex", "(ab|0){3,6}1*"))
    found = serve(grammar_setup(proposers=PROPOSERS["all"]()), SpecPlan(), source)["r", 0]
    assert found[-1] == EOS
    text = text_of(TOKENIZER, found)
    assert text.replace("ab", "0") == "000"
    patient = replace(eager, min_tokens=9)
    found = serve(grammar_setup(), SpecPlan(), replace(source, params=patient))["r", 0]
    assert len(found) >= 9
    assert found[-1] == EOS


@given(
    schema=st.recursive(
        st.sampled_from([{"enum": [0, 1, 10]}, {"enum": ["a", "ba"]}, {"type": "string", "pattern": "^[ab]{0,3}$"}]),
        lambda inner: st.builds(lambda items, size: {"type": "array", "items": items, "maxItems": size}, inner,
                                st.integers(0, 3))
        | st.builds(
            lambda members: {
                "type": "object",
                "properties": members,
                "required": sorted(members)[:1],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "b", "ab", "a0"]), inner, max_size=3),
        ),
        max_leaves=5,
    ),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_any_schema_gives_valid_equal_answers(schema: dict[str, object], seed: int) -> None:
    params = SamplingParams(max_tokens=400, seed=seed)
    source = GenerateRequest("r", (1, 2, 3), params, grammar=json_schema(schema))
    setup = {"num_pages": 32, "max_model_len": 512}
    plain = serve(grammar_setup(**setup), SpecPlan(), source)["r", 0]
    assert serve(grammar_setup(**setup, proposers=PROPOSERS["all"]()), SpecPlan(), source)["r", 0] == plain
    assert len(plain) < 400
    jsonschema.validate(json.loads(text_of(TOKENIZER, plain)), schema)


class Fragile(Grammars):
    """Its matchers give up after some tokens: when asked for a mask, or when told what was emitted."""

    def __init__(self, after: int, where: str) -> None:
        super().__init__(TOKENIZER.to_str, VOCAB, (EOS,))
        self._after, self._where = after, where

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        compiled, after, where = super().compile(spec), self._after, self._where

        class Breaking(Matcher):
            seen = 0

            def mask(self, path: Sequence[int] = ()) -> "np.typing.NDArray[np.bool_]":
                if where == "mask" and self.seen + len(path) >= after:
                    raise RuntimeError("lexer too complex")
                return super().mask(path)

            def advance(self, tokens: Sequence[int]) -> None:
                self.seen += len(tokens)
                if where == "advance" and self.seen >= after:
                    raise GrammarFailed("lexer too complex")
                super().advance(tokens)

        class Wrapped(CompiledGrammar):
            def matcher(self, *, ignore_eos: bool = False) -> Matcher:
                return Breaking(self, ignore_eos=ignore_eos)

        return Wrapped(lambda: compiled.start, VOCAB, (EOS,))


@pytest.mark.parametrize("where", ["mask", "advance"])
@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("n", [1, 3])
def test_a_matcher_that_fails_takes_only_its_request_with_it(where: str, after: int, n: int) -> None:
    setup = grammar_setup(proposers=PROPOSERS["all"]())
    setup.grammars = Fragile(after, where)
    engine = build(setup)
    free = GenerateRequest("free", (1, 2), SamplingParams(max_tokens=30, seed=1, ignore_eos=True))
    submit(engine, replace(ask("record", "sampled", "broken"), n=n), free)
    ends = terminals(drain(engine))
    assert isinstance(ends["free"], Finished)
    failed = ends["broken"]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, GrammarFailed)
    says = "lexer too complex" if where == "advance" else "could not be followed"
    assert says in str(failed.error), "what is not the grammar's own message has words of the inside"
    assert engine.scheduler.kv_usage == 0
    submit(engine, GenerateRequest("next", (1, 2), SamplingParams(max_tokens=3)))
    assert isinstance(terminals(drain(engine))["next"], Finished)


@pytest.mark.parametrize("proposer", ["right", "tree", "all"])
def test_what_comes_before_a_grammar_gives_up_is_the_same(proposer: str) -> None:
    def emitted(proposers: Sequence[Proposer], after: int) -> list[int]:
        setup = grammar_setup(proposers=proposers)
        setup.grammars = Fragile(after, "mask")
        engine = build(setup)
        engine.send(ApplyPlan(SpecPlan(fixed_depth=9)))
        submit(engine, ask("record", "sampled", "record:sampled"))
        events = drain(engine)
        assert isinstance(events[-1], Failed)
        return outputs(events).get(("record:sampled", 0), [])

    for after in range(1, 12):
        plain = emitted([], after)
        assert len(plain) == after
        assert emitted(PROPOSERS[proposer](), after) == plain


def test_an_invalid_grammar_is_refused_even_by_who_did_not_compile_it_before() -> None:
    engine = build(grammar_setup())
    submit(engine, GenerateRequest("r", (1,), SamplingParams(), grammar=GrammarSpec("regex", "(")))
    end = terminals(drain(engine))["r"]
    assert isinstance(end, Failed)
    assert isinstance(end.error, InvalidGrammar)
    unable = grammar_setup()
    unable.grammars = None
    engine = build(unable)
    submit(engine, ask("choice", "greedy"))
    end = terminals(drain(engine))["r"]
    assert isinstance(end, Failed)
    assert "no tokenizer" in str(end.error)
