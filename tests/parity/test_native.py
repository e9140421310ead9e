"""The native forward against transformers in float32, and against itself: no row's bits depend on its company."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeCache, NativeModel
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.tiny import (
    FAMILIES,
    LLAMA3,
    PROMPT,
    PROMPT_PAGES,
    close,
    one,
    path_to,
    reference,
    rounded,
    run,
    scattered,
    tokens,
)

WIDE: dict[str, object] = {"head_dim": 32}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {"head_dim": 32}),
    "llama-tied": ("llama", {"head_dim": 32, "tie_word_embeddings": True, "vocab_size": 167}),
    "llama-rope": ("llama", {"head_dim": 32, "rope_parameters": LLAMA3}),
    "llama-mha": ("llama", {"head_dim": 32, "num_key_value_heads": 4}),
    "llama-mqa": ("llama", {"head_dim": 64, "num_attention_heads": 16, "num_key_value_heads": 1}),
    "mistral": ("mistral", {"head_dim": 32, "sliding_window": None}),
    "qwen2": ("qwen2", {"head_dim": None, "hidden_size": 128}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    **{name: (kind, changes | WIDE) for name, (kind, changes) in FAMILIES.items()},
    "phi3": ("phi3", FAMILIES["phi3"][1] | {"head_dim": 64}),
}


SHARED = {"llama", "llama-mqa", "gemma2"}
"""Computed by two threads, the others by one: where cores are busy, two wait for each other."""
pytestmark = NEEDS_KERNELS


@cache
def pair(name: str) -> tuple[NativeModel, PreTrainedModel]:
    kind, changes = CASES[name]
    with rounded(kind, changes) as (model, checkpoint):
        threads = 2 if name in SHARED else 1
        return NativeModel(checkpoint, LeanShape.from_config(checkpoint.config), name, threads), model


def same(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(found, expected), f"differs by {(found - expected).abs().max():.1e}"


def prefill(target: NativeModel, context: list[int], pages: list[int], num_pages: int) -> NativeCache:
    cache = target.make_cache(num_pages)
    run(target, cache, one(context, 0, pages))
    return cache


@pytest.mark.parametrize("name", CASES)
def test_chunks_and_decode_match_the_reference(name: str) -> None:
    target, model = pair(name)
    first, second = tokens(PROMPT, 1), tokens(PROMPT - 9, 2)
    pages_a, pages_b = scattered(PROMPT_PAGES)
    cache = target.make_cache(2 * PROMPT_PAGES)
    whole_a, whole_b = reference(model, first), reference(model, second)
    close(run(target, cache, one(first[:30], 0, pages_a)), whole_a[:30])
    mixed = run(target, cache, one(first[30:70], 30, pages_a), one(second[:20], 0, pages_b))
    close(mixed, torch.cat([whole_a[30:70], whole_b[:20]]))
    for at in range(70, PROMPT):
        close(run(target, cache, one([first[at]], at, pages_a)), whole_a[at : at + 1])


@pytest.mark.parametrize("name", CASES)
def test_one_by_one_equals_every_chunking_to_the_bit(name: str) -> None:
    target, _ = pair(name)
    text = tokens(PROMPT, 3)
    pages, _ = scattered(PROMPT_PAGES)
    cache = target.make_cache(2 * PROMPT_PAGES)
    alone = torch.cat([run(target, cache, one([token], at, pages)) for at, token in enumerate(text)])
    for size in (2, 5, 13, 16, 33, PROMPT):
        cache = target.make_cache(2 * PROMPT_PAGES)
        chunks = [run(target, cache, one(text[at : at + size], at, pages)) for at in range(0, PROMPT, size)]
        same(torch.cat(chunks), alone)


@pytest.mark.parametrize("name", CASES)
def test_every_branch_of_a_tree_equals_plain_decoding_to_the_bit(name: str) -> None:
    target, model = pair(name)
    for length in (1, PROMPT, 2 * 32 - 2, 2 * 32 - 1, 2 * 32):  # the tail at every place around a page border
        context = tokens(length, 4)
        pages, _ = scattered(PROMPT_PAGES)
        nodes, parents = tokens(9, 5), [-1, 0, 1, 0, 3, 3, 5, 2, -1]
        cache = prefill(target, context, pages, 2 * PROMPT_PAGES)
        found = run(target, cache, one(nodes, length, pages, parents=parents))
        for node in range(len(nodes)):
            path = path_to(node, parents)
            plain = prefill(target, context, pages, 2 * PROMPT_PAGES)
            step = [run(target, plain, one([nodes[i]], length + at, pages)) for at, i in enumerate(path)]
            same(found[node], step[-1][0])
        close(found[[6]], reference(model, context + [nodes[i] for i in path_to(6, parents)])[-1:])


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_compaction_leaves_the_cache_of_plain_decoding(name: str) -> None:
    target, _ = pair(name)
    context, nodes, parents = tokens(PROMPT, 6), tokens(7, 7), [-1, 0, 1, 0, 3, 3, 5]
    pages, _ = scattered(PROMPT_PAGES)
    cache = prefill(target, context, pages, 2 * PROMPT_PAGES)
    run(target, cache, one(nodes, PROMPT, pages, parents=parents))
    accepted = path_to(6, parents)
    cache.move(pages, [(PROMPT + i, PROMPT + j) for j, i in enumerate(accepted) if i != j])
    text = context + [nodes[i] for i in accepted]
    plain = prefill(target, text, pages, 2 * PROMPT_PAGES)
    last = one([9], len(text), pages)
    same(run(target, cache, last), run(target, plain, last))


@pytest.mark.parametrize("name", ["llama", "llama-mqa"])
def test_neighbours_and_copied_pages_change_nothing(name: str) -> None:
    target, _ = pair(name)
    text, other = tokens(40, 8), tokens(60, 9)
    pages, more = scattered(PROMPT_PAGES)
    cache = prefill(target, text, pages, 2 * PROMPT_PAGES)
    alone = run(target, cache, one([5], 40, pages))
    sequences = [SequenceInput(other, 0, more, keep_last=0), one([5], 40, pages)]
    same(run(target, cache, *sequences), alone)
    cache.copy_page(pages[0], more[3])
    same(run(target, cache, one([5], 40, [more[3], *pages[1:]])), alone)


def test_a_cleared_page_is_as_good_as_a_new_one() -> None:
    """What a row must not see is multiplied by 0, which makes no number of what is none."""
    target, _ = pair("llama")
    text, cache, fresh = one(tokens(7, 8), 0, [1]), target.make_cache(2), target.make_cache(2)
    cache.tensor.fill_(torch.nan)
    assert not run(target, cache, text).isfinite().all()
    cache.clear_page(1)
    same(run(target, cache, text), run(target, fresh, text))


def test_a_page_of_all_layers_lies_side_by_side() -> None:
    target, _ = pair("llama")
    cache = target.make_cache(3)
    assert len(target.shape.layers) > 1
    assert [cache.tensor[:, page].is_contiguous() for page in range(3)] == [True] * 3


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kept", [(0, 0, 0), (1, 0, 2), (3, 40, 4), (40, 1, 0)])
def test_rows_without_logits_change_nothing(name: str, kept: tuple[int, int, int]) -> None:
    target, _ = pair(name)
    pages, more = scattered(PROMPT_PAGES)
    third = [2 * PROMPT_PAGES, 2 * PROMPT_PAGES + 1]
    parents = [-1, 0, 1, 0, 3, 3, -1]
    step = [one(tokens(40, 9), 0, more), one(tokens(40, 10), 0, third), one(tokens(7, 11), 40, pages, parents=parents)]
    caches = [prefill(target, tokens(40, 8), pages, 2 * PROMPT_PAGES + 2) for _ in range(2)]
    every = run(target, caches[0], *step)
    some = run(target, caches[1], *(replace(part, keep_last=count) for part, count in zip(step, kept, strict=True)))
    ends = [40, 80, 87]
    same(some, torch.cat([every[end - count : end] for end, count in zip(ends, kept, strict=True)]))
    same(caches[1].tensor, caches[0].tensor)


def test_widths_that_do_not_fit_are_refused() -> None:
    refused = pytest.raises(ModelLoadError, match=r"head_dim is 16; allowed: multiples of 32")
    with rounded("llama", {"head_dim": 16}) as (_, checkpoint), refused:
        NativeModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny")


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_features_are_what_enters_the_layers(name: str) -> None:
    model, expected = pair(name)
    prompt = tokens(40, seed=5)
    cache = model.make_cache(4)
    with torch.no_grad():
        states = expected(input_ids=torch.tensor([prompt]), use_cache=False, output_hidden_states=True).hidden_states
    logits, features = model.forward_features(pack([one(prompt, 0, [2, 0])]), cache, (1, 0))
    close(features.float(), torch.cat([states[1][0], states[0][0]], dim=1))
    assert torch.equal(logits, run(model, model.make_cache(4), one(prompt, 0, [2, 0]))), "looking changes nothing"


def test_the_last_tap_is_what_the_final_norm_takes() -> None:
    model, expected = pair("llama")
    prompt = tokens(21, seed=6)
    last = model.info.num_layers
    logits, features = model.forward_features(pack([one(prompt, 0, [0])]), model.make_cache(1), (last,))
    with torch.no_grad():
        found = expected.lm_head(expected.model.norm(features.float()))
    close(found, logits)


def test_the_pass_finds_the_first_of_each_rows_largest_logits() -> None:
    model, _ = pair("llama")
    prompts = [one(tokens(9, seed=7), 0, [1]), one(tokens(33, seed=8), 0, [2, 0])]
    logits, features, argmax = model.forward_argmax(
        pack([replace(p, keep_last=5) for p in prompts]), model.make_cache(4), ()
    )
    assert argmax == logits.argmax(-1).tolist()
    assert len(set(argmax)) > 1
    assert features.shape == (42, 0)
