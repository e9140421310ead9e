"""Bugs that speculative decoding has had elsewhere, each as a test that names it."""

from dataclasses import replace

import pytest
import torch

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import ROOT, Draft, chain
from prolepsis.engine.drafting.verify import SequenceStep, VerifyResult, verify_batch
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.sampling.processors import LogitBias, TokenHistory
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow
from tests.exact.table_model import TableModel, TableSequence, decode_plainly, decode_speculatively

V = 5
EOS = 0
GREEDY = SamplingParams(temperature=0.0)
SAMPLER = Sampler(V, (EOS,))


def flat_logits(rows: int, **raised: float) -> torch.Tensor:
    """Return rows of zeros except for `t3=1.0`-like raised tokens."""
    logits = torch.zeros(rows, V)
    for name, value in raised.items():
        logits[:, int(name[1:])] = value
    return logits


def history(prompt: tuple[int, ...] = (), output: tuple[int, ...] = ()) -> TokenHistory:
    counts = TokenHistory(prompt)
    counts.append(output)
    return counts


def verify_one(
    draft: Draft | None, params: SamplingParams, logits: torch.Tensor, output: tuple[int, ...] = ()
) -> VerifyResult:
    step = SequenceStep(draft, params, 0, len(output), 0, history((), output), bias=LogitBias.of(params))
    return verify_batch([step], logits, SAMPLER)[0]


# penalties inside a draft


def test_frequency_penalty_counts_every_token_of_the_draft_above_the_row() -> None:
    # 3 leads by 1: it wins with 0 and 1 earlier uses (penalty 0.4 each), still with 2, no more with 3
    params = replace(GREEDY, frequency_penalty=0.4)
    assert verify_one(chain((3, 3, 3, 3), "test"), params, flat_logits(5, t3=1.0)).tokens == (3, 3, 3, 0)


def test_frequency_penalty_is_fed_all_accepted_tokens_not_only_the_last() -> None:
    params = SamplingParams(temperature=0.9, frequency_penalty=0.6, max_tokens=30, ignore_eos=True)
    sequence = TableSequence(TableModel(V, 1), SAMPLER, params, noise_key(1, 0), (1,))
    plain = decode_plainly(sequence)
    output, results = decode_speculatively(
        sequence, lambda output: chain(plain[len(output) : len(output) + 4], "oracle")
    )
    assert max(len(result.tokens) for result in results) == 5
    assert output == plain


def test_last_committed_token_is_not_counted_twice() -> None:
    # committed 3 once: 1.0 - 0.6 = 0.4 still leads after it and, counted once more as draft, -0.2 does not
    params = replace(GREEDY, frequency_penalty=0.6)
    assert verify_one(None, params, flat_logits(1, t3=1.0), output=(3,)).tokens == (3,)
    assert verify_one(chain((3,), "test"), params, flat_logits(2, t3=1.0), output=(3,)).tokens == (3, 0)


def test_presence_penalty_counts_output_only_repetition_counts_the_prompt_too() -> None:
    presence = SamplingRow(replace(GREEDY, presence_penalty=2.0), 0, 0, history(prompt=(3,)))
    repetition = SamplingRow(replace(GREEDY, repetition_penalty=9.0), 0, 0, history(prompt=(3,)))
    logits = flat_logits(1, t3=1.0, t4=0.5)
    assert SAMPLER.pick(logits, [presence, repetition], at=[0, 0]) == [3, 4]


def test_penalties_in_a_tree_count_ancestors_only() -> None:
    # 1 and 2 are siblings; after 2 the token 1 is unused and wins, after 1 it is used and loses
    tree = Draft((1, 2), (ROOT, ROOT), "test")
    logits = flat_logits(3, t1=1.0)
    params = replace(GREEDY, presence_penalty=1.5)
    assert verify_one(tree, params, logits).tokens == (1, 0)
    assert verify_one(tree, replace(params, logit_bias=((2, 1.8),)), logits).tokens == (2, 1)


def test_rejected_drafts_leave_no_trace_in_the_counts() -> None:
    counts = history((1,), (2, 2))
    before = [part.tolist() for part in counts.counts()]
    params = replace(GREEDY, frequency_penalty=0.5)
    verify_batch([SequenceStep(chain((3, 4, 3), "test"), params, 0, 2, 0, counts)], flat_logits(4, t3=1.0), SAMPLER)
    assert [part.tolist() for part in counts.counts()] == before


def test_parameters_of_a_request_reach_every_one_of_its_rows() -> None:
    biased = replace(GREEDY, logit_bias=((4, 5.0),))
    steps = [
        SequenceStep(chain((0, 0), "test"), replace(GREEDY, ignore_eos=True), 0, 0, 0),
        SequenceStep(chain((4, 4), "test"), biased, 0, 0, 3, bias=LogitBias.of(biased)),
        SequenceStep(None, GREEDY, 0, 0, 6),
    ]
    assert [v.tokens for v in verify_batch(steps, torch.zeros(7, V), SAMPLER)] == [(0, 0, 0), (4, 4, 4), (0,)]


# length and end


def test_min_tokens_counts_tokens_not_steps_and_holds_at_each_position() -> None:
    # end of sequence leads everywhere; with one token committed and min_tokens 3 it is banned at two rows of this step
    params = replace(GREEDY, min_tokens=3)
    logits = flat_logits(5, t0=2.0, t1=1.0)
    result = verify_one(chain((1, 1, 1, 1), "test"), params, logits, output=(1,))
    assert result.tokens == (1, 1, EOS)
    assert result.end_token == EOS


