"""What a run learns from: who agreed, each text once, the later part held out, and nobody who outweighs all others."""

from dataclasses import replace
from itertools import count

import pytest

from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.core.errors import ConfigError
from prolepsis.core.learning import Example, tenant_digest
from prolepsis.training.evaluation import LEAST_DOCUMENTS
from prolepsis.training.examples import dataset_of

INFO = {"target": "f" * 32, "tokenizer": "t" * 16}
TERMS = LearningTerms(tenants=("acme",))
ALL = LearningTerms(tenants=("acme", "blue", "cyan"), serves="all", min_tenants=2)
NOW = 10_000.0
_NUMBERS = count(1)


def _example(at: float, tenant: str = "acme", *, answer: int = 4, **changes: object) -> Example:
    """Return an example whose tokens no other one has."""
    number = next(_NUMBERS)
    example = Example(
        example_id=f"{number:032}",
        tokenizer=INFO["tokenizer"],
        rule="code",
        tenant=tenant,
        traffic_class="chat",
        at=at,
        prompt=(number, 1),
        answer=(number,) * answer,
        greedy=True,
    )
    return replace(example, **changes)  # type: ignore[arg-type]


def _many(number: int, tenant: str = "acme", since: float = 1.0, *, answer: int = 4) -> list[Example]:
    return [_example(since + i, tenant, answer=answer) for i in range(number)]


def _used(examples: list[Example], terms: LearningTerms = TERMS) -> tuple[list[Example], list[Example]]:
    manifest, used = dataset_of(examples, terms, NOW, **INFO)
    first = manifest.held_out_from
    return [example for example in used if example.at < first], [example for example in used if example.at >= first]


@pytest.mark.parametrize(("number", "held_out"), [(80, 40), (150, 40), (300, 60)])
def test_a_fifth_that_came_last_is_held_out(number: int, held_out: int) -> None:
    examples = _many(number)
    training, later = _used(examples[::-1])
    assert (training, later) == (examples[:-held_out], examples[-held_out:])


@pytest.mark.parametrize(("num_drawn", "num_later"), [(40, 40), (39, 60)])
def test_later_examples_that_were_drawn_by_chance_are_held_out_where_they_are_enough(
    num_drawn: int, num_later: int
) -> None:
    examples = [replace(example, by_chance=i % 300 >= 300 - num_drawn) for i, example in enumerate(_many(300))]
    training, later = _used(examples)
    assert (training, later) == (examples[:240], examples[-num_later:])


def test_what_began_at_once_is_on_one_side() -> None:
    examples = [*_many(60), *(_example(500.0) for _ in range(50))]
    training, later = _used(examples)
    assert (len(training), len(later)) == (60, 50)


def test_the_manifest_says_what_was_learnt_from_and_has_no_text() -> None:
    examples = [*_many(90), _example(500.0, traffic_class="tools", answer=7)]
    manifest, _ = dataset_of(examples, TERMS, NOW, **INFO)
    assert (manifest.made_at, manifest.first_at, manifest.last_at) == (NOW, 1.0, 500.0)
    assert (manifest.rule, manifest.target, manifest.tokenizer) == ("code", *INFO.values())
    assert manifest.held_out_from == examples[-40].at
    assert manifest.examples == {tenant_digest("acme"): tuple(sorted(e.example_id[:16] for e in examples))}
    assert LearningTerms.model_validate(manifest.filters, strict=False) == TERMS


@pytest.mark.parametrize(
    "unusable",
    [
        _example(1.0, "blue"),
        _example(NOW + 1.0),
        _example(1.0, tokenizer="another"),
        _example(1.0, answer=1),
        _example(1.0, prompt=()),
    ],
    ids=["has not agreed", "began later", "of another tokenizer", "short", "no prompt"],
)
def test_what_cannot_be_learnt_from_is_left_out(unusable: Example) -> None:
    examples = _many(80)
    training, later = _used([*examples, unusable])
    assert [*training, *later] == examples


def test_too_few_are_counted() -> None:
    with pytest.raises(ConfigError, match="there are 79 of 80 different examples"):
        dataset_of(_many(79), TERMS, NOW, **INFO)


def test_of_a_conversation_the_longest_request_counts() -> None:
    first = _example(1.0)
    second = _example(2.0, prompt=(*first.prompt, *first.answer, 7, 8))
    third = _example(3.0, prompt=(*second.prompt, *second.answer, 7))
    again = _example(4.0, prompt=first.prompt)
    examples = _many(80, since=100.0)
    training, later = _used([third, again, first, second, *examples])
    assert [*training, *later] == [third, again, *examples]


def test_of_equal_texts_the_oldest_counts() -> None:
    first, examples = _example(1.0), _many(80, since=100.0)
    training, later = _used([replace(first, at=50.0, example_id="9" * 32), first, *examples])
    assert [*training, *later] == [first, *examples]


def test_all_may_be_served_by_what_enough_tenants_gave() -> None:
    with pytest.raises(ConfigError, match="there are examples of 1 of 2 tenants"):
        dataset_of(_many(90), ALL, NOW, **INFO)
    training, later = _used([*_many(45), *_many(45, "blue", 1.5)], ALL)
    assert {example.tenant for example in [*training, *later]} == {"acme", "blue"}


def test_no_tenant_has_more_than_half_of_the_tokens() -> None:
    large, small = _many(90), _many(20, "blue", 200.0, answer=8) + _many(30, "cyan", 300.0)
    training, later = _used([*large, *small], ALL)
    kept = [example for example in [*training, *later] if example.tenant == "acme"]
    others = sum(len(example.prompt + example.answer) for example in small)
    assert others - 6 < sum(len(example.prompt + example.answer) for example in kept) <= others
    assert kept == large[-len(kept) :], "the oldest are left out"
    assert LEAST_DOCUMENTS == 40
