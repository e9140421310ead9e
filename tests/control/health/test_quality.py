"""Answers whose acceptance is far from the norm of their class, staged with figures as the default model's are."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

import pytest

from prolepsis.control.health.quality import (
    GARBLED,
    LEARN,
    SHORTEST,
    QualityWatch,
    beta_binomial_tail,
    loops,
)
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import AcceptedRun, ProposerCounts, Quality, RequestStats

VOCAB = 49_152
CHAT = "chat-completions/standard/free/short"
A, B = 9.0, 12.0
"""Of the chance that a first token is right, over answers: as of the default model's greedy ones, 0.43 with sd 0.1."""


@dataclass(frozen=True)
class Answer:
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    run: AcceptedRun
    num_judged: int
    num_right: int

    def judged_by(self, watch: QualityWatch, *, of: str = CHAT, head: str = "head@1", copies: bool = False) -> Quality:
        expected = self.prompt if copies else ()
        request = GenerateRequest("r", self.prompt, SamplingParams(), traffic_class=of, prediction_token_ids=expected)
        stats = RequestStats(longest_run=self.run, heads={"draft_head": head})
        if self.num_judged:
            stats.proposers["draft_head"] = ProposerCounts(per_position=[[self.num_judged, self.num_right]])
        return watch.observe(request, stats, {0: self.tokens})


def text(chance: random.Random, number: int) -> tuple[int, ...]:
    return tuple(chance.choices(range(VOCAB), k=number))


def ordinary(chance: random.Random) -> Answer:
    """Return an answer whose longest run is short, or copies some of the prompt, or is a table that repeats itself."""
    prompt, kind = text(chance, 200), chance.random()
    if kind < 0.9:
        stretch = text(chance, min(80, 4 + int(chance.expovariate(1 / 12))))
    elif kind < 0.98:
        start = chance.randrange(100)
        stretch = prompt[start : start + chance.randint(20, 100)]
    else:
        stretch = text(chance, 6) * chance.randint(3, 8)
    return answer(chance, prompt, stretch, chance.betavariate(A, B))


