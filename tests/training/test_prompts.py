"""Prompts are planned from tables, from words of the vocabulary, and from the user's own file."""

import random
import string
from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.training.prompts import (
    OwnPrompt,
    PromptPlanner,
    Words,
    prompt_tables,
    read_prompts,
    whole_sentences,
    words_of,
)

WORDS = Words(("copper", "harbour"), ("Boyle", "Kenya"), ("mites", "sidewalks"))


def test_plans_are_the_same_for_the_same_number_and_cover_all_kinds() -> None:
    planner = PromptPlanner(seed=3)
    for i in range(4):
        planner.add_passage("article", f"Passage {i} has a first sentence. " * 10)
    plans = [planner.plan(number) for number in range(600)]
    again = PromptPlanner(seed=3)
    assert [p.temperature for p in plans] == [again.plan(number).temperature for number in range(600)]
    assert {p.kind for p in plans} == {kind.name for kind in prompt_tables().kinds}
    assert 0.6 < sum(p.temperature == 0.0 for p in plans) / len(plans) < 0.8
    assert all(0.7 <= p.temperature <= 1.0 for p in plans if p.temperature)
    assert not any("{passage}" in p.opener or "{topic}" in p.opener or "{name}" in p.opener for p in plans)
    assert any("Passage" in p.opener for p in plans if p.kind == "summary")


def test_without_passages_no_prompt_is_about_one() -> None:
    kinds = {PromptPlanner(seed=1).plan(number).kind for number in range(300)}
    assert "summary" not in kinds
    assert "article" in kinds


def test_openers_that_end_a_turn_are_not_continued() -> None:
    plans = [PromptPlanner(seed=1).plan(number) for number in range(300)]
    assert all(p.open == (not p.opener or p.opener[-1].isspace()) for p in plans)
    assert {p.open for p in plans} == {True, False}


def test_own_prompts_come_first() -> None:
    planner = PromptPlanner(0, [OwnPrompt("one"), OwnPrompt("two", "edit", "Be brief.")])
    plans = [planner.plan(n) for n in range(2)]
    assert [(p.kind, p.system, p.opener) for p in plans] == [("given", None, "one"), ("edit", "Be brief.", "two")]
    assert planner.plan(2).kind != "given"


@pytest.mark.parametrize(
    ("text", "kept"), [("One. Two. Thr", "One. Two."), ("No end", "No end"), ("All of it.", "All of it.")]
)
def test_whole_sentences(text: str, kept: str) -> None:
    assert whole_sentences(text) == kept


def test_a_broken_line_of_a_prompts_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n\n{"text": "two"}\n')
    with pytest.raises(ConfigError, match="line 3"):
        read_prompts(file)
    file.write_text('["one"]\n')
    with pytest.raises(ConfigError, match="line 1"):
        read_prompts(file)
    lines = '{"prompt": "one"}\n\n{"prompt": "two\u2028three", "kind": "edit", "system": "Be brief."}\n'
    file.write_text(lines, encoding="utf-8")
    assert read_prompts(file) == [OwnPrompt("one"), OwnPrompt("two\u2028three", "edit", "Be brief.")]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "missing")


class Vocabulary:
    """Token i is the i-th text."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def decode(self, token_ids: list[int]) -> str:
        return self.texts[token_ids[0]]


def made_up(first: str, last: str) -> list[str]:
    letters = string.ascii_lowercase
    return [f" {first}{a}{b}{last}" for a in letters for b in letters][:120]


def test_words_are_whole_tokens_of_letters_behind_a_space() -> None:
    good = [*made_up("m", "ind"), *made_up("c", "ups"), *made_up("K", "aya")]
    bad = ["inside", " the", " d3mo", " naïve", " CPU", "  two", "\n", "<|end|>"]
    words = words_of(Vocabulary(bad + good), len(bad + good))  # type: ignore[arg-type]
    assert set(words.common) == {word[1:] for word in good if word.islower()}
    assert set(words.proper) == {word[1:] for word in made_up("K", "aya")}
    assert set(words.plural) == {word[1:] for word in made_up("c", "ups")}


def test_a_vocabulary_without_words_gives_none() -> None:
    assert words_of(Vocabulary([" lonely", " word"]), 2) == Words()  # type: ignore[arg-type]
    rng = random.Random(1)
    empty = Words()
    assert (empty.topic(rng), empty.name(rng), empty.thing(rng), empty.continuation(rng)) == (None, None, None, "")


def test_prompts_are_about_these_words_and_listed_topics() -> None:
    planner = PromptPlanner(7, words=WORDS)
    openers = [planner.plan(number).opener for number in range(600)]
    assert [planner.plan(number).opener for number in range(5)] == openers[:5]
    for word in ("copper", "harbour", "Boyle", "Kenya", "mites", "sidewalks"):
        assert any(word in opener for opener in openers), word
    assert any(topic in opener for opener in openers for topic in prompt_tables().topics)
    assert any(opener == "" for opener in openers), "nothing to continue from stays nothing"


@pytest.mark.parametrize("number", range(40))
def test_an_opener_that_is_written_on_still_ends_so_and_code_is_left_alone(number: int) -> None:
    plan = PromptPlanner(7, words=WORDS).plan(number)
    assert plan.open == (not plan.opener or plan.opener[-1].isspace())
    assert "```\ncopper" not in plan.opener
