"""Rollouts in a folder: a log of changes that is only appended to, and the evidence of each server that uses it."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import write_whole
from prolepsis.rollout.machine import RolloutEvent, RolloutState
from prolepsis.statistics.judge import StageEvidence


class FileJournal:
    """A `RolloutJournal` in one folder, which servers on one machine may share.

    `changes.jsonl` has one line for each change: the state and its events, written at once and synced before the change
    takes effect. A line that was cut off by a crash was never in effect: it is dropped. `evidence-ID.json` is what one
    server saw, replaced as a whole; those of stages that are over are removed.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` where the folder cannot be used, or holds what is no journal."""
        self._changes = folder / "changes.jsonl"
        self._folder = folder
        self._replica = uuid4().hex[:12]
        self._states: dict[str, RolloutState] = {}
        self._events: dict[str, list[RolloutEvent]] = {}
        self._evidence: dict[str, StageEvidence] = {}
        self._read_to = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            message = f"rollouts cannot be kept in {folder}: {error.strerror}; choose another folder"
            raise ConfigError(message, param="rollouts_folder") from None

    def states(self) -> Mapping[str, RolloutState]:
        with self._locked():
            return dict(self._states)

    def swap(self, state: RolloutState, events: Sequence[RolloutEvent]) -> bool:
        with self._locked() as file:
            if not state.follows(self._states.get(state.rollout_id)):
                return False
            told = [json.loads(event.to_json()) for event in events]
            line = json.dumps({"state": json.loads(state.to_json()), "events": told}).encode() + b"\n"
            _append(file, line, self._read_to)
            self._take(line)
            return True

    def events(self, rollout_id: str) -> Sequence[RolloutEvent]:
        with self._locked():
            return list(self._events.get(rollout_id, ()))

    def keep_evidence(self, evidence: Sequence[StageEvidence]) -> None:
        before = {name: one for name, one in self._evidence.items() if not self._is_over(one)}
        self._evidence = before | {one.rollout_id: one for one in evidence}
        text = json.dumps([json.loads(one.to_json()) for one in self._evidence.values()])
        write_whole(self._folder / f"evidence-{self._replica}.json", text.encode())

    def other_evidence(self) -> Sequence[StageEvidence]:
        found: list[StageEvidence] = []
        for path in self._folder.glob("evidence-*.json"):
            if path.stem == f"evidence-{self._replica}":
                continue
            with suppress(FileNotFoundError):  # another server removed it meanwhile
                kept = [StageEvidence.from_json(json.dumps(one)) for one in json.loads(path.read_text())]
                found += kept
                if all(map(self._is_over, kept)):
                    path.unlink()
        return found

    def _is_over(self, evidence: StageEvidence) -> bool:
        state = self._states.get(evidence.rollout_id)
        return state is not None and state.has_ended(evidence.run, evidence.stage)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the log for this process alone, up to date; the value is its descriptor."""
        descriptor = os.open(self._changes, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._catch_up(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def _catch_up(self, descriptor: int) -> None:
        """Take in the whole lines that were added since the last call."""
        added = os.pread(descriptor, os.fstat(descriptor).st_size - self._read_to, self._read_to)
        for line in added.splitlines(keepends=True):
            if line.endswith(b"\n"):
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            change = json.loads(line)
            state = RolloutState.from_json(json.dumps(change["state"]))
            events = [RolloutEvent.from_json(json.dumps(event)) for event in change["events"]]
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            message = f"{self._changes} is damaged at byte {self._read_to}: {error}"
            raise ConfigError(message, param="rollouts_folder") from None
        self._read_to += len(line)
        self._states[state.rollout_id] = state
        self._events.setdefault(state.rollout_id, []).extend(events)


def _append(descriptor: int, line: bytes, end: int) -> None:
    """Write a line at `end` (what lies behind is a line that was cut off) and sync it; undone where it does not fit."""
    try:
        os.ftruncate(descriptor, end)
        written = os.pwrite(descriptor, line, end)
        if written != len(line):
            raise OSError(28, "the disk is full")
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        raise
