"""Whether an engine is known to emit the tokens that were to come."""

from dataclasses import replace

from prolepsis.core.continuation import Continuation
from prolepsis.core.exact_group import ExactGroup

GROUP = ExactGroup(weights="w", tokenizer="t", forward="f", exactness="strict", machine="")


def test_the_same_group_has_no_differences() -> None:
    assert Continuation(emitted=((1,),), group=GROUP).differences(GROUP) == ()


def test_every_part_that_differs_is_named() -> None:
    other = replace(GROUP, forward="g", machine="m")
    found = Continuation(emitted=((1,),), group=GROUP).differences(other)
    assert found == ("forward f recorded, g here", "machine unknown recorded, m here")


def test_parts_unknown_on_both_sides_do_not_match() -> None:
    vague = replace(GROUP, weights="")
    assert Continuation(emitted=((1,),), group=vague).differences(vague) == ("weights unknown",)
