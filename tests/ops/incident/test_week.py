"""Figures of a period, from records."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from prolepsis.control.cost.device_time import DeviceCost
from prolepsis.control.cost.history import store_periods
from prolepsis.control.store import records
from prolepsis.control.store.database import Database
from prolepsis.control.store.records import RequestRecord, request_record
from prolepsis.core.ended import End
from prolepsis.core.traffic_sums import Drafted
from prolepsis.ops.incident.period import Period
from prolepsis.ops.incident.week import NO_CLASS, Spent, VerifierUse, WeekFigures, figures
from tests.control.store.fakes import record
from tests.ops.tracing.ended import prompt_ended, request_ended

PERIOD = Period(datetime.fromtimestamp(1000, UTC), datetime.fromtimestamp(2000, UTC))


def test_only_requests_that_ended_in_the_period_count(database: Database) -> None:
    written = [
        record(ended_at=1000.0, traffic_class="chat"),
        record(ended_at=1999.0, traffic_class="chat", terminal="failed", error="overloaded"),
        record(ended_at=1500.0, traffic_class=None, proposers={}, num_drafts=0, predicted_plain_s=None),
        record(ended_at=999.0, traffic_class="chat"),
        record(ended_at=2000.0, traffic_class="chat"),
    ]
    with database.write() as connection:
        records.add(connection, written)
    with database.read() as connection:
        found = figures(connection, PERIOD)
    chat = found.classes["chat"]
    assert (chat.num_requests, chat.num_failed, chat.num_output_tokens) == (2, 1, 18)
    assert chat.acceptance_rate == pytest.approx(5 / 6)
    assert chat.saved == pytest.approx(1 - 0.38 / 0.4)
    assert found.classes[NO_CLASS].saved is None
    assert found.proposers == {("chat", "suffix"): Drafted(12, 10)}
    assert found.errors == {"overloaded": 1}
    assert found.total.num_requests == 3


def test_what_clients_ended_or_spelt_wrongly_has_not_failed(database: Database) -> None:
    ends: dict[End, str | None] = {
        "finished": None,
        "failed": "engine_error",
        "aborted": None,
        "expired": "deadline_exceeded",
        "left": None,
        "refused": "grammar_failed",
    }
    about = request_ended().about
    written = [
        RequestRecord({**one.row, "ended_at": 1500.0})
        for end, error in ends.items()
        for one in [request_record(about, replace(prompt_ended(end=end), error=error))]
    ]
    with database.write() as connection:
        records.add(connection, written)
    with database.read() as connection:
        found = figures(connection, PERIOD)
    assert (found.total.num_requests, found.total.num_failed) == (6, 2)
    assert found.errors == {"engine_error": 1, "aborted": 1}


def test_cost_is_summed_by_currency(database: Database) -> None:
    hours = [
        DeviceCost(1000.0 + i, 1400.0 + i, "p", currency, 400.0, 100.0, 10, paid, 1.0)
        for i, (currency, paid) in enumerate([("EUR", 4.0), ("EUR", 5.0), (None, None)])
    ]
    with database.write() as connection:
        store_periods(connection, "replica", hours)
    with database.read() as connection:
        spent = {one.currency: one for one in figures(connection, PERIOD).spent}
    assert spent["EUR"] == Spent("EUR", 800.0, 200.0, 20, 9.0, 2.0)
    assert spent[""].amount_paid is None


def test_use_of_the_verifier_is_summed_by_rule(database: Database) -> None:
    seconds: dict[str, Any] = {f"device_{kind}_s": 1.0 for kind in ("prefill", "plain", "propose", "host")}
    written = [
        record(ended_at=1500.0, policy_rule="code", device_verify_s=4.0, correction_s=2.0, **seconds),
        record(ended_at=1600.0, policy_rule="code", device_verify_s=0.0, correction_s=0.0, **seconds),
        record(ended_at=1600.0, policy_rule=None, device_verify_s=None, correction_s=0.0),
        record(ended_at=2000.0, policy_rule="code", device_verify_s=9.0, correction_s=9.0, **seconds),
    ]
    with database.write() as connection:
        records.add(connection, written)
    with database.read() as connection:
        used = figures(connection, PERIOD).verifier
    assert used == {"code": VerifierUse(12.0, 4.0, 2.0), "default": VerifierUse(0.0, 0.0, 0.0)}
    assert [*used] == ["code", "default"]
    assert (used["code"].verify_share, used["code"].lost_share) == (4 / 12, 2 / 12)
    assert used["default"].verify_share is None


def test_a_period_without_requests_has_no_figures(database: Database) -> None:
    with database.read() as connection:
        assert figures(connection, PERIOD) == WeekFigures()
