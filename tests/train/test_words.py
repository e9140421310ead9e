"""Words that prompts are seeded with: whole ones, out of the target's own vocabulary."""

import random
import string

import pytest

from prolepsis.train.prompts import TOPICS, Planner
from prolepsis.train.words import Words, words_of

WORDS = Words(("copper", "harbour"), ("Boyle", "Kenya"), ("mites", "sidewalks"))


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
    nothing = Words()
    assert (nothing.topic(rng), nothing.name(rng), nothing.thing(rng), nothing.more(rng)) == (None, None, None, "")


def test_prompts_are_about_these_words_and_listed_topics() -> None:
    planner = Planner(7, words=WORDS)
    openers = [planner.plan(number).opener for number in range(600)]
    assert [planner.plan(number).opener for number in range(5)] == openers[:5]
    for word in ("copper", "harbour", "Boyle", "Kenya", "mites", "sidewalks"):
        assert any(word in opener for opener in openers), word
    assert any(topic in opener for opener in openers for topic in TOPICS)
    assert any(opener == "" for opener in openers), "nothing to go on from stays nothing"


@pytest.mark.parametrize("number", range(40))
def test_an_opener_that_is_written_on_still_ends_so_and_code_is_left_alone(number: int) -> None:
    plan = Planner(7, words=WORDS).plan(number)
    assert plan.open == (not plan.opener or plan.opener[-1].isspace())
    assert "```\ncopper" not in plan.opener
