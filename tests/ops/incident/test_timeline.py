"""The timeline: one order, short details, Markdown that stays a table."""

from dataclasses import replace

import pytest

from prolepsis.control.audit.entry import AuditEntry, Details
from prolepsis.ops.incident.prometheus import Firing
from prolepsis.ops.incident.timeline import LONGEST_DETAILS, Happening, markdown, of_entry, timeline


def entry(
    action: str, *, at: str = "2026-11-22T18:30:00.000000+00:00", before: object = None, after: object = None
) -> AuditEntry:
    details = Details(actor="ann", tenant="", subject="it", before=before, after=after, salt="")
    return AuditEntry(
        seq=1,
        uid="u",
        at=at,
        action=action,
        versions={"fingerprint": "ab", "machine": "", "model": "tiny", "prolepsis": "1.2"},
        erases=(),
        details=details,
        details_digest="",
        previous="",
        digest="",
    )


def test_entries_and_alerts_are_in_one_order() -> None:
    first = entry("policy.applied", at="2026-11-22T18:30:00.000000+00:00")
    last = entry("rollout.rolled_back", at="2026-11-22T18:40:00.000000+00:00")
    began = of_entry(first).at + 60
    alert = Firing({"alertname": "AcceptanceFell", "severity": "page", "model": "tiny"}, began, began + 120)
    rows = timeline([last, first], [alert])
    assert [(row.kind, row.what) for row in rows] == [
        ("change", "policy.applied"),
        ("alert", "AcceptanceFell fires"),
        ("alert", "AcceptanceFell ends"),
        ("rollout", "rollout.rolled_back"),
    ]
    assert (rows[1].subject, rows[1].details) == ("page", "model tiny")


def test_details_are_the_reason_and_what_changed() -> None:
    row = of_entry(
        entry("breaker.open", before={"state": "closed", "n": 3}, after={"state": "open", "n": 3, "reason": "cliff"})
    )
    assert (row.kind, row.who, row.details) == ("event", "ann", "state closed -> open, reason cliff")
    started = of_entry(entry("server.started", after={"engine": {}}))
    assert started.details == "prolepsis 1.2, model tiny, fingerprint ab"
    assert of_entry(entry("policy.applied", after={"digest": "ab" * 32})).details == f"digest {'ab' * 6}"
    assert len(of_entry(entry("kill.on", after={"reason": "x" * 500})).details) == LONGEST_DETAILS


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("policy.applied", "change"),
        ("breaker.forced_open", "change"),
        ("breaker.open", "event"),
        ("corpus.removed", "change"),
        ("corpus.added", "use"),
        ("batch.created", "use"),
        ("file.deleted", "use"),
        ("response.deleted", "use"),
        ("console.signed_in", "use"),
        ("request.served", "use"),
    ],
)
def test_acts_of_operators_are_changes_and_those_of_clients_are_not(action: str, kind: str) -> None:
    assert of_entry(entry(action)).kind == kind


def test_a_stop_by_the_controls_file_is_one_row_where_a_server_followed() -> None:
    act = {"on": True, "reason": "drill"}
    command, later = (entry("kill.on", at=f"2026-11-22T18:{minute}:00.000000+00:00", after=act) for minute in (30, 31))
    server = entry(
        "kill.on",
        at="2026-11-22T18:30:00.400000+00:00",
        before={"killed": [], "operator": []},
        after={"killed": ["everything"], "operator": [{"scope": "everything", "reason": "drill"}]},
    )
    rows = timeline([command, server, later])
    assert [row.at - of_entry(command).at for row in rows] == [pytest.approx(0.4), 60.0]
    assert rows[0].details == "stopped everything, reason drill"


def test_an_erased_entry_keeps_its_place() -> None:
    erased = replace(entry("key.created"), details=None, versions={})
    assert (of_entry(erased).what, of_entry(erased).who) == ("key.created", "erased")


def test_text_cannot_break_the_markdown_table() -> None:
    row = Happening(0.0, "change", "flags.set", "ann", "a|b", "two\nlines <script>")
    assert markdown([row], "T").splitlines()[-1] == (
        "| 1970-01-01 00:00:00 | change | flags.set | ann | a\\|b | two lines &lt;script> |"
    )
