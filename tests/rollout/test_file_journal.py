"""Rollouts in a folder survive restarts, torn writes and full disks; servers that share it do not overwrite."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.rollout.file_journal import FileJournal
from prolepsis.rollout.journal import MemoryJournal, RolloutJournal
from prolepsis.rollout.machine import step
from tests.rollout.rollout import NEW, SETTINGS, by_hand, counts


@pytest.fixture(params=["memory", "file"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> RolloutJournal:
    return MemoryJournal() if request.param == "memory" else FileJournal(tmp_path)


def test_a_state_is_kept_with_its_events_only_over_the_one_before_it(journal: RolloutJournal) -> None:
    started = by_hand(NEW, "start", 0.0)
    promoted, events = step(started, counts(0, 0.0), 20.0, SETTINGS)
    assert journal.swap(started, ())
    assert journal.swap(promoted, events)
    assert not journal.swap(promoted, events)
    assert not journal.swap(by_hand(started, "rollback", 20.0), events)
    assert journal.states() == {"r1": promoted}
    assert list(journal.events("r1")) == list(events)
    assert list(journal.events("r2")) == []


def test_a_restart_finds_everything(tmp_path: Path) -> None:
    started = by_hand(NEW, "start", 0.0)
    promoted, events = step(started, counts(0, 0.0), 20.0, SETTINGS)
    first = FileJournal(tmp_path)
    assert first.swap(started, ())
    assert first.swap(replace(promoted, references={"errors": 0.5}), events)
    first.keep_evidence([counts(1, 0.1)])
    second = FileJournal(tmp_path)
    assert second.states() == {"r1": replace(promoted, references={"errors": 0.5})}
    assert list(second.events("r1")) == list(events)
    assert list(second.other_evidence()) == [counts(1, 0.1)]
    assert list(first.other_evidence()) == []


def test_of_two_servers_one_is_first_and_the_other_sees_it(tmp_path: Path) -> None:
    started = by_hand(NEW, "start", 0.0)
    one, other = FileJournal(tmp_path), FileJournal(tmp_path)
    assert one.swap(started, ())
    assert other.states() == {"r1": started}
    assert other.swap(by_hand(started, "rollback", 1.0), ())
    assert not one.swap(by_hand(started, "promote", 1.0), ())
    assert one.states()["r1"].phase == "rolled_back"


@pytest.mark.parametrize("torn", [b'{"state": {"rollout', b"{", b'{"state": {}, "events": []}'])
def test_a_line_that_was_cut_off_was_never_in_effect(tmp_path: Path, torn: bytes) -> None:
    started = by_hand(NEW, "start", 0.0)
    FileJournal(tmp_path).swap(started, ())
    with (tmp_path / "changes.jsonl").open("ab") as file:
        file.write(torn)
    again = FileJournal(tmp_path)
    assert again.states() == {"r1": started}
    back = by_hand(started, "rollback", 1.0)
    assert again.swap(back, ())
    assert FileJournal(tmp_path).states() == {"r1": back}


def test_a_full_disk_keeps_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = by_hand(NEW, "start", 0.0)
    journal = FileJournal(tmp_path)
    journal.swap(started, ())
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, text, at: real(descriptor, text[:20], at))
    with pytest.raises(OSError, match="disk is full"):
        journal.swap(by_hand(started, "rollback", 1.0), ())
    monkeypatch.undo()
    assert journal.states() == FileJournal(tmp_path).states() == {"r1": started}
    assert journal.swap(by_hand(started, "rollback", 1.0), ())


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "changes.jsonl").write_text("hello\n")
    with pytest.raises(ConfigError, match="damaged at byte 0"):
        FileJournal(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="choose another folder"):
        FileJournal(tmp_path / "file")


def test_evidence_of_stages_that_are_over_is_removed(tmp_path: Path) -> None:
    started = by_hand(NEW, "start", 0.0)
    first, second = FileJournal(tmp_path), FileJournal(tmp_path)
    first.swap(started, ())
    first.keep_evidence([counts(0, 0.0)])
    assert len(second.other_evidence()) == 1
    first.swap(by_hand(started, "promote", 1.0), ())
    second.states()
    second.other_evidence()
    assert list(tmp_path.glob("evidence-*")) == []
