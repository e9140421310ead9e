"""Tiny models of families: the tokenizer of the vocabulary, the template's marks as tokens, a text that repeats."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.families import NEEDS_PUBLISHED, write_named
from tests.engine.models.files.vocabularies import ADDED, OWN
from tests.engine.models.tiny import one, run

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
CHAT = [{"role": "user", "content": "hello\nworld"}]
Made = Callable[[str, str], Path]


def held(tokenizer: ModelTokenizer) -> None:
    """Check what a template of Hermes' kind asks of a tokenizer."""
    assert [tokenizer.encode(mark, add_special_tokens=False) for mark in ADDED] == [
        [tokenizer.vocab[mark]] for mark in ADDED
    ]
    assert tokenizer.special_token_ids.isdisjoint(tokenizer.vocab[mark] for mark in MARKS)
    assert tokenizer.eos_token_ids[0] == tokenizer.vocab["<|im_end|>"] in tokenizer.special_token_ids
    ids = tokenizer.apply_chat_template(CHAT)
    assert "hello\nworld<|im_end|>\n<|im_start|>assistant\n" in tokenizer.decode(ids, skip_special_tokens=False)


def greedy(path: Path, length: int) -> list[int]:
    checkpoint = open_checkpoint(path, torch.float32)
    target = LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny", torch.device("cpu"))
    new, cache, output = load_tokenizer(path).apply_chat_template(CHAT), target.make_cache(20), list[int]()
    cached = 0
    while len(output) < length:
        logits = run(target, cache, one(new, cached, list(range(20))))
        cached += len(new)
        new = [int(logits[-1].argmax())]
        output += new
    return output


@pytest.mark.parametrize("vocabulary", OWN)
def test_a_family_of_our_own_has_its_marks_and_repeats_itself(tiny_family: Made, vocabulary: str) -> None:
    path = tiny_family(vocabulary, "hermes")
    assert path == tiny_family(vocabulary, "hermes")
    held(load_tokenizer(path))
    output = greedy(path, 200)
    pairs = set(pairwise(output))
    assert len(pairs) < 100, "half of the pairs have been there before"


def test_bytes_spell_what_a_sentencepiece_vocabulary_lacks(tiny_family: Made) -> None:
    tokenizer = load_tokenizer(tiny_family("sentencepiece", "hermes"))
    assert tokenizer.encode("hello\né", add_special_tokens=False) == [
        tokenizer.vocab[token] for token in ("hello", "<0x0A>", "<0xC3>", "<0xA9>")
    ]


@pytest.mark.parametrize("vocabulary", OWN)
def test_a_folder_is_the_same_model_as_the_file(tiny_family: Made, tmp_path: Path, vocabulary: str) -> None:
    file, folder = tiny_family(vocabulary, "hermes"), write_named(tmp_path / "folder", vocabulary, "hermes")
    held(load_tokenizer(folder))
    by_file, by_folder = (open_checkpoint(path, torch.float32) for path in (file, folder))
    assert by_folder.eos_token_ids == by_file.eos_token_ids
    for name, tensor in by_folder.tensors.items():
        torch.testing.assert_close(by_file.tensors[name], tensor, rtol=0.01, atol=0.05)


@NEEDS_PUBLISHED
def test_a_published_family_has_its_marks_in_rows_that_were_kept_for_more(tiny_family: Made) -> None:
    tokenizer = load_tokenizer(tiny_family("qwen2", "Qwen-QwQ-32B"))
    held(tokenizer)
    assert tokenizer.vocab_size == 151_936