def looping(chance: random.Random) -> Answer:
    period = chance.randint(1, 64)
    times = -(-chance.randint(max(SHORTEST, 3 * period), 400) // period)
    return answer(chance, text(chance, 200), text(chance, period) * times, chance.betavariate(A, B))


def garbled(chance: random.Random) -> Answer:
    """Return 200 random tokens, of whose drafts so many are judged, and 2 to 7 % right, as with the default model."""
    return answer(chance, text(chance, 200), text(chance, 4), chance.uniform(0.02, 0.07), (27, 97))


def answer(
    chance: random.Random, prompt: Sequence[int], run: Sequence[int], rate: float, judged: tuple[int, int] = (16, 150)
) -> Answer:
    before, after, num_judged = text(chance, chance.randint(10, 60)), text(chance, 20), chance.randint(*judged)
    num_right = sum(chance.random() < rate for _ in range(num_judged))
    tokens = (*before, *run, *after)
    return Answer(tuple(prompt), tokens, AcceptedRun(0, len(before), len(run)), num_judged, num_right)


def learned(chance: random.Random, number: int = 200) -> QualityWatch:
    watch = QualityWatch()
    for _ in range(number):
        ordinary(chance).judged_by(watch)
    return watch


def test_of_2000_ordinary_answers_at_most_2_are_marked_and_of_50_others_at_least_45() -> None:
    chance = random.Random(1)
    watch = learned(chance, LEARN)
    places = set(chance.sample(range(2050), 50))
    staged = [chance.choice((looping, garbled)) if place in places else ordinary for place in range(2050)]
    marks = [(make.__name__, make(chance).judged_by(watch)) for make in staged]
    assert sum(kind == "ordinary" and mark != "ordinary" for kind, mark in marks) <= 2
    assert sum(kind == mark != "ordinary" for kind, mark in marks) >= 45


def test_nothing_is_judged_before_a_class_has_a_norm_nor_without_drafts() -> None:
    chance = random.Random(2)
    watch = QualityWatch()
    marks = [ordinary(chance).judged_by(watch) for _ in range(LEARN + 1)]
    assert marks == ["unjudged"] * LEARN + ["ordinary"]
    loop = looping(chance)
    assert loop.judged_by(watch) == "looping"
    assert loop.judged_by(watch, of="completions/standard/free/short") == "unjudged"
    assert loop.judged_by(watch, head="head@2") == "unjudged"
    assert replace(loop, num_judged=0).judged_by(watch) == "unjudged"


def test_loops_are_no_part_of_a_norm_even_while_it_is_learned() -> None:
    chance = random.Random(3)
    watch = QualityWatch()
    for number in range(2 * LEARN):
        (looping if number % 2 else ordinary)(chance).judged_by(watch)
    assert looping(chance).judged_by(watch) == "looping"


def test_a_class_that_changed_is_learned_again_and_one_that_loops_is_not() -> None:
    chance = random.Random(4)
    watch = learned(chance)
    assert [looping(chance).judged_by(watch) for _ in range(150)] == ["looping"] * 150
    nonsense = replace(garbled(chance), num_judged=100, num_right=1)
    marks = [nonsense.judged_by(watch) for _ in range(100 + LEARN + 10)]
    assert marks == ["garbled"] * 100 + ["unjudged"] * LEARN + ["ordinary"] * 10


def test_a_long_run_of_the_prompt_is_a_copy_where_that_is_rare_and_was_not_asked_for() -> None:
    chance = random.Random(5)
    watch = learned(chance)
    prompt = text(chance, 3000)
    copied = answer(chance, prompt, prompt[100:2900], 0.5)
    assert copied.judged_by(watch, copies=True) == "ordinary"
    assert copied.judged_by(learned(chance)) == "copied"
    elsewhere = answer(chance, text(chance, 3000), prompt[100:2900], 0.5)
    assert elsewhere.judged_by(learned(chance)) == "ordinary"


def test_a_class_in_which_copies_are_common_marks_none() -> None:
    chance = random.Random(6)
    watch = QualityWatch()
    prompt = text(chance, 500)
    copied = answer(chance, prompt, prompt[50:450], 0.5)
    marks = [(copied if number % 10 == 0 else ordinary(chance)).judged_by(watch) for number in range(300)]
    assert set(marks) == {"unjudged", "ordinary"}


@pytest.mark.parametrize(
    ("tokens", "is_loop"),
    [
        ((7,) * 200, True),
        ((*range(50), *(1, 2, 3) * 60), True),
        (tuple(range(64)) * 4, True),
        (tuple(range(65)) * 8, False),  # its period is too long
        ((*range(40), *range(40)), False),  # twice
        ((*(1, 2, 3) * 60, *range(100)), False),  # it went on
        (tuple(range(300)), False),
        ((), False),
    ],
)
def test_a_loop_is_a_short_stretch_three_times_at_the_end(tokens: tuple[int, ...], is_loop: bool) -> None:
    assert loops(tokens) is is_loop


def test_the_tail_is_that_of_a_beta_binomial() -> None:
    assert [beta_binomial_tail(k, 9, 1.0, 1.0) for k in range(10)] == pytest.approx([(k + 1) / 10 for k in range(10)])
    binomial = fsum((20, 190, 1140)[k - 1] * 0.1**k * 0.9 ** (20 - k) for k in (1, 2, 3)) + 0.9**20
    assert beta_binomial_tail(3, 20, 1e6, 9e6) == pytest.approx(binomial, rel=1e-4)


def test_few_ordinary_answers_are_garbled_by_chance() -> None:
    """The share is that of the exact tail, as long as chances are beta distributed; here at most four in 4,000."""
    chance = random.Random(7)
    watch = learned(chance)
    marks = [ordinary(chance).judged_by(watch) for _ in range(4000)]
    assert marks.count("garbled") <= 2 * GARBLED * 4000
