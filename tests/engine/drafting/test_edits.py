"""Tokens a step on edits of source, with the tokenizer of a published model. Counts, the same on every machine.

They were taken with Python 3.11; the bars are 5 % below, as the source of other versions differs a little.
"""

import calendar
import configparser
import csv
import difflib
import fractions
import heapq
import inspect
import queue
import shlex
import statistics
import string
import textwrap
import threading
import unittest
from functools import cache

import pytest

from prolepsis.engine.drafting.proposers.expected_text import PredictionProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.models.files.gguf_file import GgufFile
from prolepsis.engine.models.files.gguf_tokenizer import gguf_parts
from prolepsis.engine.native.proposing import draft_kernel
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.drafting.replay import PROMPT, Replay, edit, excerpt, tokens_a_step
from tests.engine.models.families import NEEDS_PUBLISHED, published

pytestmark = [
    NEEDS_PUBLISHED,
    pytest.mark.skipif(draft_kernel() is None, reason="no compiled suffix index on this machine"),
]
BARS = [
    ("rename", 7.1),
    ("values", 12.7),
    ("insert", 5.8),
    ("delete", 12.9),
    ("reindent", 13.2),
    ("udiff", 3.4),
    ("search/replace", 4.85),
    ("tool call", 5.6),
]
"""Before places were followed and copies made: 6.4, 11.5, 5.9, 12.7, 3.9, 2.6, 4.9 and 2.9."""
MODULES = (textwrap, shlex, heapq, configparser, statistics, string, queue, csv, fractions, calendar)


@cache
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(gguf_parts(GgufFile(published("vocab/ggml-vocab-qwen2.gguf"))))


@cache
def replays(kind: str) -> list[Replay]:
    sources = [excerpt(module, 30 + 20 * (i % 4)) for i, module in enumerate(MODULES)]
    return [Replay.of(tokenizer(), f"{kind}{i}", edit(kind, source, i), source) for i, source in enumerate(sources)]


def suffix() -> SuffixProposer:
    return SuffixProposer(1 << 20, tokenizer())


@pytest.mark.parametrize(("kind", "least"), BARS)
def test_tokens_a_step_of_a_suffix_draft(kind: str, least: float) -> None:
    assert tokens_a_step(replays(kind), suffix) >= least


@pytest.mark.parametrize("kind", ["reindent", "udiff", "tool call"])
def test_text_in_another_form_is_copied_only_with_copies_in_that_form(kind: str) -> None:
    without = tokens_a_step(replays(kind), lambda: SuffixProposer(1 << 20))
    assert tokens_a_step(replays(kind), suffix) > 1.2 * without


@pytest.mark.parametrize("kind", ["rename", "values", "insert", "delete"])
def test_edits_in_place_need_no_copies(kind: str) -> None:
    assert tokens_a_step(replays(kind), suffix) >= 0.99 * tokens_a_step(replays(kind), lambda: SuffixProposer(1 << 20))


def test_tokens_a_step_of_a_prediction() -> None:
    assert tokens_a_step(replays("rename"), PredictionProposer) >= 6.0


def test_prose_that_copies_little_loses_nothing() -> None:
    """It had 1.179 before places were followed."""
    documented = (heapq, threading.Thread, difflib.SequenceMatcher, unittest.TestCase)
    texts = [inspect.getdoc(each) or "" for each in documented]
    prose = [
        Replay.of(tokenizer(), f"prose{i}", (PROMPT.format(task="Write about this.", source=texts[i - 1]), text), "")
        for i, text in enumerate(texts)
    ]
    assert tokens_a_step(prose, suffix) >= 1.16
