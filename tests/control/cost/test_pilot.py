"""The pilot report on records whose true difference is known: it covers it, and says what it cannot know."""

import random
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from prolepsis.control.cost.pilot import PilotFigure, PilotReport, pilot_reports
from prolepsis.control.store import records
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.control.store.records import RequestRecord
from prolepsis.core.traffic_sums import Interval
from tests.control.store.fakes import record

BEGAN = 1_700_000_000.0
SPEED, END, LONG, ACCEPTANCE, DEVICE, MONEY, FORM = (
    "tokens a second of an answer, median",
    "end to end, median (s)",
    "end to end, 95 % (s)",
    "acceptance, median",
    "cost of a million tokens (device s)",
    "cost of a million tokens (EUR)",
    "structured answers that are valid",
)


@pytest.fixture
def database() -> Iterator[Database]:
    database = migrated_in_memory()
    yield database
    database.close()


def traffic(number: int, *, factor: float = 0.7, share: float = 0.5, seed: int = 0) -> Iterator[RequestRecord]:
    """Yield requests an hour apart of 20 to 60 tokens at about 10 ms each, `factor` of that where they speculate."""
    draw = random.Random(seed)
    for i in range(number):
        canary = draw.random() < share
        tokens, drafted = draw.randint(20, 60), draw.randint(5, 20)
        seconds = tokens * draw.lognormvariate(-4.6, 0.3) * (factor if canary else 1.0)
        yield record(
            request_id=f"r{i}",
            ended_at=BEGAN + 3600.0 * i,
            rollout_run="code@1#1",
            canary_share=share,
            arm="canary" if canary else "unassigned",
            mode="on" if canary else "off",
            traffic_class="code",
            num_output_tokens=tokens,
            num_draft_tokens=drafted if canary else 0,
            num_accepted=draw.randint(0, drafted) if canary else 0,
            total_s=seconds,
            kept_form=not canary or draw.random() < 0.8,
            device_prefill_s=0.0,
            device_verify_s=0.0,
            device_propose_s=0.0,
            device_host_s=0.0,
            device_plain_s=seconds / 2,
        )


def changed(one: RequestRecord, **changes: object) -> RequestRecord:
    return RequestRecord({**one.row, **changes})


def reported(database: Database, written: list[RequestRecord]) -> PilotReport:
    with database.write() as connection:
        records.add(connection, written)
    with database.read() as connection:
        [report, *others] = pilot_reports(connection, BEGAN - 1.0, BEGAN + 1e7, {"device s": 1.0, "EUR": 0.001})
    assert not others
    return report


def figures(report: PilotReport) -> dict[str, PilotFigure]:
    return {one.figure: one for one in report.figures}


def covers(change: Interval, truth: float) -> bool:
    return change.lower is not None and change.upper is not None and change.lower <= truth <= change.upper


def test_intervals_cover_a_true_difference_and_leave_out_no_difference(database: Database) -> None:
    found = figures(reported(database, list(traffic(2000))))
    truths = {SPEED: 1 / 0.7 - 1, END: -0.3, LONG: -0.3, DEVICE: -0.3, MONEY: -0.3, FORM: -0.2}
    for name, truth in truths.items():
        assert covers(found[name].change, truth), name
        assert not covers(found[name].change, 0.0), name
        assert found[name].num_canary + found[name].num_control == 2000
    device, money = found[DEVICE], found[MONEY]
    assert device.control.estimate == pytest.approx(5250, rel=0.05), "half of 10.5 ms a token"
    assert money.control.estimate == pytest.approx(0.001 * (device.control.estimate or 0.0))
    assert money.change == device.change


def test_where_nothing_differs_the_intervals_cover_nothing(database: Database) -> None:
    found = figures(reported(database, list(traffic(600, factor=1.0))))
    for name in (SPEED, END, LONG, DEVICE):
        assert covers(found[name].change, 0.0), name


