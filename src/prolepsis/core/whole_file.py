"""Files that are replaced as a whole."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file; it is on disk when this returns, and what was there stays where it fails with `OSError`.

    Its owner alone may read it. The folder must be there.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # made with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
