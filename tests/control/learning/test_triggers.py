"""When a run is due."""

from dataclasses import replace
from datetime import UTC, datetime

from prolepsis.control.learning.triggers import RuleNews, due, last_of
from prolepsis.control.policy.learning_terms import LearningTerms, WhenTerms
from prolepsis.core.config import DAY_S
from prolepsis.core.learning import DatasetManifest

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
QUIET = RuleNews(since=NOW.timestamp() - 2 * DAY_S, new_tokens=1000)
TERMS = LearningTerms(tenants=("acme",))


def trigger(news: RuleNews, terms: LearningTerms = TERMS, now: datetime = NOW) -> str | None:
    found = due({"code": terms}, {"code": news}, now)
    return found[1] if found else None


def test_nothing_is_due_for_a_rule_that_has_learnt_of_late_or_has_nothing_new() -> None:
    assert trigger(QUIET) is None
    assert trigger(replace(QUIET, new_tokens=0, since=0.0, drifted=True, is_new_target=True)) is None
    assert due({"code": TERMS}, {}, NOW) is None


def test_each_trigger_makes_it_due() -> None:
    assert trigger(replace(QUIET, drifted=True)) == "drift"
    assert trigger(replace(QUIET, new_tokens=200_000)) == "new_tokens"
    assert trigger(replace(QUIET, since=NOW.timestamp() - 7 * DAY_S)) == "age"
    assert trigger(replace(QUIET, is_new_target=True)) == "target"


def test_a_trigger_that_the_terms_leave_out_does_not() -> None:
    off = TERMS.model_copy(update={"when": WhenTerms(drift=False, new_tokens=None, days=None)})
    assert trigger(replace(QUIET, drifted=True, new_tokens=10**9, since=0.0), off) is None
    by_hand = TERMS.model_copy(update={"run": "by_hand"})
    assert trigger(replace(QUIET, drifted=True, is_new_target=True), by_hand) is None


def test_a_run_that_did_not_help_is_not_repeated_at_once_for_the_same_drift() -> None:
    assert trigger(replace(QUIET, drifted=True, since=NOW.timestamp() - 0.9 * DAY_S)) is None


def test_it_begins_in_its_hours() -> None:
    nights = TERMS.model_copy(update={"when": WhenTerms.model_validate({"time": {"hours": "01:00-05:00"}})})
    assert trigger(replace(QUIET, drifted=True), nights) is None
    assert trigger(replace(QUIET, drifted=True), nights, NOW.replace(hour=2)) == "drift"


def test_of_several_the_stronger_trigger_comes_first_then_the_one_that_waited_longest() -> None:
    old = replace(QUIET, since=NOW.timestamp() - 30 * DAY_S)
    older = replace(old, since=old.since - DAY_S)
    blocks = dict.fromkeys(("a", "b", "c"), TERMS)
    found = due(blocks, {"a": old, "b": older, "c": replace(QUIET, drifted=True)}, NOW)
    assert found is not None
    assert found[:2] == ("c", "drift")
    found = due(blocks, {"a": old, "b": older}, NOW)
    assert found is not None
    assert found[0] == "b"


def test_the_last_data_set_is_that_of_the_target() -> None:
    def manifest(rule: str, target: str, made_at: float) -> DatasetManifest:
        return DatasetManifest(
            rule=rule,
            made_at=made_at,
            first_at=0.0,
            last_at=made_at,
            target=target,
            tokenizer="",
            filters={},
            examples={},
            held_out_from=0.0,
            base="",
        )

    sets = [manifest("code", "aa00", 1.0), manifest("code", "aa00", 2.0), manifest("chat", "bb00", 3.0)]
    assert last_of(sets, "code", "aa") == (sets[1], False)
    assert last_of(sets, "code", "bb") == (None, True)
    assert last_of(sets, "edit", "aa") == (None, False)
