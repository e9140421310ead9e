"""What a review looks at: each rule with a period that it names, and one that it does not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import nan

import pytest

from prolepsis.control.policy.model import Policy
from prolepsis.core.traffic_sums import Drafted
from prolepsis.ops.incident.period import Period
from prolepsis.ops.incident.prometheus import Firing
from prolepsis.ops.incident.review import ErrorBudget, Review, budgets, page
from prolepsis.ops.incident.timeline import Happening, Kind
from prolepsis.ops.incident.week import Spent, Traffic, VerifierUse, WeekFigures

END = datetime(2026, 11, 22, tzinfo=UTC)
GOOD = Traffic(
    num_requests=100,
    num_failed=1,
    num_output_tokens=5000,
    num_draft_tokens=1000,
    num_accepted=800,
    device_s=50.0,
    predicted_plain_s=100.0,
)
FIGURES = WeekFigures({"chat": GOOD}, {("chat", "suffix"): Drafted(1000, 800)}, {"overloaded": 1})
QUIET = Review(
    period=Period(END - timedelta(days=7), END), this=FIGURES, before=FIGURES, happened=(), budgets=None, alerts=()
)


def chat(traffic: Traffic) -> WeekFigures:
    return replace(FIGURES, classes={"chat": traffic})


def drafted(accepted: int, of: int = 1000) -> WeekFigures:
    return replace(FIGURES, proposers={("chat", "suffix"): Drafted(of, accepted)})


def happened(kind: Kind, what: str) -> tuple[Happening, ...]:
    return (Happening(END.timestamp() - 60, kind, what, "server", "suffix chat", "reason cliff"),)


@pytest.mark.parametrize(
    ("review", "found"),
    [
        (replace(QUIET, this=drafted(720)), ("acceptance fell", "suffix, chat")),
        (replace(QUIET, this=chat(replace(GOOD, num_failed=2))), ("requests fail", "chat")),
        (replace(QUIET, happened=happened("event", "breaker.open")), ("a breaker opened", "suffix chat")),
        (
            replace(QUIET, happened=happened("rollout", "rollout.rolled_back")),
            ("a rollout was rolled back", "suffix chat"),
        ),
        (
            replace(QUIET, happened=happened("event", "replay.structural")),
            ("a replay differs from its request", "suffix chat"),
        ),
        (replace(QUIET, budgets=[ErrorBudget("latency", 0.2)]), ("an error budget is nearly spent", "latency")),
        (replace(QUIET, budgets=[ErrorBudget("latency", -0.2)]), ("an error budget is overspent", "latency")),
        (
            replace(QUIET, alerts=[Firing({"alertname": "Fell", "severity": "page"}, 0.0, None)]),
            ("an alert paged", "Fell"),
        ),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_each_rule_names_what_it_finds(review: Review, found: tuple[str, str]) -> None:
    assert [(one.what, one.subject) for one in review.findings] == [found]
    assert f"| {found[0]} | {found[1]} |" in page(review)


@pytest.mark.parametrize(
    "review",
    [
        QUIET,
        replace(QUIET, this=drafted(721)),
        replace(QUIET, this=drafted(0, of=499)),
        replace(QUIET, this=chat(replace(GOOD, num_requests=49, device_s=200.0))),
        replace(QUIET, this=chat(replace(GOOD, num_draft_tokens=0, num_accepted=0, device_s=101.0))),
        replace(QUIET, budgets=[ErrorBudget("latency", 0.25)]),
        replace(QUIET, alerts=[Firing({"alertname": "Fell", "severity": "ticket"}, 0.0, None)]),
        replace(QUIET, happened=happened("event", "breaker.closed")),
        replace(QUIET, this=WeekFigures(), before=WeekFigures()),
    ],
)
def test_weak_evidence_is_not_reported(review: Review) -> None:
    assert review.findings == []
    assert "Nothing, by these rules" in page(review)


def test_the_least_budget_comes_first_and_one_without_events_is_left_out() -> None:
    values = [({"sloth_slo": "latency", "tier": "free"}, 0.5), ({"sloth_slo": "correctness"}, nan), ({}, -0.1)]
    assert budgets(values) == [ErrorBudget("", -0.1), ErrorBudget("latency free", 0.5)]


@pytest.mark.parametrize(
    ("remaining", "left"),
    [(0.5, "50 %"), (0.0, "0 %"), (-0.2, "nothing (1.2 times spent)"), (-37.7, "nothing (38.7 times spent)")],
)
def test_what_is_left_of_a_budget_is_told_in_words(remaining: float, left: str) -> None:
    """It was "-3.77e+03 % left"."""
    assert f"| latency | {left} |" in page(replace(QUIET, budgets=[ErrorBudget("latency", remaining)]))


def test_the_page_compares_two_periods() -> None:
    shown = page(replace(QUIET, this=drafted(700), budgets=[ErrorBudget("latency", 0.5)]))
    assert "| latency | 50 % |" in shown
    assert "|  | suffix |  | 1,000 | 70 % | 80 % |  |" in shown
    assert "| overloaded | 1 | 1 |" in shown
    assert "| requests | 100 | 100 |" in shown


MONTH = replace(QUIET, period=Period(END - timedelta(days=30), END))
QUARTER = replace(QUIET, period=Period(END - timedelta(days=91), END))
DRILL = Happening(END.timestamp() - 60, "change", "drill.run", "ops", "kill-engine", "passed")


def test_a_month_says_what_was_expected_and_what_came() -> None:
    spent = Spent("EUR", 100.0, 50.0, 10, 30.0, 15.0)
    more = replace(FIGURES, classes={"chat": replace(GOOD, num_requests=150)}, spent=(spent,))
    shown = page(replace(MONTH, this=more, before=replace(FIGURES, spent=(replace(spent, amount_paid=20.0),))))
    assert "| requests | 100 | 150 | +50 % | 200 |" in shown
    assert "| paid, EUR | 20 | 30 | +50 % | 40 |" in shown
    assert "What was expected" not in page(QUIET)
    assert "## Drills" not in shown


def test_a_quarter_has_capacity_heads_and_drills() -> None:
    spent = Spent("EUR", 100.0, 80.0, 10, None, None)
    swap = Happening(END.timestamp() - 100 * 86400, "change", "head.swapped", "ops", "draft_head", "a@1 -> a@2")
    busy = replace(QUARTER, this=replace(FIGURES, spent=(spent,)), swaps=(swap,), happened=(DRILL,))
    assert {one.what for one in busy.findings} == {"a draft head is old", "capacity is short"}
    shown = page(busy)
    assert "| draft_head | 2026-08-14 00:00:00 | 100 days | a@1 -> a@2 |" in shown
    assert "kill-engine" in shown
    assert [one.what for one in QUARTER.findings] == ["no drill was run"]


def test_a_month_says_what_verification_took_of_each_rule() -> None:
    used = replace(
        FIGURES, verifier={"code": VerifierUse(7200.0, 1800.0, 720.0), "default": VerifierUse(0.0, 0.0, 0.0)}
    )
    former = replace(FIGURES, verifier={"code": VerifierUse(100.0, 20.0, 5.0)})
    shown = page(replace(MONTH, this=used, before=former, owners={"code": "team a"}))
    assert "| code | team a | 2 | 25 % | 20 % | 10 % | 5 % |" in shown
    assert "| default |  | 0 | - | - | - | - |" in shown
    assert "What verification took" not in page(QUIET)


def test_a_quarter_has_a_safety_audit_with_who_acted() -> None:
    end = END.timestamp()
    acts = [
        Happening(end - 300, "event", "breaker.open", "server", "suffix chat", ""),
        Happening(end - 200, "event", "breaker.open", "server", "suffix chat", ""),
        Happening(end - 100, "rollout", "rollout.rolled_back", "ann", "code@1", ""),
        Happening(end - 60, "change", "policy.applied", "bob", "version 2", ""),
        Happening(end - 50, "change", "policy.applied", "ann", "version 3", ""),
        Happening(end - 40, "use", "file.deleted", "acme", "a", ""),
    ]
    review = replace(QUARTER, happened=acts, counted={"requests replayed: match": 1200.0})
    assert [(row.what, row.act, row.number, row.who) for row in review.safety] == [
        ("breakers opened", "breaker.open", 2, "server"),
        ("speculation was stopped", "", 0, ""),
        ("rollbacks", "rollout.rolled_back", 1, "ann"),
        ("replays that differ", "", 0, ""),
        ("comparisons with plain decoding", "", 0, ""),
        ("drills", "", 0, ""),
        ("changes of the policy", "policy.applied", 2, "ann, bob"),
        ("requests replayed: match", "", 1200.0, ""),
    ]
    assert "| breakers opened | 2 | breaker.open | server | 2026-11-21 23:56:40 |" in page(review)
    assert "| requests replayed: match | 1200 |  |  |  |" in page(review)
    assert "which was not asked" not in page(review)
    assert "which was not asked" in page(QUARTER)
    assert "## Safety" not in page(MONTH)


@pytest.mark.parametrize(
    ("subject", "owner"),
    [
        ("suffix chat/standard/free/short/code", "team a"),
        ("suffix, chat/standard/free/short/code/language=de", "team a"),
        ("code@12ab", "team a"),
        ("suffix chat/standard/free/short", "platform"),
        ("suffix chat/standard/free/short/other", "platform"),
        ("draft_head", "platform"),
    ],
)
def test_a_finding_names_the_owner_of_its_rule(subject: str, owner: str) -> None:
    opened = Happening(END.timestamp() - 60, "event", "breaker.open", "server", subject, "")
    owners = {"default": "platform", "code": "team a"}
    [finding] = replace(QUIET, happened=[opened], owners=owners).findings
    assert finding.owner == owner
    assert f"| {owner} |" in page(replace(QUIET, happened=[opened], owners=owners))


def test_rules_name_their_owners_or_those_of_the_policy() -> None:
    rules = [{"name": "a", "match": {"tenant": "a"}, "owner": "team a"}, {"name": "b", "match": {"tenant": "b"}}]
    policy = Policy.model_validate({"owner": "platform", "rules": rules})
    assert policy.owners == {"default": "platform", "a": "team a", "b": "platform"}
    assert policy.digest == Policy.model_validate({"rules": [{**rule, "owner": ""} for rule in rules]}).digest
    assert "| a | team a |" in page(replace(QUIET, owners=policy.owners))
