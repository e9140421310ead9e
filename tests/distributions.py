"""Archives of packages, as builds take them."""

import tarfile
from pathlib import Path


def unpacked(sdist: Path, into: Path) -> Path:
    """Unpack an sdist, and return the folder of the project."""
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # the Python of Debian 12 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(into)
        return into / archive.getnames()[0].split("/")[0]
