"""Trees that a head with levels grows from one pass, against a plain search over what its levels say."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.proposer import HiddenStates
from prolepsis.engine.drafting.proposers.head import PROMPT_TOKENS, HeadProposer
from prolepsis.engine.drafting.proposers.head_tree import TREE_PARAMS
from prolepsis.engine.models.heads.base import Candidates, HeadInfo, Lookahead
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.sampling.noise import gumbel
from tests.engine.drafting.sequences import FakeSequence
from tests.fakes import TableCache

VOCAB, LEVELS = 40, 2


def says(last: int, level: int, count: int = 12) -> list[tuple[int, float]]:
    """Tokens and probabilities that a level expects after token `last`, likeliest first."""
    power = 1.5 + ((11 * last + 7 * level) % 17) / 20  # another for each, so that no two paths are equally likely
    weights = [(1 + (7 * token + 3 * last + 5 * level) % VOCAB) ** -power for token in range(VOCAB)]
    ranked = sorted(range(VOCAB), key=lambda token: -weights[token])
    return [(token, weights[token] / sum(weights)) for token in ranked[:count]]


class LevelledHead:
    """Says `says`; rows of a lookahead know the tokens they stand after."""

    info = HeadInfo("levelled", (0,), 2, page_bytes=8, weight_bytes=0, levels=LEVELS)

    def __init__(self) -> None:
        self.num_passes = 0
        self.num_read = 0
        self.asked: list[int] = []

    def make_cache(self, num_pages: int) -> KVCache:
        return TableCache(num_pages)

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        self.num_passes += 1
        self.num_read += len(batch.token_ids)
        return self._candidates([(int(batch.token_ids[row]), 0) for row in batch.logit_rows.tolist()], count)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        raise AssertionError("all levels come from one pass")

    def look_ahead(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Lookahead:
        first = self.committed(batch, cache, features, count)
        none = torch.zeros(LEVELS * len(first.tokens), 1)
        return Lookahead(first, none, none, none)

    def follow(
        self, lookahead: Lookahead, places: Sequence[int], tokens: Sequence[int], count: int
    ) -> tuple[Tensor, Tensor]:
        rows = len(lookahead.first.tokens)
        self.asked.append(len(tokens))
        found = self._candidates([(t, 1 + place // rows) for place, t in zip(places, tokens, strict=True)], count)
        return found.tokens, found.logprobs

    def _candidates(self, after: Sequence[tuple[int, int]], count: int) -> Candidates:
        known = [says(last, level, count) for last, level in after]
        tokens = torch.tensor([[token for token, _ in row] for row in known])
        chances = torch.tensor([[chance for _, chance in row] for row in known])
        return Candidates(tokens, chances.log(), torch.zeros(len(known), 1))


def shown(head: HeadProposer, *sequences: FakeSequence) -> None:
    for sequence in sequences:
        seen = sequence.tokens[:-1]
        head.take([HiddenStates(sequence, 0, seen, torch.zeros(len(seen), 2, dtype=torch.bfloat16))])


def searched(last: int, depth: int, limit: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the likeliest paths with their chances, each level grown below the likeliest few of the one before."""
    kept: list[tuple[tuple[int, ...], float]] = []
    growing: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for level in range(depth):
        found = [
            ((*path, token), alive * chance)
            for path, alive in growing
            for token, chance in says(path[-1] if path else last, level)[: TREE_PARAMS.max_children]
            if alive * chance >= TREE_PARAMS.min_survival
        ]
        kept += found
        growing = sorted(found, key=lambda node: -node[1])[: TREE_PARAMS.max_expanded]
    return sorted(kept, key=lambda node: -node[1])[:limit]


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_a_tree_is_what_a_plain_search_finds_from_one_pass(depth: int) -> None:
    model = LevelledHead()
    head = HeadProposer(model, num_pages=8, max_sequences=4)
    sequences = [FakeSequence([5, 6, 7 + i], key=f"r{i}/0", pages=[i]) for i in range(2)]
    shown(head, *sequences)
    drafts = head.propose_trees(sequences, [depth, depth], [9, 5], 0.0)
    assert model.num_passes == 1
    assert len(model.asked) == min(depth, 1 + LEVELS) - 1
    for sequence, draft, limit in zip(sequences, drafts, (9, 5), strict=True):
        assert draft is not None
        paths: dict[int, tuple[int, ...]] = {}
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            paths[i] = (*paths.get(parent, ()), token)
        expected = searched(sequence.tokens[-1], min(depth, 1 + LEVELS), limit)
        assert sorted(paths.values()) == sorted(path for path, _ in expected)


