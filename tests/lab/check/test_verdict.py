"""What a check makes of comparisons: gains with bounds, the verdict, rules for a pilot."""

from collections.abc import Sequence

import pytest

from prolepsis.control.policy.model import Match
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.core.traffic_sums import Interval
from prolepsis.lab.check.verdict import ALL, AnswerComparison, Gain, KnownSoFar, gains, judged, match_of, ratio_of


def compared(kind: str, unit: str, plain_s: float, *, at_once: int = 1, steps: int = 20) -> AnswerComparison:
    return AnswerComparison(
        traffic_class=kind,
        at_once=at_once,
        unit=unit,
        num_tokens=40,
        num_steps=steps,
        plain_s=plain_s,
        speculated_s=1.0,
    )


def several(kind: str, ratios: Sequence[float], *, steps: int = 20) -> list[AnswerComparison]:
    return [compared(kind, str(number), ratio, steps=steps) for number, ratio in enumerate(ratios)]


FAST = several("code", (1.5, 1.6, 1.7, 1.6, 1.6))
SLOW = several("chat", (0.9, 0.92, 0.91, 0.9, 0.92))
MIXED = several("math", (0.7, 1.6, 1.1, 0.9, 1.3))


def known(*rows: AnswerComparison, **facts: object) -> KnownSoFar:
    sizes = {row.traffic_class: 100 for row in rows}
    return KnownSoFar(gains=[*gains(rows)], **{"num_compared": len(rows), "num_prompts": sizes, **facts})  # type: ignore[arg-type]


def test_comparisons_of_the_same_prompts_are_one_piece_of_evidence() -> None:
    [gain] = gains([compared("code", "one", 1.5), compared("code", "one", 1.7), compared("code", "two", 1.6)])
    assert (gain.num_requests, gain.num_comparisons) == (3, 2)
    assert gain.ratio.estimate == pytest.approx(1.6)
    assert gain.ratio.lower is None
    assert gain.plain_tokens_per_second == pytest.approx(120 / 4.8)
    assert gain.speculated_tokens_per_second == pytest.approx(40.0)
    assert gain.tokens_a_pass == 2.0


def test_all_together_comes_last_where_there_are_several_classes() -> None:
    group = compared("chat", "group 0", 2.0, at_once=4)
    found = [(gain.traffic_class, gain.at_once, gain.num_requests) for gain in gains([*FAST, *SLOW, group])]
    assert found == [("code", 1, 5), ("chat", 1, 5), ("chat", 4, 4), (ALL, 1, 10), (ALL, 4, 4)]


def test_bounds_of_few_pairs_are_those_of_student() -> None:
    assert ratio_of([(2.0, 1.0)] * 4) == Interval(2.0)
    found = ratio_of([(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0)])
    half = 2.78 * 2.5**0.5 / 5**0.5  # t of 4 degrees of freedom, standard deviation and root of 5
    assert [found.estimate, found.lower, found.upper] == pytest.approx([3.0, 3.0 - half, 3.0 + half])


