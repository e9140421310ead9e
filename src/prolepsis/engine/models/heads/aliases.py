"""Aliases of draft heads: words such as champion that stand for a version of a head, and move from one to another."""

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.files import JsonFile, cache_directory, exclusive

_ALIAS = re.compile(r"[a-z][a-z0-9_-]{0,31}")
Aliases = Mapping[str, Mapping[str, int]]  # version by name of the head and alias


def head_folder(root: Path | None = None) -> Path:
    """Return the folder of the user's heads, next to the models."""
    return (root or cache_directory() / "models").parent / "heads"


class HeadAliases:
    """The file with the aliases of the user's heads beside the models in `root`; several processes may use it."""

    def __init__(self, root: Path | None) -> None:
        folder = head_folder(root)
        adapter = TypeAdapter(dict[str, dict[str, int]])
        self._file = JsonFile(folder / "aliases.json", adapter, absent={}, param="head_aliases")
        self._lock = folder / ".aliases.lock"

    def read(self) -> Aliases:
        return self._file.read()

    def of(self, name: str, version: int) -> tuple[str, ...]:
        return tuple(sorted(alias for alias, known in self.read().get(name, {}).items() if known == version))

    def resolved(self, label: str) -> str:
        """Return NAME@VERSION for NAME@ALIAS; other texts as they are."""
        name, _, alias = label.partition("@")
        version = self.read().get(name, {}).get(alias) if alias else None
        return label if version is None else f"{name}@{version}"

    def set(self, name: str, alias: str, version: int | None) -> int | None:
        """Let an alias stand for a version, or for none, in place of the one returned.

        Raises `InvalidParameter` for words that cannot be aliases, and for the removal of one that does not exist.
        """
        if not _ALIAS.fullmatch(alias):
            message = f"alias is {alias[:64]!r}; allowed: up to 32 lower-case letters, digits, - and _, a letter first"
            raise InvalidParameter(message, param="alias")
        with exclusive(self._lock):
            known = {head: dict(aliases) for head, aliases in self.read().items()}
            before = known.setdefault(name, {}).pop(alias, None)
            if version is None and before is None:
                here = ", ".join(known[name]) or "none"
                raise InvalidParameter(f"{name} has no alias {alias!r}; it has: {here}", param="alias")
            if version is not None:
                known[name][alias] = version
            self._file.write(known)
        return before
