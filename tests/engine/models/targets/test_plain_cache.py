"""Pages are copied and compacted over all layers."""

from multiprocessing import get_context

import torch
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.kv.machine import host_memory
from prolepsis.engine.models.targets.paged_attention import LayerKV, PlainCache, page_bytes

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
