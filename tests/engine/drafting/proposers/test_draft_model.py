from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from prolepsis.core.errors import VocabularyMismatch
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import SamplingParams
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.proposers.draft_model import DraftModelProposer
from prolepsis.engine.models.protocol import Batch, ModelInfo
from prolepsis.engine.sampling.noise import gumbel
from tests.engine.drafting.sequences import FakeSequence

VOCAB = 50
INFO = ModelInfo("fake", "fake", VOCAB, 4096, 1, 1, 1, (0,))


@dataclass
class FakeKV:
    num_pages: int
    slots: dict[int, int] = field(default_factory=dict)

    def copy_page(self, source: int, target: int) -> None: ...

    def clear_page(self, page: int) -> None: ...

    def move(self, pages: object, moves: object) -> None: ...


@dataclass
class HistoryModel:
    """Its next token is a function of all tokens it finds cached, so wrong or stale K/V gives wrong drafts."""

    info: ModelInfo = INFO
    batch_sizes: list[int] = field(default_factory=list)
    broken: bool = False

    def make_cache(self, num_pages: int) -> FakeKV:
        return FakeKV(num_pages)

    def forward(self, batch: Batch, cache: FakeKV) -> Tensor:
        if self.broken:
            raise RuntimeError("out of memory")
        self.batch_sizes.append(batch.num_tokens)
        logits = torch.zeros(batch.num_sequences, VOCAB)
        starts = batch.starts.tolist()
        for s in range(batch.num_sequences):
            pages, cached = batch.pages[s].tolist(), int(batch.cached[s])
            for i, token in enumerate(batch.token_ids[starts[s] : starts[s + 1]].tolist()):
                slot = cached + i
                cache.slots[pages[slot // PAGE_SIZE] * PAGE_SIZE + slot % PAGE_SIZE] = token
            length = cached + starts[s + 1] - starts[s]
            history = [cache.slots[pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE] for i in range(length)]
            logits[s, next_token(history)] = 1.0
        return logits


def next_token(history: list[int]) -> int:
    return sum((i + 1) * token for i, token in enumerate(history)) % VOCAB


def continuation(tokens: list[int], count: int) -> tuple[int, ...]:
    grown = list(tokens)
    for _ in range(count):
        grown.append(next_token(grown))
    return tuple(grown[len(tokens) :])


@dataclass
class FakeVocabulary:
    fingerprint: str = "same"
    vocab: dict[str, int] = field(default_factory=lambda: {str(i): i for i in range(VOCAB)})


def _proposer(model: HistoryModel, num_pages: int = 64) -> DraftModelProposer:
    return DraftModelProposer(model, FakeVocabulary(), FakeVocabulary(), num_pages=num_pages)  # type: ignore[arg-type]


def test_another_vocabulary_is_refused_at_construction() -> None:
    other = FakeVocabulary("other", {"a": 0})
    with pytest.raises(VocabularyMismatch, match="do not share a vocabulary"):
        DraftModelProposer(HistoryModel(), FakeVocabulary(), other, num_pages=4)  # type: ignore[arg-type]


def test_its_memory_is_weights_and_pages() -> None:
    model = HistoryModel(replace(INFO, page_bytes=10, weight_bytes=1000))
    assert _proposer(model, num_pages=3).memory() == ProposerMemory("draft_model", weights=1000, kv=30)


def test_drafts_what_the_model_says_for_all_sequences_in_one_pass_a_level() -> None:
    model = HistoryModel()
    sequences = [FakeSequence([1, 2, 3], key="a"), FakeSequence([4] * 40, key="b"), FakeSequence([5], key="c")]
    drafts = _proposer(model).propose(sequences, [4, 2, 3])
    assert [d.tokens if d else None for d in drafts] == [
        continuation(s.tokens, n) for s, n in zip(sequences, [4, 2, 3], strict=True)
    ]
    assert model.batch_sizes == [44, 3, 2, 1]


def test_catches_up_after_accepted_and_rejected_tokens_in_one_pass() -> None:
    model = HistoryModel()
    proposer, sequence = _proposer(model), FakeSequence([1, 2, 3])
    for emitted in ([9], [], [7, 8, 9], [11] * 40):
        draft = proposer.propose([sequence], [5])[0]
        assert draft is not None
        assert draft.tokens == continuation(sequence.tokens, 5)
        sequence.tokens += [*draft.tokens[: 4 if not emitted else 2], *emitted, 13]
    model.batch_sizes.clear()
    proposer.propose([sequence], [1])
    assert model.batch_sizes == [41]  # what follows the two accepted tokens, whose K/V stays


def test_sequences_that_were_not_asked_catch_up_later() -> None:
    proposer, sequence = _proposer(HistoryModel()), FakeSequence([1, 2, 3])
    proposer.propose([sequence], [3])
    sequence.tokens += [5, 6, 7, 8, 9, 10]
    proposer.commit(sequence, 6)
    draft = proposer.propose([sequence], [3])[0]
    assert draft is not None
    assert draft.tokens == continuation(sequence.tokens, 3)


def test_a_long_prompt_is_caught_up_with_over_several_steps() -> None:
    proposer, sequence = _proposer(HistoryModel()), FakeSequence([1] * 1100)
    assert [proposer.propose([sequence], [2])[0] is not None for _ in range(3)] == [False, False, True]


def test_without_room_the_longest_unused_gives_way_and_nothing_fails() -> None:
    proposer = _proposer(HistoryModel(), num_pages=3)
    sequences = [FakeSequence([i] * 40, key=str(i)) for i in range(3)]
    for sequence in sequences:  # two pages each: every claim evicts the one before
        draft = proposer.propose([sequence], [4])[0]
        assert draft is not None
        assert draft.tokens == continuation(sequence.tokens, 4)
    drafts = proposer.propose(sequences, [4, 4, 4])
    assert [draft is not None for draft in drafts] == [True, False, False]
    assert proposer.propose([FakeSequence([1] * 200, key="big")], [4]) == [None]
    for key in ("0", "1", "2", "big"):
        proposer.forget(FakeSequence([], key=key))
    assert proposer._cache.num_free == 3


def test_a_pass_that_fails_leaves_no_stale_cache() -> None:
    model = HistoryModel()
    proposer, sequence = _proposer(model), FakeSequence([1, 2, 3])
    proposer.propose([sequence], [3])
    model.broken = True
    with pytest.raises(RuntimeError):
        proposer.propose([sequence], [3])
    model.broken = False
    draft = proposer.propose([sequence], [3])[0]
    assert draft is not None
    assert draft.tokens == continuation(sequence.tokens, 3)


def test_what_its_memory_held_before_it_was_lent_is_computed_again() -> None:
    model = HistoryModel()
    kv = FakeKV(8)
    proposer = DraftModelProposer(model, FakeVocabulary(), FakeVocabulary(), num_pages=8, cache=kv)  # type: ignore[arg-type]
    sequence = FakeSequence([1, 2, 3])
    proposer.propose([sequence], [2])
    proposer.lend()
    kv.slots = dict.fromkeys(kv.slots, 9)
    proposer.take_back()
    [draft] = proposer.propose([sequence], [2])
    assert draft is not None
    assert draft.tokens == continuation(sequence.tokens, 2)
    assert model.batch_sizes == [3, 1, 3, 1]


def test_context_length_is_respected() -> None:
    short = HistoryModel(ModelInfo("fake", "fake", VOCAB, 8, 1, 1, 1, (0,)))
    assert _proposer(short).propose([FakeSequence([1] * 7)], [2])[0] is not None
    assert _proposer(short).propose([FakeSequence([1] * 8)], [2]) == [None]


def test_sampled_requests_draft_with_the_keyed_noise_of_their_output_positions() -> None:
    sampled = FakeSequence([1, 2, 3], 2, key="s", params=SamplingParams(temperature=0.8), noise_key=77)
    greedy = FakeSequence([1, 2], key="g")
    drafts = _proposer(HistoryModel()).propose([sampled, greedy], [2, 2])
    grown = list(sampled.tokens)
    for position in (1, 2):
        scores = gumbel(77, position, torch.arange(VOCAB))
        scores[next_token(grown)] += 1.0 / 0.8
        grown.append(int(scores.argmax()))
    assert [d.tokens if d else None for d in drafts] == [tuple(grown[3:]), continuation([1, 2], 2)]
