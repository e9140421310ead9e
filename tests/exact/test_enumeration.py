"""Losslessness by enumeration: every draft, every outcome, every sampling parameter, on vocabularies of 3 to 5 tokens.

Three links make the chain of proof:
1. `Sampler.probabilities` equals an independent brute force for every parameter, to 1e-12;
2. with each pick replaced by a branch over all tokens weighted by these probabilities, `verify` emits sequences whose
   distribution equals plain decoding's to 1e-12, for every draft;
3. a pick is the keyed draw from these probabilities (chi-square), and the same draw whoever asks: for every key, the
   tokens with speculation equal those without.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import settings

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import ROOT, Draft, chain
from prolepsis.engine.drafting.verify import verify
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.sampling.processors import LogitBias, TokenHistory
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow
from tests.engine.sampling import brute_force
from tests.exact.table_model import TableModel, TableSequence, decode_plainly, decode_speculatively

EOS = 0
PROMPT = (1, 2, 1)
Tokens = tuple[int, ...]

SINGLE = {
    "greedy": SamplingParams(temperature=0.0),
    "default": SamplingParams(),
    "cold": SamplingParams(temperature=0.6),
    "hot": SamplingParams(temperature=1.7),
    "top_k": SamplingParams(top_k=2),
    "top_p": SamplingParams(top_p=0.7),
    "min_p": SamplingParams(min_p=0.3),
    "repetition": SamplingParams(repetition_penalty=1.5),
    "presence": SamplingParams(presence_penalty=1.2),
    "frequency": SamplingParams(frequency_penalty=0.8),
    "logit_bias": SamplingParams(logit_bias=((1, 1.5), (2, -1.0))),
    "allowed_tokens": SamplingParams(allowed_token_ids=(0, 2), temperature=0.9),
    "min_tokens": SamplingParams(min_tokens=3),
    "stop_ids": SamplingParams(stop_token_ids=(2,)),
    "ignore_eos": SamplingParams(ignore_eos=True),
}
COMBINED = {
    "all": SamplingParams(
        temperature=0.8,
        top_k=3,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias=((1, 0.7),),
        min_tokens=2,
        stop_token_ids=(2,),
    ),
    "greedy_penalties": SamplingParams(temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.9, min_tokens=2),
    "negative_penalties": SamplingParams(repetition_penalty=0.7, presence_penalty=-0.8, frequency_penalty=-0.5),
    "truncations": SamplingParams(temperature=1.3, top_k=2, top_p=0.6, min_p=0.2),
}
GRID = SINGLE | COMBINED


def with_length(params: SamplingParams, length: int) -> SamplingParams:
    return replace(params, max_tokens=length)


def every_draft(vocab_size: int, max_nodes: int) -> Iterator[Draft]:
    """Every chain and tree of up to `max_nodes` nodes with every choice of tokens."""
    for size in range(1, max_nodes + 1):
        for parents in itertools.product(*(range(ROOT, i) for i in range(size))):
            for tokens in itertools.product(range(vocab_size), repeat=size):
                draft = Draft(tokens, parents, "enumerated")
                if draft.fault(vocab_size, max_nodes) is None:
                    yield draft


def test_the_enumeration_of_drafts_is_complete() -> None:
    # 3 nodes over 2 tokens by hand: a chain has 8, a fork below node 0 has 4, two children of the root with one child
    # below either have 4 in each of the three orders, three children of the root have 0
    assert len([d for d in every_draft(2, 3) if len(d.tokens) == 3]) == 8 + 4 + 3 * 4


# 1. probabilities against brute force


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("name", GRID)
def test_probabilities_of_every_row_of_a_draft_equal_brute_force(name: str, native: bool) -> None:
    params, vocab_size = GRID[name], 4
    model, sampler = TableModel(vocab_size, 1), Sampler(vocab_size, (EOS,), native=native)
    bias = LogitBias.of(params)
    for committed, prefix in itertools.product([(), (2,), (1, 1)], [(), (3,), (1, 1), (1, 2, 1)]):
        history = TokenHistory(PROMPT)
        history.append(committed)
        logits = model.logits((*PROMPT, *committed, *prefix))
        row = SamplingRow(params, 0, len(committed) + len(prefix), history, prefix, bias=bias)
        got = sampler.probabilities(logits[None], [row])[0].tolist()
        output = committed + prefix
        want = brute_force.distribution(logits.tolist(), params, PROMPT, output, sampler.ends(params))
        assert max(abs(a - b) for a, b in zip(got, want, strict=True)) < 1e-12


# 2. the distribution of emitted sequences


class Outcomes:
    """Runs a function once for every sequence of outcomes of its random choices, with its exact probability."""

    def __init__(self) -> None:
        self._script: list[int] = []
        self._taken: list[tuple[int, list[float]]] = []

    def choose(self, probabilities: list[float]) -> int:
        place = len(self._taken)
        possible = [token for token, p in enumerate(probabilities) if p > 0.0]
        choice = self._script[place] if place < len(self._script) else possible[0]
        self._taken.append((choice, probabilities))
        return choice

    def run(self, function: Callable[[], Tokens]) -> dict[Tokens, float]:
        total: dict[Tokens, float] = {}
        while True:
            self._taken = []
            result = function()
            total[result] = total.get(result, 0.0) + math.prod(p[choice] for choice, p in self._taken)
            while self._taken:
                choice, probabilities = self._taken.pop()
                later = [token for token in range(choice + 1, len(probabilities)) if probabilities[token] > 0.0]
                if later:
                    self._script = [*(taken for taken, _ in self._taken), later[0]]
                    break
            else:
                return total


class Case:
    """One model and one set of parameters; probabilities by brute force, remembered by output so far."""

    def __init__(self, params: SamplingParams, vocab_size: int, length: int) -> None:
        self.params, self.length = params, length
        self.model, self.sampler = TableModel(vocab_size, 2), Sampler(vocab_size, (EOS,))
        self.ends = self.sampler.ends(params)
        self._rows: dict[Tokens, list[float]] = {}

    def probabilities(self, output: Tokens) -> list[float]:
        if output not in self._rows:
            logits = self.model.logits((*PROMPT, *output)).tolist()
            self._rows[output] = brute_force.distribution(logits, self.params, PROMPT, output, self.ends)
        return self._rows[output]

    def plain(self) -> dict[Tokens, float]:
        """Return the distribution of outputs as the product of the target's own conditionals."""
        done: dict[Tokens, float] = {}
        open_: dict[Tokens, float] = {(): 1.0}
        while open_:
            output, mass = open_.popitem()
            if len(output) == self.length or (output and output[-1] in self.ends):
                done[output] = mass
                continue
            for token, p in enumerate(self.probabilities(output)):
                if p > 0.0:
                    open_[*output, token] = mass * p
        return done

    def speculated(self, drafter: Callable[[Tokens], Draft | None]) -> dict[Tokens, float]:
        """Return the distribution of outputs of verification, over every outcome of every pick."""
        outcomes = Outcomes()

        def decode() -> Tokens:
            output: Tokens = ()
            while len(output) < self.length and not (output and output[-1] in self.ends):
                draft, committed = drafter(output), output

                def pick(node: int, draft: Draft | None = draft, committed: Tokens = committed) -> int:
                    return outcomes.choose(self.probabilities(committed + ancestors(draft, node)))

                output += verify(draft, pick, self.ends, self.length - len(output)).tokens
            return output

        return outcomes.run(decode)