@pytest.mark.parametrize(
    ("found", "number", "tokens_a_pass", "answer"),
    [
        (Interval(1.6), 4, 2.0, "not known"),
        (Interval(1.6, 1.4, 1.8), 5, 2.0, "worth it"),
        (Interval(1.6, 1.4, 1.8), 5, 1.02, "not known"),  # drafts cannot have brought it
        (Interval(1.6, 0.9, 2.3), 30, 2.0, "not known"),
        (Interval(1.05, 1.01, 1.09), 5, 1.1, "not known"),
        (Interval(1.05, 1.01, 1.09), 20, 1.1, "not"),  # a gain, but too little
        (Interval(0.9, 0.85, 0.95), 5, 1.1, "not"),
        (Interval(1.0, 0.95, 1.05), 19, 1.1, "not known"),
        (Interval(1.0, 0.95, 1.05), 20, 1.1, "not"),
    ],
)
def test_a_gain_is_known_by_twenty_comparisons_or_bounds_that_leave_out_one(
    found: Interval, number: int, tokens_a_pass: float, answer: str
) -> None:
    assert judged(found, number, tokens_a_pass) == answer


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (
            known(*FAST, *SLOW),
            "go: speculation is worth a pilot on code (1.60x, 1.51 to 1.69, 1 at once); "
            "`prolepsis pilot start` begins it",
        ),
        (
            known(*FAST, is_own=False, faults=["memory"]),
            "go: speculation is worth a pilot on code (1.60x, 1.51 to 1.69, 1 at once); "
            "these are the shipped prompts: check your own; first mend memory",
        ),
        (known(*SLOW), "do not: drafts bring too little to chat (0.91x, 0.90 to 0.92, 1 at once)"),
        (known(*FAST, num_different=1), "do not: 1 of 5 answers differ from plain decoding"),
        (
            known(*MIXED, *SLOW, minutes=3),
            "not known yet: needs --minutes 40 for math (1.12x, 0.69 to 1.55, 1 at once)",
        ),
        (
            known(*MIXED, num_prompts={"math": 5}),
            "not known yet: needs some 66 prompts of math (1.12x, 0.69 to 1.55, 1 at once); here are 5",
        ),
        (known(*FAST[:2], minutes=3), "not known yet: needs --minutes 8 for code (1.55x, 1 at once)"),
        (
            known(*FAST[:1], num_prompts={"code": 50, "chat": 50}),
            "not known yet: needs --minutes 30 for code (1.50x, 1 at once)",
        ),
        (KnownSoFar(minutes=0.5), "not known yet: needs time for a first comparison: --minutes 2"),
        (
            KnownSoFar(num_prompts={}),
            "not known yet: needs prompts with texts that fit the model's context; a trace has none",
        ),
    ],
)
def test_the_last_line(state: KnownSoFar, sentence: str) -> None:
    assert state.sentence == sentence


def test_a_pilot_gets_the_classes_that_are_worth_it_and_all_only_where_no_class_is() -> None:
    several_classes = [row for name in "abc" for row in several(name, (1.5, 1.6))]
    assert known(*FAST, *SLOW).pilot() == [{"name": "code", "match": match_of("code"), "at_once": [1]}]
    assert [rule["name"] for rule in known(*several_classes).pilot()] == [ALL]
    assert not known(*SLOW).pilot()
    assert not known(*FAST, num_different=1).pilot()


def test_all_classes_together_decide_nothing_before_each_was_compared() -> None:
    rows = [row for name in "abc" for row in several(name, (1.5, 1.6))]
    assert known(*rows).word == "go"
    assert known(*rows, num_prompts=dict.fromkeys("abcd", 9)).word == "not known yet"
    assert "of a (" in known(*rows, num_prompts=dict.fromkeys("abcd", 2)).sentence


@pytest.mark.parametrize(
    ("facts", "other"),
    [
        (RequestFacts(route="/v1/chat/completions", tier="premium", prompt_tokens=600), RequestFacts(route="/v1/x")),
        (
            RequestFacts(route="/v1/completions", tier="standard", prompt_tokens=9),
            RequestFacts(route="/v1/completions"),
        ),
    ],
)
def test_the_rule_of_a_traffic_class_matches_its_requests(facts: RequestFacts, other: RequestFacts) -> None:
    match = Match.model_validate(match_of(traffic_class_of(facts)))
    assert match.holds(facts)
    assert not match.holds(other)


def test_the_rule_of_a_category_asks_what_the_client_declares() -> None:
    assert match_of("code") == {"route": "/v1/chat/completions", "domain": "code"}
    assert match_of(ALL) == {"route": "/v1/chat/completions"}


def test_needed_comparisons_fall_with_the_distance_from_one() -> None:
    def needed(estimate: float) -> int:
        bounds = Interval(estimate, estimate - 0.5, estimate + 0.5)
        [gain] = gains(FAST)
        values = {name: getattr(gain, name) for name in Gain.__slots__} | {"ratio": bounds}
        return Gain(**values).num_needed

    assert [needed(estimate) for estimate in (1.5, 1.25, 1.0)] == [6, 20, 125]
