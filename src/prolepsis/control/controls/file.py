"""The controls file: controls that were set on one machine, and a copy of the store's."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from prolepsis.control.store.controls import REMOVED_KEPT_S, Control, ControlKey
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import JsonFile, data_directory, write_whole

Section = Mapping[ControlKey, Control]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class StoreCopy:
    """What servers of this machine know of one store."""

    stored: Section = field(default_factory=dict)  # a copy of its controls
    pending: Section = field(default_factory=dict)  # set by servers of this machine, and not in the store yet

    @property
    def newest(self) -> Section:
        """What holds on all its replicas, as far as it is known here."""
        return newest(self.stored, self.pending)


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class ControlsContent:
    local: Section = field(default_factory=dict)
    """Set on this machine, for its servers: by commands, and by servers without a store."""
    stores: Mapping[str, StoreCopy] = field(default_factory=dict)
    """By the name of the store: servers of several may use the file, and each follows its own."""

    def of_store(self, name: str) -> StoreCopy:
        return self.stores.get(name) or StoreCopy()


class ControlsFile(JsonFile[ControlsContent]):
    """The servers and commands of one user share it; a write is whole or not at all."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: None: controls.json in the user's data directory."""
        path = path or data_directory() / "controls.json"
        super().__init__(path, TypeAdapter(ControlsContent), absent=ControlsContent(), param="controls_file")

    @property
    def damaged(self) -> Path:
        """Where a damaged file is kept when it is replaced."""
        return self.path.with_name(f"{self.path.name}.damaged")

    def keep_damaged(self) -> None:
        """Copy the file before it is replaced; a stop does not fail where that is not possible."""
        with suppress(OSError):
            if self.path.is_file():
                write_whole(self.damaged, self.path.read_bytes())

    def replace_damaged(self, content: ControlsContent) -> ControlsContent:
        """Return what the file says; one that cannot be used is kept and replaced. Raises `ConfigError`."""
        with self.locked():
            try:
                return self.read()
            except ConfigError:
                self.keep_damaged()
                self.write(content)
                return content

    def set(self, key: ControlKey, control: Control) -> ControlsContent:
        """Set a control for the servers of this machine, and return all; raises `ConfigError`."""
        with self.locked():
            content = self.read()
            content = replace(content, local=lasting({**content.local, key: control}))
            self.write(content)
        return content


def of_kind(section: Section, kind: str) -> dict[str, Control]:
    """Return the controls of one kind by name, removed ones included."""
    start = f"{kind} "
    return {key.removeprefix(start): control for key, control in section.items() if key.startswith(start)}


def lasting(section: Section) -> Section:
    """Return a section without removals of long ago."""
    oldest = time.time() - REMOVED_KEPT_S
    return {key: control for key, control in section.items() if control.value is not None or control.at > oldest}


def newer(section: Section, than: Section) -> dict[ControlKey, Control]:
    """Return the controls of a section that are newer than those of another, which may lack them."""
    return {key: control for key, control in section.items() if control.beats(than.get(key))}


def newest(first: Section, second: Section) -> dict[ControlKey, Control]:
    """Return the controls of both; of two with one key the newer."""
    return {**first, **newer(second, first)}