def test_a_sampled_chain_is_ranked_with_the_sequences_own_noise() -> None:
    params = SamplingParams(temperature=0.9)
    sequence = FakeSequence([5, 6, 7], num_prompt_tokens=1, pages=[0], params=params, noise_key=77)
    head = HeadProposer(LevelledHead(), num_pages=8, max_sequences=4)
    shown(head, sequence)
    [draft] = head.propose_trees([sequence], [3], [24], 0.0)
    assert draft is not None
    last, path, level = 7, list[int](), 0
    while level < 1 + LEVELS:
        scored = {
            token: math.log(chance) / 0.9 + float(gumbel(77, 2 + level, torch.tensor([token])))
            for token, chance in says(last, level)
        }
        last = max(scored, key=lambda token: scored[token])
        path.append(last)
        level += 1
    at = -1
    for token in path[:2]:
        children = {t: i for i, (t, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)) if parent == at}
        assert token in children
        assert children[token] == min(children.values()), "the likeliest child comes first"
        at = children[token]


def test_neighbours_of_other_depths_share_the_pass() -> None:
    model = LevelledHead()
    head = HeadProposer(model, num_pages=8, max_sequences=4)
    sequences = [FakeSequence([5, 6, 7], key=f"r{i}/0", pages=[i]) for i in range(3)]
    shown(head, *sequences)
    drafts = head.propose_trees(sequences, [1, 3, 2], [4, 12, 6], 0.0)
    assert model.num_passes == 1
    assert [max(draft.depths()) if draft else 0 for draft in drafts] == [1, 3, 2]
    assert head.propose_trees(sequences[:1], [0], [4], 0.0) == [None]


@pytest.mark.parametrize("chunk", [50, 200, 400])
def test_only_the_end_of_a_long_prompt_is_read(chunk: int) -> None:
    model = LevelledHead()
    head = HeadProposer(model, num_pages=16, max_sequences=4)
    sequence = FakeSequence([*range(30)] * 13 + [5] * 11, num_prompt_tokens=400, pages=list(range(13)))
    for start in range(0, 400, chunk):
        tokens = sequence.tokens[start : start + chunk]
        head.take([HiddenStates(sequence, start, tokens, torch.zeros(len(tokens), 2, dtype=torch.bfloat16))])
    assert head.propose([sequence], [4])[0] is not None
    assert model.num_read == 401 - (400 - PROMPT_TOKENS) // 32 * 32


def test_it_writes_nothing_until_it_is_asked_and_then_all_in_one_pass() -> None:
    """A sequence whose drafts pause, or whose head does not pay, costs no pass a page."""
    model = LevelledHead()
    head = HeadProposer(model, num_pages=16, max_sequences=4)
    sequence = FakeSequence([*range(30)] * 4, num_prompt_tokens=20, pages=list(range(4)))
    for start in range(119):
        head.take([HiddenStates(sequence, start, [sequence.tokens[start]], torch.zeros(1, 2, dtype=torch.bfloat16))])
    assert model.num_passes == 0
    assert head.propose([sequence], [4])[0] is not None
    assert (model.num_passes, model.num_read) == (1, 120)


def test_its_memory_is_weights_pages_and_the_hidden_states_kept_beside() -> None:
    few, many = (HeadProposer(LevelledHead(), num_pages=size, max_sequences=4).memory() for size in (8, 108))
    assert (few.proposer, few.weights) == ("draft_head", 0)
    assert many.kv - few.kv == 100 * (8 + 2 * 2 + 8 + 1)  # K/V; features of a page's last token, bfloat16; its marks