def ancestors(draft: Draft | None, node: int) -> Tokens:
    if draft is None or node == ROOT:
        return ()
    return (*ancestors(draft, draft.parents[node]), draft.tokens[node])


def assert_same_distribution(got: dict[Tokens, float], want: dict[Tokens, float]) -> None:
    assert math.fsum(got.values()) == pytest.approx(1.0, abs=1e-12)
    assert max(abs(got.get(output, 0.0) - want.get(output, 0.0)) for output in got.keys() | want.keys()) < 1e-12


@pytest.mark.parametrize("name", ["default", "all"])
def test_output_distribution_is_the_targets_for_every_draft(name: str) -> None:
    case = Case(GRID[name], vocab_size=3, length=3)
    want = case.plain()
    for draft in every_draft(3, 3):
        assert_same_distribution(case.speculated(always(draft)), want)


def always(draft: Draft) -> Callable[[Tokens], Draft]:
    return lambda output: draft


def likeliest_chain(case: Case) -> Callable[[Tokens], Draft]:
    def draft(output: Tokens) -> Draft:
        tokens: Tokens = ()
        for _ in range(3):
            row = case.probabilities(output + tokens)
            tokens += (row.index(max(row)),)
        return chain(tokens, "likeliest")

    return draft


def unlikeliest_chain(case: Case) -> Callable[[Tokens], Draft]:
    def draft(output: Tokens) -> Draft:
        row = case.probabilities(output)
        return chain((row.index(min(row)),) * 3, "unlikeliest")

    return draft


