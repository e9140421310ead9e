"""Both torch forwards, through pages in chunks, decode steps and trees, against transformers' own full forward."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.protocol import SequenceInput, TargetModel
from prolepsis.engine.models.targets.general import GeneralModel
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from tests.engine.models.tiny import (
    GENERAL,
    LEAN,
    PROMPT,
    PROMPT_PAGES,
    one,
    path_to,
    reference,
    run,
    save_tiny,
    scattered,
    tokens,
)

CPU = torch.device("cpu")
CASES = [("lean", name) for name in LEAN] + [("general", name) for name in GENERAL]


@cache
def pair(forward: str, name: str) -> tuple[TargetModel, PreTrainedModel]:
    kind, changes = (LEAN if forward == "lean" else GENERAL)[name]
    with TemporaryDirectory() as folder:
        model = save_tiny(Path(folder), kind, changes)
        checkpoint = open_checkpoint(Path(folder), torch.float32)
        if forward == "lean":
            return LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), name, CPU), model
        return GeneralModel(checkpoint, name, CPU, torch.float32), model


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("forward", "name"), CASES)
def test_chunks_decode_and_neighbours(forward: str, name: str) -> None:
    target, model = pair(forward, name)
    first, second = tokens(PROMPT, 1), tokens(PROMPT - 9, 2)
    pages_a, pages_b = scattered(PROMPT_PAGES)
    cache = target.make_cache(2 * PROMPT_PAGES)
    whole_a, whole_b = reference(model, first), reference(model, second)
    close(run(target, cache, one(first[:30], 0, pages_a)), whole_a[:30])
    mixed = run(target, cache, one(first[30:70], 30, pages_a), one(second[:20], 0, pages_b))
    close(mixed, torch.cat([whole_a[30:70], whole_b[:20]]))
    for at in range(70, PROMPT):
        mixed = run(target, cache, one(second[at - 50 : at - 49], at - 50, pages_b), one([first[at]], at, pages_a))
        close(mixed, torch.cat([whole_b[at - 50 : at - 49], whole_a[at : at + 1]]))


@pytest.mark.parametrize(("forward", "name"), CASES)
def test_tree_and_compaction(forward: str, name: str) -> None:
    target, model = pair(forward, name)
    context = tokens(PROMPT, 3)
    pages, _ = scattered(PROMPT_PAGES)
    cache = target.make_cache(2 * PROMPT_PAGES)
    run(target, cache, one(context, 0, pages))
    nodes, parents = tokens(7, 4), [-1, 0, 1, 0, 3, 3, 5]
    found = run(target, cache, one(nodes, PROMPT, pages, parents=parents))
    for node in range(7):
        path = path_to(node, parents)
        expected = reference(model, context + [nodes[i] for i in path])[-1]
        close(found[node], expected)
    accepted = path_to(6, parents)
    cache.move(pages, [(PROMPT + i, PROMPT + j) for j, i in enumerate(accepted) if i != j])
    text = context + [nodes[i] for i in accepted] + tokens(2, 5)
    close(run(target, cache, one(text[-2:], len(text) - 2, pages)), reference(model, text)[-2:])


@pytest.mark.parametrize(("forward", "name"), [("lean", "llama"), ("general", "gemma3")])
def test_only_the_wanted_logits_are_returned(forward: str, name: str) -> None:
    target, model = pair(forward, name)
    text = tokens(12, 6)
    cache = target.make_cache(2)
    found = run(target, cache, SequenceInput(text, 0, [0], keep_last=2), SequenceInput(text[:5], 0, [1], keep_last=0))
    assert found.dtype == torch.float32
    close(found, reference(model, text)[-2:])


def test_a_copied_page_serves_another_sequence() -> None:
    target, model = pair("lean", "llama")
    text = tokens(20, 8)
    cache = target.make_cache(3)
    run(target, cache, one(text[:18], 0, [2]))
    cache.copy_page(2, 0)
    run(target, cache, one(tokens(2, 9), 18, [2]))
    close(run(target, cache, one(text[18:], 18, [0])), reference(model, text)[18:])
