"""The one table of reasons."""

from typing import get_args

from prolepsis.core.reasons import IN_WORDS, EffectiveReason, LimitReason, LossReason, PlainReason, VerdictReason


def test_every_reason_has_a_sentence_and_none_is_left_over() -> None:
    words = {
        word
        for kind in (EffectiveReason, PlainReason, LimitReason, LossReason, VerdictReason)
        for word in get_args(kind)
    }
    assert set(IN_WORDS) == words
    assert len(set(IN_WORDS.values())) == len(words), "no two mean the same"