def full_tree(case: Case) -> Callable[[Tokens], Draft]:
    vocabulary = range(case.model.vocab_size)
    first = [(token, ROOT) for token in vocabulary]
    second = [(token, parent) for parent in vocabulary for token in vocabulary]
    tokens, parents = zip(*first, *second, strict=True)
    return lambda output: Draft(tokens, parents, "full")


def wavering(case: Case) -> Callable[[Tokens], Draft | None]:
    """Depth and shape depend on what was emitted, as an adaptive window's do."""
    shapes = (
        None,
        chain((1,), "wavering"),
        Draft((1, 2, 2), (ROOT, 0, ROOT), "wavering"),
        chain((2, 1, 0, 3), "wavering"),
    )
    return lambda output: shapes[sum(output) % len(shapes)]


@pytest.mark.parametrize("name", GRID)
@pytest.mark.parametrize("drafter", [likeliest_chain, unlikeliest_chain, full_tree, wavering])
def test_output_distribution_is_the_targets_for_every_parameter(
    name: str, drafter: Callable[[Case], Callable[[Tokens], Draft | None]]
) -> None:
    case = Case(GRID[name], vocab_size=4, length=4)
    assert_same_distribution(case.speculated(drafter(case)), case.plain())


# 3. the keyed pick


def chi_square_limit(degrees: int) -> float:
    """Return the quantile at 1 - 1e-6 (Wilson, Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4.753 * math.sqrt(spread)) ** 3


def chi_square(counts: Counter[Tokens], expected: dict[Tokens, float], num_draws: int) -> tuple[float, int]:
    assert counts.keys() <= {outcome for outcome, p in expected.items() if p > 0.0}
    likely = {outcome: p * num_draws for outcome, p in expected.items() if p * num_draws >= 5}
    statistic = sum((counts[outcome] - mean) ** 2 / mean for outcome, mean in likely.items())
    return statistic, max(len(likely) - 1, 1)


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("name", GRID)
def test_picks_over_many_keys_follow_the_probabilities(name: str, native: bool) -> None:
    params, vocab_size, num_draws = GRID[name], 5, (160 if native else 40) * settings().max_examples
    sampler = Sampler(vocab_size, (EOS,), native=native)
    logits = TableModel(vocab_size, 3).logits(PROMPT)[None]
    history = TokenHistory(PROMPT)
    bias = LogitBias.of(params)
    rows = [SamplingRow(params, noise_key(seed, 0), 1, history, (2,), bias=bias) for seed in range(num_draws)]
    counts: Counter[Tokens] = Counter((token,) for token in sampler.pick(logits, rows, at=[0] * num_draws))
    expected = sampler.probabilities(logits, rows[:1])[0].tolist()
    statistic, degrees = chi_square(counts, {(token,): p for token, p in enumerate(expected)}, num_draws)
    assert statistic < chi_square_limit(degrees)


@pytest.mark.parametrize("speculate", [False, True], ids=["plain", "speculated"])
def test_whole_outputs_over_many_seeds_follow_their_distribution(speculate: bool) -> None:
    # positions must be independent, not only each of them right
    case = Case(SamplingParams(temperature=1.2, max_tokens=3, presence_penalty=0.5), vocab_size=3, length=3)
    counts: Counter[Tokens] = Counter()
    num_draws = 2_500
    for seed in range(num_draws):
        sequence = TableSequence(case.model, case.sampler, case.params, noise_key(seed, 0), PROMPT)
        output = decode_speculatively(sequence, full_tree(case))[0] if speculate else decode_plainly(sequence)
        counts[output] += 1
    statistic, degrees = chi_square(counts, case.plain(), num_draws)
    assert statistic < chi_square_limit(degrees)


@pytest.mark.parametrize("name", ["greedy", "default", "all", "greedy_penalties"])
def test_every_draft_emits_what_plain_decoding_emits(name: str) -> None:
    params = with_length(GRID[name], 5)
    model, sampler = TableModel(3, 4), Sampler(3, (EOS,))
    sequences = [TableSequence(model, sampler, params, noise_key(seed, 0), PROMPT) for seed in range(4)]
    plain = [decode_plainly(sequence) for sequence in sequences]
    for i, draft in enumerate(every_draft(3, 3)):
        assert decode_speculatively(sequences[i % 4], always(draft))[0] == plain[i % 4]


@pytest.mark.parametrize("name", GRID)
@pytest.mark.parametrize("drafter", [likeliest_chain, unlikeliest_chain, full_tree, wavering])
def test_every_parameter_emits_what_plain_decoding_emits(
    name: str, drafter: Callable[[Case], Callable[[Tokens], Draft | None]]
) -> None:
    params = with_length(GRID[name], 9)
    case = Case(params, vocab_size=4, length=9)
    accepted = 0
    for seed in range(4):
        sequence = TableSequence(case.model, case.sampler, params, noise_key(seed, 1), PROMPT)
        output, results = decode_speculatively(sequence, drafter(case))
        assert output == decode_plainly(sequence)
        accepted += sum(len(result.path) + result.last_was_drafted for result in results)
    assert accepted > 0 or drafter is not full_tree


def test_the_enumeration_notices_a_lossy_rule() -> None:
    """Accepting a likely draft token without asking the target (threshold acceptance) must fail this proof."""
    case = Case(SamplingParams(), vocab_size=3, length=2)
    outcomes = Outcomes()

    def lossy() -> Tokens:
        first = case.probabilities(())
        guess = first.index(max(first))
        head = guess if first[guess] > 0.3 else outcomes.choose(first)
        return (head,) if head in case.ends else (head, outcomes.choose(case.probabilities((head,))))

    with pytest.raises(AssertionError):
        assert_same_distribution(outcomes.run(lossy), case.plain())


def test_random_seeded_equality_on_a_larger_vocabulary() -> None:
    model, sampler = TableModel(300, 5), Sampler(300, (EOS,))
    generator = torch.Generator().manual_seed(0)
    for seed, params in enumerate(GRID.values()):
        sequence = TableSequence(model, sampler, with_length(params, 40), noise_key(seed, 0), PROMPT)
        plain = decode_plainly(sequence)

        def drafter(output: Tokens, plain: Tokens = plain) -> Draft:
            right = plain[len(output) : len(output) + 4]
            keep = int(torch.randint(0, 5, (1,), generator=generator))
            return chain((*right[:keep], 7), "half right")

        assert decode_speculatively(sequence, drafter)[0] == plain