def test_min_tokens_bans_stop_ids_too_and_spares_an_ignored_end_of_sequence() -> None:
    params = replace(GREEDY, min_tokens=1, stop_token_ids=(4,))
    assert verify_one(None, params, flat_logits(1, t4=2.0, t3=1.0)).tokens == (3,)
    ignored = replace(params, ignore_eos=True)
    assert verify_one(None, ignored, flat_logits(1, t0=2.0)).tokens == (EOS,)


def test_no_token_is_emitted_after_an_end_of_sequence_inside_a_block() -> None:
    result = verify_one(chain((EOS, EOS, EOS), "test"), GREEDY, flat_logits(4, t0=1.0))
    assert (result.tokens, result.path, result.end_token) == ((EOS,), (), EOS)


def test_ignored_end_of_sequence_is_an_ordinary_token() -> None:
    params = replace(GREEDY, ignore_eos=True)
    assert verify_one(chain((EOS, EOS), "test"), params, flat_logits(3, t0=1.0)).tokens == (EOS, EOS, EOS)


def test_max_tokens_ends_inside_the_block() -> None:
    params = replace(GREEDY, max_tokens=4)
    result = verify_one(chain((3, 3, 3, 3), "test"), params, flat_logits(5, t3=1.0), output=(3, 3))
    assert result.tokens == (3, 3)
    assert result.end_token is None


# bonus token, seeds, logprobs


def test_bonus_token_is_picked_with_its_own_rows_processors() -> None:
    params = replace(GREEDY, presence_penalty=2.0)
    logits = flat_logits(3, t1=3.0, t2=1.9, t3=0.5)
    assert verify_one(chain((1, 2), "test"), params, logits).tokens == (1, 2, 1)


def test_a_seed_gives_one_text_at_every_depth() -> None:
    params = SamplingParams(temperature=1.1, max_tokens=24, ignore_eos=True)
    sequence = TableSequence(TableModel(V, 2), SAMPLER, params, noise_key(77, 0), (1, 2))
    plain = decode_plainly(sequence)
    for depth in range(7):
        drafter = lambda output, depth=depth: chain(plain[len(output) : len(output) + depth], "oracle")  # noqa: E731
        assert decode_speculatively(sequence, drafter)[0] == plain


def test_recomputing_a_preempted_sequence_repeats_its_tokens() -> None:
    # nothing is consumed by picking: the same row asked again, or in another order, says the same
    rows = [SamplingRow(SamplingParams(), noise_key(3, 0), position) for position in range(50)]
    logits = torch.zeros(1, V)
    first = SAMPLER.pick(logits, rows, at=[0] * 50)
    assert SAMPLER.pick(logits, rows[::-1], at=[0] * 50) == first[::-1]
    assert len(set(first)) == V


def test_sequences_of_one_request_are_independent() -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    outputs = {
        decode_plainly(TableSequence(TableModel(V, 3), SAMPLER, params, noise_key(5, n), (1,))) for n in range(4)
    }
    assert len(outputs) == 4


def test_logprobs_come_from_the_rows_the_tokens_were_picked_from() -> None:
    tree = Draft((1, 2, 4), (ROOT, ROOT, 1), "test")
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(0))
    logits[0, 2], logits[2, 4], logits[3, 3] = 9.0, 9.0, 9.0
    result = verify_one(tree, GREEDY, logits)
    assert (result.tokens, result.rows) == ((2, 4, 3), (0, 2, 3))
    for token, row in zip(result.tokens, result.rows, strict=True):
        want = float(torch.log_softmax(logits[row].double(), 0)[token])
        assert SAMPLER.logprobs(logits[row], token, 0).logprob == pytest.approx(want, abs=1e-14)


@pytest.mark.parametrize("params", [SamplingParams(top_k=2), SamplingParams(top_p=0.5), SamplingParams(min_p=0.9)])
def test_a_draft_token_that_truncation_dropped_is_never_accepted(params: SamplingParams) -> None:
    logits = torch.tensor([[0.0, 3.0, 2.95, 0.0, 0.0]] * 2)
    for seed in range(200):
        step = SequenceStep(chain((3,), "test"), params, noise_key(seed, 0), 0, 0)
        result = verify_batch([step], logits, SAMPLER)[0]
        assert len(result.path) + result.last_was_drafted == 0


# trimming


def test_trimming_by_the_drafts_own_outcome_changes_nothing() -> None:
    """A drafter that knows the noise and withholds exactly its right (or wrong) guesses cannot bias the output."""
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    for seed in range(10):
        sequence = TableSequence(TableModel(V, 4), SAMPLER, params, noise_key(seed, 0), (2,))
        plain = decode_plainly(sequence)

        def only_right(output: tuple[int, ...], plain: tuple[int, ...] = plain) -> Draft | None:
            return chain(plain[len(output) : len(output) + 3], "peeking") if plain[len(output)] < 2 else None

        def only_wrong(output: tuple[int, ...], plain: tuple[int, ...] = plain) -> Draft:
            return chain(((plain[len(output)] + 1) % V, 1), "peeking")

        assert decode_speculatively(sequence, only_right)[0] == plain
        assert decode_speculatively(sequence, only_wrong)[0] == plain
