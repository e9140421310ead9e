"""Paged attention against a row-by-row softmax, and the masks of trees and windows."""

from multiprocessing import get_context

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.kv.machine import host_memory
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.engine.models.targets.paged_attention import (
    LayerKV,
    PlainCache,
    Scoring,
    ancestors,
    attend,
    page_bytes,
    paged_attention,
    plan_attention,
)

CPU = torch.device("cpu")


def one_row(query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
    """[h, d], [L, k, d], [L, k, dv] -> [h, dv], one head after the other."""
    group = query.shape[0] // keys.shape[1]
    out = []
    for head in range(query.shape[0]):
        scores = keys[:, head // group] @ query[head] * scoring.scale
        if scoring.softcap is not None:
            scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
        sink = [] if scoring.sinks is None else [scoring.sinks[head : head + 1]]
        weights = torch.softmax(torch.cat([scores, *sink]), dim=0)[: len(scores)]
        out.append(weights @ values[:, head // group])
    return torch.stack(out)


trees = st.integers(1, 9).flatmap(lambda n: st.tuples(*[st.integers(-1, i - 1) for i in range(n)]))


@given(trees, st.integers(0, 70), st.sampled_from([None, 1, 5, 40]), st.booleans())
def test_each_row_sees_context_and_ancestors(
    parents: tuple[int, ...], cached: int, window: int | None, full: bool
) -> None:
    torch.manual_seed(cached)
    heads, kv, dim = 4, 2, 8
    sinks = torch.randn(heads) if full else None
    scoring = Scoring(dim**-0.5, window, 3.0 if full else None, sinks)
    rows, length = len(parents), cached + len(parents)
    pages = list(range(5))[::-1][: -(-length // PAGE_SIZE)]
    cache = PlainCache([LayerKV(kv, dim, dim)], 5, torch.float32, CPU)
    keys, values, query = torch.randn(length, kv, dim), torch.randn(length, kv, dim), torch.randn(rows, heads, dim)
    history = torch.tensor([pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in range(cached)]).long()
    cache.write(0, history, keys[:cached], values[:cached])
    batch = pack([SequenceInput([0] * rows, cached, pages, parents=list(parents))])
    plan = plan_attention(batch, CPU)
    cache.write(0, plan.slots, keys[cached:], values[cached:])
    found = paged_attention(query, cache, 0, plan, scoring)
    for row in range(rows):
        path, node = [row], parents[row]
        while node >= 0:
            path.append(node)
            node = parents[node]
        seen = list(range(cached)) + [cached + i for i in reversed(path)]
        seen = seen if window is None else seen[-window:]
        torch.testing.assert_close(found[row], one_row(query[row], keys[seen], values[seen], scoring))


@settings(max_examples=10)
@given(trees, st.integers(20, 200))
def test_a_row_of_a_tree_is_bitwise_the_row_decoded_alone(parents: tuple[int, ...], cached: int) -> None:
    """Sums in float32 change with the places of their terms, so the keys of a branch are taken in order of position."""
    torch.manual_seed(cached)
    cache, pages, scoring = PlainCache([LayerKV(2, 16, 16)], 7, torch.float32, CPU), list(range(7)), Scoring(0.25)
    keys, values, query = (torch.randn(cached + len(parents), heads, 16) for heads in (2, 2, 4))
    cache.write(0, torch.arange(cached), keys[:cached], values[:cached])
    plan = plan_attention(pack([SequenceInput([0] * len(parents), cached, pages, parents=list(parents))]), CPU)
    cache.write(0, plan.slots, keys[cached:], values[cached:])
    together = paged_attention(query[cached:], cache, 0, plan, scoring)
    seen = ancestors(torch.tensor(parents, dtype=torch.int32))
    for row in range(len(parents)):
        path = cached + seen[row].nonzero()[:, 0]
        slots = torch.arange(cached, cached + len(path))
        cache.write(0, slots, keys[path], values[path])
        alone = plan_attention(pack([SequenceInput([0], cached + len(path) - 1, pages)]), CPU)
        assert torch.equal(paged_attention(query[cached + row][None], cache, 0, alone, scoring)[0], together[row])


def test_ancestors_of_a_chain_are_all_before() -> None:
    assert torch.equal(ancestors(torch.arange(-1, 5)), torch.ones(6, 6, dtype=torch.bool).tril())


def test_long_chunks_are_cut_without_a_seam() -> None:
    rows = 4 * PAGE_SIZE + 3
    cache = PlainCache([LayerKV(1, 8, 8)], 8, torch.float32, CPU)
    batch = pack([SequenceInput([0] * rows, 0, list(range(5)))])
    plan = plan_attention(batch, CPU)
    query, keys = torch.randn(rows, 2, 8), torch.randn(rows, 1, 8)
    cache.write(0, plan.slots, keys, keys)
    scoring = Scoring(0.3)
    found = paged_attention(query, cache, 0, plan, scoring)
    expected = attend(query[None], keys[None], keys[None], torch.ones(1, rows, rows, dtype=torch.bool).tril(), scoring)
    torch.testing.assert_close(found, expected[0])


LAYERS = [LayerKV(2, 4, 4), LayerKV(1, 8, 2)]


def filled(num_pages: int) -> PlainCache:
    cache = PlainCache(LAYERS, num_pages, torch.float32, torch.device("cpu"))
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn_like(tensor))
    return cache


def test_page_bytes_counts_keys_and_values_of_every_layer() -> None:
    cache = filled(3)
    assert 3 * page_bytes(LAYERS, torch.float32) == sum(t.nbytes for t in (*cache.keys, *cache.values))


def allocate() -> None:
    before = host_memory().held
    cache = PlainCache([LayerKV(8, 64, 64)], (1 << 30) // (PAGE_SIZE * 2048), torch.bfloat16, torch.device("cpu"))
    assert host_memory().held - before < 1 << 28
    assert not cache.keys[0][-1].any()


def test_pages_on_the_cpu_take_memory_when_they_are_used() -> None:
    """In a process of its own: what else tests hold and let go counts too."""
    process = get_context("spawn").Process(target=allocate)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_copy_page_copies_one_page() -> None:
    cache = filled(3)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    cache.copy_page(2, 0)
    for tensor, old in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(tensor[0], old[2])
        assert torch.equal(tensor[1:], old[1:])


def test_clear_page_fills_one_page_with_zeros() -> None:
    cache = filled(3)
    cache.keys[0][1, 2] = torch.nan
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    cache.clear_page(1)
    for tensor, old in zip((*cache.keys, *cache.values), before, strict=True):
        assert not tensor[1].any()
        assert torch.equal(tensor[[0, 2]], old[[0, 2]])


@given(st.lists(st.integers(0, 2 * PAGE_SIZE - 1), unique=True, min_size=1, max_size=8).map(sorted), st.integers(0, 9))
def test_move_equals_copying_in_order(sources: list[int], first: int) -> None:
    pages = [3, 1]
    targets = [min(source, first + i) for i, source in enumerate(sources)]
    cache = filled(4)
    expected = [t[pages].flatten(0, 1).clone() for t in cache.keys]
    for source, target in zip(sources, targets, strict=True):
        for tensor in expected:
            tensor[target] = tensor[source]
    cache.move(pages, list(zip(sources, targets, strict=True)))
    for tensor, wanted in zip(cache.keys, expected, strict=True):
        assert torch.equal(tensor[pages].flatten(0, 1), wanted)


def test_a_scratch_page_is_not_counted() -> None:
    cache = PlainCache(LAYERS, 2, torch.float32, torch.device("cpu"), scratch=True)
    assert cache.num_pages == 2
    assert cache.keys[0].shape[0] == 3
