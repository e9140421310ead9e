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
A, B = 4.9, 5.9
"""Of the share of steps whose draft begins right, over answers: as of the default model's, 0.46 with deviation 0.14."""


@dataclass(frozen=True)
class Answer:
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    run: AcceptedRun
    num_judged: int
    num_right: int
    num_plain: int  # steps in which nothing was worth a draft

    def judged_by(self, watch: QualityWatch, *, of: str = CHAT, head: str = "head@1", copies: bool = False) -> Quality:
        expected = self.prompt if copies else ()
        request = GenerateRequest("r", self.prompt, SamplingParams(), traffic_class=of, prediction_token_ids=expected)
        stats = RequestStats(
            longest_run=self.run, heads={"draft_head": head}, plain_steps={"too_costly": self.num_plain}
        )
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
    """Return random tokens: of 200 steps a third has a draft, of which 2 to 10 % begin right."""
    return answer(chance, text(chance, 200), text(chance, 4), chance.uniform(0.007, 0.033), drafting=0.34)


def answer(
    chance: random.Random, prompt: Sequence[int], run: Sequence[int], rate: float, drafting: float = 0.9
) -> Answer:
    """`rate`: share of steps whose draft begins right; `drafting`: of those that have one."""
    before, after = text(chance, chance.randint(10, 60)), text(chance, 20)
    num_steps = 200 if drafting < 0.5 else chance.randint(32, 200)
    num_right = sum(chance.random() < rate for _ in range(num_steps))
    num_judged = max(num_right, round(drafting * num_steps))
    tokens, run_of = (*before, *run, *after), AcceptedRun(0, len(before), len(run))
    return Answer(tuple(prompt), tokens, run_of, num_judged, num_right, num_steps - num_judged)


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


def test_a_class_of_short_answers_has_loops_and_is_not_called_ordinary() -> None:
    chance = random.Random(9)
    watch = QualityWatch()
    for _ in range(2 * LEARN):
        assert replace(ordinary(chance), num_judged=9, num_right=4, num_plain=0).judged_by(watch) == "unjudged"
    assert looping(chance).judged_by(watch) == "looping"


def test_loops_are_no_part_of_a_norm_even_while_it_is_learned() -> None:
    chance = random.Random(3)
    watch = QualityWatch()
    for number in range(2 * LEARN):
        (looping if number % 2 else ordinary)(chance).judged_by(watch)
    assert looping(chance).judged_by(watch) == "looping"


def test_many_garbled_answers_hide_none_and_a_class_that_changed_is_learned_again() -> None:
    chance = random.Random(4)
    watch = learned(chance)
    marks = [(garbled if number % 8 == 0 else ordinary)(chance).judged_by(watch) for number in range(800)]
    assert marks[::8].count("garbled") > 80
    assert [garbled(chance).judged_by(watch) for _ in range(300)].count("garbled") >= 100
    assert [garbled(chance).judged_by(watch) for _ in range(50)] == ["ordinary"] * 50


def test_a_time_of_few_drafts_garbles_nothing() -> None:
    """A full batch leaves room for the surest drafts only, of which as many are right as ever."""
    chance = random.Random(8)
    watch = learned(chance)
    for _ in range(20):
        assert replace(ordinary(chance), num_judged=8, num_right=4, num_plain=150).judged_by(watch) == "ordinary"


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
    assert "copied" not in marks


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
    """The share is that of the exact tail, as long as chances are beta distributed: here two of 4,000 are expected."""
    chance = random.Random(7)
    watch = learned(chance)
    marks = [ordinary(chance).judged_by(watch) for _ in range(4000)]
    assert marks.count("garbled") <= 3 * GARBLED * 4000