def test_acceptance_is_of_the_canary_and_counts_none_accepted(database: Database) -> None:
    written = [
        changed(one, num_draft_tokens=10, num_accepted=0) if one.row["arm"] == "canary" else one for one in traffic(200)
    ]
    report = reported(database, written)
    found = figures(report)[ACCEPTANCE]
    assert found.canary.estimate == pytest.approx(0.0, abs=1e-6)
    assert found.num_canary > 50
    assert (found.control, found.change) == (Interval(None), Interval(None))
    assert not any("acceptance" in text for text in report.limits)


def test_too_few_control_requests_give_no_change_and_are_told(database: Database) -> None:
    report = reported(database, list(traffic(150, share=0.95)))
    found = figures(report)[END]
    assert 0 < found.num_control < 20
    assert found.control.estimate is not None
    assert (found.change, figures(report)[DEVICE].change) == (Interval(None), Interval(None))
    counted = f"{found.num_canary} canary, {found.num_control} control"
    assert f"Too few requests to compare {END}: {counted}." in report.limits


def test_a_mix_that_chance_did_not_make_is_told_and_compares_nothing(database: Database) -> None:
    written = [
        changed(one, traffic_class="chat") if one.row["arm"] != "canary" and i % 2 else one
        for i, one in enumerate(traffic(400))
    ]
    report = reported(database, written)
    [mixed] = [text for text in report.limits if text.startswith("The mix differs") and "class chat" in text]
    assert "of class chat, 0 of " in mixed
    assert "chance gives 50%" in mixed
    assert {one.change for one in report.figures} == {Interval(None)}
    assert figures(report)[END].canary.estimate is not None


def test_answers_without_a_form_and_devices_that_report_nothing_are_told(database: Database) -> None:
    written = [changed(one, kept_form=None, device_plain_s=None) for one in traffic(200)]
    report = reported(database, written)
    for name in (DEVICE, FORM):
        assert f"Too few requests to compare {name}: 0 canary, 0 control." in report.limits
        assert figures(report)[name].canary == Interval(None)


def test_what_else_the_evidence_leaves_open_is_told(database: Database) -> None:
    written = list(traffic(100))
    [canary, *_] = [one for one in written if one.row["arm"] == "canary"]
    written.remove(canary)
    others = [changed(canary, terminal="failed"), record(ended_at=BEGAN + 5.0), record(ended_at=BEGAN - 5.0)]
    report = reported(database, [*written[1:], changed(written[0], policy_version="2@def"), *others])
    assert report.num_requests == 101
    assert (report.rollout, report.share) == ("code@1#1", 0.5)
    limits = "\n".join(report.limits)
    assert "Not finished, in no figure: 1 canary and 0 control requests." in limits
    assert "requests of 2 versions are compared together" in limits
    assert "100 of 101 requests are compared: chance did not draw the others" in limits
    assert "requests cover 6 d and 24 of 24 hours" in limits
    assert "what a server without any speculation would do is not measured" in limits
    assert "records do not say which server answered" in limits


def test_the_comparison_with_the_most_evidence_is_reported(database: Database) -> None:
    later = [changed(one, canary_share=0.95, ended_at=BEGAN + 2e6 + i) for i, one in enumerate(traffic(50, share=0.95))]
    report = reported(database, [*traffic(100), *later])
    assert (report.share, figures(report)[END].num_canary + figures(report)[END].num_control) == (0.5, 100)


def test_each_rollout_has_a_report_the_largest_first(database: Database) -> None:
    chat = [changed(one, rollout_run="chat@2#1") for one in traffic(40)]
    with database.write() as connection:
        records.add(connection, [*chat, *traffic(100)])
    with database.read() as connection:
        found = pilot_reports(connection, BEGAN - 1.0, BEGAN + 1e7, {"device s": 1.0})
    assert [report.rollout for report in found] == ["code@1#1", "chat@2#1"]
    assert [report.figures[4].num_canary + report.figures[4].num_control for report in found] == [100, 40]
    assert {report.num_requests for report in found} == {140}


def test_without_a_comparison_the_reason_is_told(database: Database) -> None:
    report = reported(database, [record(ended_at=BEGAN)])
    assert (report.num_requests, report.rollout, report.figures) == (1, "", [])
    assert report.limits[0].startswith("No request was compared")
    assert asdict(report)["limits"] == report.limits
