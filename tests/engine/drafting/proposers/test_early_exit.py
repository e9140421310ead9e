"""The early-exit proposer over a fake exit that reads tokens from the slots, and over real ones on random weights."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import SamplingParams
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.proposers.early_exit import MAX_DEPTH, SCRATCH_PAGES, EarlyExitProposer
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.protocol import Batch, KVCache, SequenceInput, pack
from prolepsis.engine.models.targets.early_exit import make_exit
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeCache, NativeModel
from prolepsis.engine.models.targets.paged_attention import PlainCache
from prolepsis.engine.sampling.noise import gumbel
from tests.engine.drafting.proposers.test_draft_model import VOCAB, continuation, next_token
from tests.engine.drafting.sequences import FakeSequence
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.tiny import save_tiny

POOL = 20
FORWARDS = ["lean", pytest.param("native", marks=NEEDS_KERNELS)]


@dataclass
class FakeKV:
    """A token in each slot."""

    num_pages: int = POOL + 2 * SCRATCH_PAGES
    slots: dict[int, int] = field(default_factory=dict)

    def copy_page(self, source: int, target: int) -> None:
        for i in range(PAGE_SIZE):
            if source * PAGE_SIZE + i in self.slots:
                self.slots[target * PAGE_SIZE + i] = self.slots[source * PAGE_SIZE + i]

    def clear_page(self, page: int) -> None: ...

    def move(self, pages: object, moves: object) -> None: ...

    def views(self, page: int) -> list[Tensor]:
        return []

    def hold(self, sequence: FakeSequence) -> None:
        """Write what the target has computed of a sequence: all but its last token."""
        for i, token in enumerate(sequence.tokens[:-1]):
            self.slots[sequence.pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE] = token


@dataclass
class FakeExit:
    """Its likeliest token is a function of all tokens it finds cached: a wrong slot is a wrong draft."""

    chance: float = 0.9
    num_layers: int = 1
    vocab_size: int = VOCAB
    batch_sizes: list[int] = field(default_factory=list)

    def logits(self, batch: Batch, cache: KVCache) -> Tensor:
        raise AssertionError("only the likeliest are asked")

    def likeliest(self, batch: Batch, cache: KVCache, count: int) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, FakeKV)
        self.batch_sizes.append(batch.num_tokens)
        tokens: list[list[int]] = []
        for s, token in enumerate(batch.token_ids.tolist()):
            pages, at = batch.pages[s].tolist(), int(batch.cached[s])
            cache.slots[pages[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE] = token
            history = [cache.slots[pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE] for i in range(at + 1)]
            tokens.append([(next_token(history) + i) % VOCAB for i in range(count)])
        rest = (1.0 - self.chance) / (count - 1)
        return torch.tensor(tokens), torch.tensor([[self.chance] + [rest] * (count - 1)] * len(tokens)).log()


def sequence(length: int, first_page: int = 0, **changes: object) -> FakeSequence:
    pages = list(range(first_page, first_page + -(-length // PAGE_SIZE)))
    tokens = [(7 * i + first_page) % VOCAB for i in range(length)]
    return FakeSequence(tokens, key=f"{first_page}", pages=pages, **changes)  # type: ignore[arg-type]


def proposer(early: FakeExit, cache: FakeKV, max_sequences: int = 2) -> EarlyExitProposer:
    return EarlyExitProposer(early, cache, first_page=POOL, max_sequences=max_sequences)


def test_its_memory_is_its_scratch() -> None:
    made = EarlyExitProposer(FakeExit(), FakeKV(), first_page=POOL, max_sequences=2, page_bytes=100)
    assert made.memory() == ProposerMemory("early_exit", kv=200 * SCRATCH_PAGES)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 34, 63, 64, 65, 100])
def test_drafts_what_the_exit_says_behind_the_cached_tokens(length: int) -> None:
    early, cache, asked = FakeExit(), FakeKV(), sequence(length)
    cache.hold(asked)
    before = dict(cache.slots)
    draft = proposer(early, cache).propose([asked], [MAX_DEPTH + 9])[0]
    assert draft is not None
    assert draft.is_chain
    assert draft.tokens == continuation(asked.tokens, MAX_DEPTH)
    assert draft.survival == pytest.approx([0.9**depth for depth in range(1, MAX_DEPTH + 1)])
    assert len(set(draft.buckets)) == 1
    assert {slot: token for slot, token in cache.slots.items() if slot < POOL * PAGE_SIZE} == before


def test_all_sequences_of_a_step_go_together_and_those_without_scratch_get_no_draft() -> None:
    early, cache = FakeExit(), FakeKV()
    asked = [sequence(40), sequence(7, 5), sequence(9, 8), sequence(33, 9)]
    for each in asked:
        cache.hold(each)
    drafts = proposer(early, cache).propose(asked, [3, 0, 5, 5])
    assert [draft.tokens if draft else None for draft in drafts] == [
        continuation(asked[0].tokens, 3),
        None,
        continuation(asked[2].tokens, 5),
        None,
    ]
    assert early.batch_sizes == [2, 2, 2, 1, 1]


def test_levels_end_where_survival_falls_to_the_threshold() -> None:
    early, cache, asked = FakeExit(chance=0.6), FakeKV(), sequence(10)
    cache.hold(asked)
    draft = proposer(early, cache).propose_trees([asked], [9], [9], 0.3)[0]
    assert draft is not None
    assert draft.survival == pytest.approx([0.6, 0.36, 0.216])
    assert proposer(early, cache).propose_trees([asked], [9], [9], 1.0) == [None]


def test_confidence_is_what_drafts_are_calibrated_by_sampled_ones_apart() -> None:
    buckets = set()
    for chance in (0.2, 0.9):
        for temperature in (0.0, 0.8):
            cache, asked = FakeKV(), sequence(10, params=SamplingParams(temperature=temperature))
            cache.hold(asked)
            draft = proposer(FakeExit(chance=chance), cache).propose([asked], [1])[0]
            assert draft is not None
            buckets.add(draft.bucket_of(0))
    assert len(buckets) == 4


def test_sampled_requests_draft_with_the_keyed_noise_of_their_output_positions() -> None:
    cache = FakeKV()
    asked = sequence(10, num_prompt_tokens=8, params=SamplingParams(temperature=0.8), noise_key=77)
    cache.hold(asked)
    early = FakeExit(chance=0.3)
    draft = proposer(early, cache).propose([asked], [2])[0]
    grown = list(asked.tokens)
    for position in (2, 3):
        first = next_token(grown)
        tokens = torch.tensor([(first + i) % VOCAB for i in range(12)])
        logs = torch.tensor([0.3] + [0.7 / 11] * 11).log() / 0.8
        grown.append(int(tokens[(logs + gumbel(77, position, tokens)).argmax()]))
    assert draft is not None
    assert draft.tokens == tuple(grown[10:])


def test_no_state_is_kept_between_steps() -> None:
    early, cache, asked = FakeExit(), FakeKV(), sequence(30)
    cache.hold(asked)
    drafter = proposer(early, cache)
    for emitted in (2, 5, 1):
        draft = drafter.propose([asked], [4])[0]
        assert draft is not None
        assert draft.tokens == continuation(asked.tokens, 4)
        asked.tokens += [(11 * i) % VOCAB for i in range(emitted)]
        asked.pages = asked.pages if len(asked.tokens) <= PAGE_SIZE else [0, 7]
        drafter.commit(asked, emitted)
        cache.hold(asked)
    asked.pages = [12, 3]  # preempted and computed again
    cache.hold(asked)
    draft = drafter.propose([asked], [4])[0]
    assert draft is not None
    assert draft.tokens == continuation(asked.tokens, 4)
    drafter.forget(asked)


def test_a_cache_without_scratch_is_refused() -> None:
    with pytest.raises(AssertionError, match="a cache of 24 pages; needed: 26"):
        proposer(FakeExit(), FakeKV(), max_sequences=3)


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("length", [45, 64, 65])
def test_drafting_leaves_every_bit_of_the_pool_and_drafts_the_exits_own_continuation(
    forward: str, length: int, tmp_path: Path
) -> None:
    save_tiny(tmp_path, "llama", {"head_dim": 32, "num_hidden_layers": 3})
    checkpoint = open_checkpoint(tmp_path, torch.float32)
    shape = LeanShape.from_config(checkpoint.config)
    target: NativeModel | LeanModel
    if forward == "native":
        target = NativeModel(checkpoint, shape, "tiny", threads=2)
    else:
        target = LeanModel(checkpoint, shape, "tiny", torch.device("cpu"))
    cache, early = target.make_cache(POOL + SCRATCH_PAGES), make_exit(target, 2, 160)
    asked = sequence(length, 4)
    target.forward(pack([SequenceInput(asked.tokens[:-1], 0, asked.pages)]), cache)
    before = pool_of(cache)
    draft = EarlyExitProposer(early, cache, first_page=POOL, max_sequences=1).propose([asked], [5])[0]
    assert all(torch.equal(a, b) for a, b in zip(pool_of(cache), before, strict=True))
    assert draft is not None
    own, pages = target.make_cache(6), list(range(6))
    expected = list(asked.tokens)
    for _ in range(5):
        tokens, _ = early.likeliest(pack([SequenceInput(expected, 0, pages)]), own, 1)
        expected.append(int(tokens[0, 0]))
    assert draft.tokens == tuple(expected[length:])


def pool_of(cache: KVCache) -> list[Tensor]:
    """Everything that the target reads."""
    if isinstance(cache, NativeCache):
        return [cache.tensor[:, :POOL].clone()]
    assert isinstance(cache, PlainCache)
    return [tensor[:POOL].clone() for tensor in (*cache.keys, *cache.values)]
