"""Controls that operators set: the kill switch, breakers and flags, in one file and one table.

An act takes effect here at once and is kept in the file. Without a store that others share, it holds for the servers of
this machine. With one all replicas follow it: it waits in the file until the store has it, and the file keeps a copy
for a start without the store. Of acts that meet in the store the newest counts, so what waited does not undo a later
act.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import structlog

from prolepsis.control.controls.file import (
    ControlsContent,
    ControlsFile,
    Section,
    StoreCopy,
    lasting,
    newer,
    newest,
    of_kind,
)
from prolepsis.control.controls.kill_switch import KILL
from prolepsis.control.store.controls import Control, ControlKey, ControlTable, control_key
from prolepsis.control.web.feature import Feature
from prolepsis.core.errors import ConfigError
from prolepsis.core.kill_scope import EVERYTHING

PATIENCE_S = 1.0  # how long the start and the end wait for the store; a slower exchange continues after it
TICKS_PER_EXCHANGE = 4  # the file is looked at in every tick
Origin = Literal["start", "act", "file", "store"]  # where a change came from

log = structlog.get_logger(__name__)


class Controls(Feature):
    """Belongs to one event loop; the store is read and written in threads."""

    name = "controls"
    period_s = 0.2
    ticks_before_serving = True

    def __init__(self, file: ControlsFile, table: ControlTable, *, now: Callable[[], float] = time.time) -> None:
        """A damaged file may have held a stop, so it stops everything."""
        self.is_shared = table.is_shared  # whether other machines follow
        self.fault: str | None = None  # reason why the file cannot be used; its last good content then holds
        self.file = file
        self._table = table
        self._now = now
        self._followers: dict[str, Callable[[Origin], None]] = {}
        self._refused: Section = {}  # acts that the store refused
        self._unsaved: Section = {}  # acts for this machine that the file lacks
        self._save_fault = ""
        self._overdue: dict[str, Origin] = {}  # kinds whose follower failed at their last change
        self._running: asyncio.Task[None] | None = None
        self._is_failing = False
        self._num_ticks = 0
        content = self._read() or ControlsContent()
        copy = content.of_store(table.name) if self.is_shared else StoreCopy()
        self._local, self._stored, self._pending = content.local, copy.stored, copy.pending
        if self.fault is not None:
            self._local = {control_key(KILL, EVERYTHING): Control("", self._now(), reason=self.fault)}

    @property
    def not_saved(self) -> str | None:
        """Reason why an act would be lost if the server ended now; it is in the file, or in the store, without one."""
        return self._save_fault or None if self._unsaved or self._pending else None

    def follow(self, kind: str, follower: Callable[[Origin], None]) -> None:
        """Call `follower` now, and whenever controls of a kind have changed."""
        self._followers[kind] = follower
        follower("start")

    def local(self, kind: str) -> Mapping[str, Control]:
        """Return what holds on this machine, by name; removed ones included, as in `shared`."""
        return of_kind(self._local, kind)

    def shared(self, kind: str) -> Mapping[str, Control]:
        """Return what holds on all replicas."""
        return of_kind(newest(self._stored, self._pending), kind) if self.is_shared else {}

    def of(self, kind: str) -> dict[str, Control]:
        """Return the controls of a kind that are set, by name; where both sections set one, the newer."""
        return newest(_set(self.shared(kind)), _set(self.local(kind)))

    def set(self, kind: str, name: str, value: str | None, *, by: str = "", reason: str = "") -> str:
        """Set a control, or remove it, also from the file: here at once, for all replicas when the store takes it.

        Returns why it would be lost if the server ended before that, else "".
        """
        if self.file.changed():
            self._follow_file()
        key = control_key(kind, name)
        known = [section[key].at for section in (self._local, self._stored, self._pending) if key in section]
        at = max([self._now(), *(math.nextafter(at, math.inf) for at in known)])  # after all that is known of it
        control = Control(value, at, by, reason)
        with self._notifying("act"):
            if not self.is_shared or (value is None and key in self._local):
                self._local = {**self._local, key: control}
                self._unsaved = {**self._unsaved, key: control}
            if self.is_shared:
                self._pending = {**self._pending, key: control}
        fault = self._save()
        if self.is_shared:
            self._start()
        return fault

    async def tick(self) -> None:
        """Follow the file if it changed; exchange with the store where that is due, and wait only before serving."""
        for kind, origin in [*self._overdue.items()]:
            self._notify(kind, origin)
        if self.file.changed():
            self._follow_file()
        if self.not_saved:
            self._save()
        is_due, is_first = self._num_ticks % TICKS_PER_EXCHANGE == 0, self._num_ticks == 0
        self._num_ticks += 1
        if is_first:
            await self.share()
        elif is_due and self.is_shared:
            self._start()

    async def share(self) -> None:
        """Store what was set here, and follow what others set; waits for it, but not long."""
        if self.is_shared:
            await asyncio.wait({self._start()}, timeout=PATIENCE_S)

    async def close(self) -> None:
        """Store what was set here, if the store takes it soon."""
        if self._pending:
            await self.share()

    def _read(self) -> ControlsContent | None:
        """Return what the file holds, None for a damaged one."""
        try:
            content = self.file.read()
        except ConfigError as error:
            self.fault = str(error)
            log.error("controls_file_unusable", error=self.fault)
            return None
        self.fault = None
        return content

    def _follow_file(self) -> None:
        """Take over what commands and other servers of this machine set for it; a damaged file changes nothing.

        What another server of the store waits to store holds here too: it may end before the store is back.
        """
        content = self._read()
        if content is not None:
            with self._notifying("file"):
                self._local = newest(content.local, self._unsaved)
                if self.is_shared:
                    waiting = content.of_store(self._table.name).pending
                    self._pending = self._waiting(newest(self._pending, waiting))

    def _start(self) -> asyncio.Task[None]:
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._exchange())
        return self._running

    async def _exchange(self) -> None:
        """Exchange with the store until it has all that was set meanwhile; it is read also if it cannot be written."""
        fault: Exception | None = None
        while fault is None:
            sent = dict(self._pending)
            try:
                try:
                    self._keep_here(await asyncio.to_thread(self._table.put, sent), sent)
                except Exception as error:  # contained: what others set counts all the same
                    fault = error
                self._take(await asyncio.to_thread(self._table.read), {} if fault else sent)
            except Exception as error:  # contained: what was set holds here, and a later tick sends it again
                fault = error
            if not self._pending:
                break
        if fault is not None and not self._is_failing:
            log.error("controls_not_shared", error=str(fault))
        self._is_failing = fault is not None

    def _keep_here(self, refused: Mapping[ControlKey, str], sent: Mapping[ControlKey, Control]) -> None:
        """Let acts that the store refuses hold on this machine only."""
        for key, error in refused.items():
            log.error("control_refused", control=key, error=error)
        acts = {key: sent[key] for key in refused}
        self._refused = {**self._refused, **acts}
        with self._notifying("store"):
            self._local, self._unsaved = newest(self._local, acts), newest(self._unsaved, acts)
            self._pending = self._waiting(self._pending)
        if acts:
            self._save()

    def _waiting(self, pending: Section) -> dict[ControlKey, Control]:
        """Return the acts among `pending` that the store lacks and did not refuse."""
        acts = newer(pending, self._stored)
        return {key: control for key, control in acts.items() if control != self._refused.get(key)}

    def _take(self, stored: Section, sent: Mapping[ControlKey, Control]) -> None:
        is_new = stored != self._stored or bool(sent)
        for key, control in sent.items():
            if stored.get(key) != control != self._refused.get(key):
                log.warning("control_superseded", control=key)  # a later act elsewhere counts
        with self._notifying("store"):
            self._stored = stored
            self._pending = self._waiting(self._pending)
        if is_new:
            self._save()

    @contextmanager
    def _notifying(self, origin: Origin) -> Iterator[None]:
        """Notify the followers whose controls the block changes."""
        before = {kind: (self.local(kind), self.shared(kind)) for kind in self._followers}
        yield
        for kind, sections in before.items():
            if sections != (self.local(kind), self.shared(kind)):
                self._notify(kind, origin)

    def _notify(self, kind: str, origin: Origin) -> None:
        """Notify the follower of a kind; after a failure each tick does it again, until it succeeds."""
        try:
            self._followers[kind](origin)
        except Exception:  # contained: the others are notified, and the change is kept
            if kind not in self._overdue:
                log.exception("controls_not_followed", kind=kind)
            self._overdue[kind] = origin
        else:
            self._overdue.pop(kind, None)

    def _save(self) -> str:
        """Write the file, with what commands and other servers of this machine wrote to it meanwhile."""
        with self.file.locked():
            try:
                kept = self.file.read()
            except ConfigError:
                self.file.keep_damaged()
                kept = ControlsContent()
            local = lasting(newest(kept.local, self._local))
            stores = dict(kept.stores)
            if self.is_shared:
                waiting = self._waiting(kept.of_store(self._table.name).pending)
                stores[self._table.name] = StoreCopy(self._stored, newest(waiting, self._pending))
            try:
                self.file.write(ControlsContent(local, stores))
            except ConfigError as error:
                if str(error) != self._save_fault:
                    log.error("controls_not_saved", error=str(error))
                self._save_fault = str(error)
                return self._save_fault
        self._save_fault, self._unsaved, self.fault = "", {}, None
        return ""


def _set(controls: Mapping[str, Control]) -> dict[str, Control]:
    return {name: control for name, control in controls.items() if control.value is not None}
