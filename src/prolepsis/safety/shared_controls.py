"""Controls that replicas share through the store, and that hold without it.

What this server sets takes effect here at once and is kept in a file until the store has it. What all replicas set is
read again and again; the file keeps a copy for a start without the store. Of what was set here and there the newest
counts: what waited here while the store was gone does not undo a later act.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog
from pydantic import BaseModel, ConfigDict, TypeAdapter

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import JsonFile
from prolepsis.store.controls import Control, ControlKey, ControlTable
from prolepsis.web.feature import Feature

PATIENCE_S = 1.0
"""How long a tick waits for the store; a slower exchange continues after it."""

Values = Mapping[str, str]
"""By name, of one kind."""

log = structlog.get_logger(__name__)


Kept = tuple[str, str, str | None, float]
"""Kind, name, value (None: removed) and time of a control."""


class ControlCopy(BaseModel):
    """Copy of the store's controls on one server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    values: tuple[Kept, ...] = ()
    pending: tuple[Kept, ...] = ()
    """Controls that were set here and are not in the store, or not yet."""

    @classmethod
    def of(cls, values: Mapping[ControlKey, Control], pending: Mapping[ControlKey, Control]) -> Self:
        return cls(values=_plain(values), pending=_plain(pending))


def _plain(controls: Mapping[ControlKey, Control]) -> tuple[Kept, ...]:
    return tuple((*key, control.value, control.at) for key, control in sorted(controls.items()))


def _controls(kept: Iterable[Kept]) -> dict[ControlKey, Control]:
    return {(kind, name): Control(value, at) for kind, name, value, at in kept}


def copy_file(path: Path) -> JsonFile[ControlCopy]:
    """Return the file of a server's copy."""
    return JsonFile(path, TypeAdapter(ControlCopy), absent=ControlCopy(), param="kill_file")


def _newer(controls: Mapping[ControlKey, Control], than: Mapping[ControlKey, Control]) -> dict[ControlKey, Control]:
    return {key: control for key, control in controls.items() if control.beats(than.get(key))}


class SharedControls(Feature):
    """Belongs to one event loop; blocking work runs in threads."""

    name = "shared_controls"
    period_s = 0.8
    ticks_before_serving = True

    def __init__(
        self, table: ControlTable | None, copy: JsonFile[ControlCopy], *, now: Callable[[], float] = time.time
    ) -> None:
        """`table`: None without a store; then the servers of this machine share the file."""
        self.unknown = False
        """The copy is damaged and the store has not been read: it may say anything."""
        self._table = table
        self._copy = copy
        self._now = now
        self._values: dict[ControlKey, Control] = {}
        self._pending: dict[ControlKey, Control] = {}
        self._followers: dict[str, Callable[[Values], None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._is_failing = False
        self._read()

    def follow(self, kind: str, follower: Callable[[Values], None]) -> None:
        """Call `follower` with all values of a kind, now and whenever they change."""
        self._followers[kind] = follower
        follower(self.of(kind))

    def of(self, kind: str) -> Values:
        """Return the values of a kind that are in effect here."""
        merged = self._values | _newer(self._pending, self._values)
        return {name: one.value for (of, name), one in merged.items() if of == kind and one.value is not None}

    def set(self, kind: str, name: str, value: str | None) -> str:
        """Set a value, or remove it: here at once, for all replicas as soon as the store takes it.

        Returns why it would be lost if the server ended before that, else "".
        """
        before, key = self._told(), (kind, name)
        with self._copy.locked():
            if self._table is None and self._copy.changed():  # by another server of this machine
                self._read()
            known = [one.at for one in (self._values.get(key), self._pending.get(key)) if one is not None]
            at = max([self._now(), *(math.nextafter(one, math.inf) for one in known)])  # it follows all that is known
            self._pending[key] = Control(value, at)
            fault = self._save()
        self._tell_changes(before)
        if self._table is not None:
            self._start(self._table)
        return fault

    async def tick(self) -> None:
        """Store what was set here, and follow what others set."""
        if self._table is not None:
            await asyncio.wait({self._start(self._table)}, timeout=PATIENCE_S)
        elif self._copy.changed():
            before = self._told()
            self._read()
            self._tell_changes(before)

    async def close(self) -> None:
        """Store what was set here, if the store takes it soon."""
        if self._pending:
            await self.tick()

    def _read(self) -> None:
        """Take over the file; a damaged one may have held anything."""
        try:
            kept = self._copy.read()
        except ConfigError as error:
            log.error("controls_unknown", error=str(error))
            self.unknown = True
            return
        self._values, self._pending, self.unknown = _controls(kept.values), _controls(kept.pending), False

    def _start(self, table: ControlTable) -> asyncio.Task[None]:
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._exchange(table))
        return self._running

    async def _exchange(self, table: ControlTable) -> None:
        """Exchange with the store until it has all that was set meanwhile."""
        while True:
            sent = dict(self._pending)
            try:
                stored = await asyncio.to_thread(table.exchange, sent)
            except Exception as error:  # contained: what was set holds here, and the next tick sends it again
                if not self._is_failing:
                    log.error("controls_not_shared", error=str(error))
                self._is_failing = True
                return
            self._is_failing = False
            self._take(stored, sent)
            if not self._pending:
                return

    def _take(self, stored: dict[ControlKey, Control], sent: Mapping[ControlKey, Control]) -> None:
        before = self._told()
        changed = stored != self._values or bool(sent) or self.unknown
        was_unknown, self.unknown = self.unknown, False
        for kind, name in [key for key, control in sent.items() if stored.get(key) != control]:
            log.warning("control_superseded", kind=kind, name=name)  # a later act elsewhere counts
        self._values = stored
        self._pending = _newer(self._pending, stored)
        if changed:
            with self._copy.locked():
                self._save()
        self._tell_changes({} if was_unknown else before)

    def _told(self) -> dict[str, Values]:
        return {kind: self.of(kind) for kind in self._followers}

    def _tell_changes(self, before: Mapping[str, Values]) -> None:
        for kind, values in self._told().items():
            if values != before.get(kind):
                self._followers[kind](values)

    def _save(self) -> str:
        """Write the copy, which the caller has locked, with what other servers of this machine wait to store."""
        waiting = dict(self._pending)
        with suppress(ConfigError):  # a damaged file is replaced
            waiting |= _newer(_newer(_controls(self._copy.read().pending), self._values), self._pending)
        try:
            self._copy.write(ControlCopy.of(self._values, waiting))
        except ConfigError as error:
            log.error("controls_not_saved", error=str(error))
            return str(error)
        return ""
