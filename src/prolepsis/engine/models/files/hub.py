"""Models of a hub, listed and fetched with huggingface_hub, which reads HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from prolepsis.core.errors import FetchError
from prolepsis.core.files import disk_fault, sha256_of

WANTED = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|model\.safetensors\.index)\.json"
    r"|chat_template\.jinja|tokenizer\.model|merges\.txt|vocab\.json|model[\w.-]*\.safetensors"
)
"""File names of a model, at the top level of its repository."""

Progress = Callable[[str, int, int | None], None]
"""Receives file name, bytes so far and total bytes (None: unknown)."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on a hub."""

    repository: str
    revision: str = "main"
    file: str | None = None
    """The one file that is the model, of a repository that has several; None: the files of `WANTED`."""

    def wants(self, name: str) -> bool:
        return WANTED.fullmatch(name) is not None if self.file is None else name == self.file


@dataclass(frozen=True, slots=True)
class HubListing:
    """The model files of a repository at one commit."""

    repository: str
    commit: str
    licence: str | None
    checksums: Mapping[str, str | None]  # SHA-256 by file name; None if the hub does not state it
    size: int | None = None  # bytes of all files; None if the hub does not state it
    file: str | None = None  # as in `HubSource`


def list_hub(endpoint: str, source: HubSource, timeout: float) -> HubListing:
    """List the model files of a repository; raises `FetchError` if it is missing or the hub cannot be reached."""
    from huggingface_hub import HfApi

    with _named(f"{source.repository!r} at the hub {endpoint}"):
        hub = HfApi(endpoint)
        info = hub.model_info(source.repository, revision=source.revision, timeout=timeout, files_metadata=True)
    files = {file.rfilename: file.lfs.sha256 if file.lfs else None for file in info.siblings or ()}
    wanted = {name: sha for name, sha in files.items() if source.wants(name)}
    if source.file is not None and not wanted:
        raise FetchError(f"{source.repository} has no file {source.file}")
    if source.file is None and not any(name.endswith(".safetensors") for name in wanted):
        raise FetchError(f"{source.repository} has no safetensors weights at its top level")
    licence = info.card_data.get("license") if info.card_data else None
    sizes = [file.size for file in info.siblings or () if file.rfilename in wanted]
    return HubListing(
        source.repository,
        info.sha or source.revision,
        str(licence) if licence else None,
        wanted,
        None if None in sizes else sum(size or 0 for size in sizes),
        source.file,
    )


def fetch_hub(endpoint: str, listing: HubListing, folder: Path, progress: Progress) -> None:
    """Download the files of `listing` to `folder`, except files that are already there and complete.

    Raises `FetchError` for a file that cannot be fetched or whose checksum is another than the hub states.
    """
    from huggingface_hub import hf_hub_download

    for name, checksum in listing.checksums.items():
        with _named(f"{listing.repository}/{name} from the hub {endpoint}", folder):
            hf_hub_download(
                listing.repository,
                name,
                revision=listing.commit,
                local_dir=folder,
                endpoint=endpoint,
                tqdm_class=cast("type[Any]", partial(_Report, name, progress)),  # it is used as a callable only
            )
            digest = sha256_of(folder / name)
        if checksum is not None and digest != checksum:
            (folder / name).unlink()
            raise FetchError(
                f"{listing.repository}/{name}: its SHA-256 is {digest}; the hub states {checksum}; it was deleted"
            )


class _Report:
    """A progress bar for huggingface_hub that reports to a `Progress`."""

    def __init__(self, name: str, progress: Progress, *, total: float | None = None, initial: float = 0, **_: object):
        self._tell = partial(progress, name)
        self._done, self._total = int(initial), None if total is None else int(total)

    def update(self, count: float = 1) -> None:
        self._done += int(count)
        self._tell(self._done, self._total)

    def __enter__(self) -> "_Report":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Do nothing: the display outlives a single file."""


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids every download."""
    from huggingface_hub.constants import is_offline_mode

    return is_offline_mode()


@contextmanager
def _named(subject: str, folder: Path | None = None) -> Iterator[None]:
    """Turn the faults of huggingface_hub into a `FetchError` about `subject`."""
    try:
        yield
    except Exception as error:  # errors of the library and of its HTTP client have no common base
        raise FetchError(f"{subject} {_fault(error, folder)}") from error


def _fault(error: BaseException, folder: Path | None) -> str:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return _fault(error.__cause__, folder)
    if isinstance(error, HfHubHTTPError):
        return f"cannot be fetched: the server answers {error.response.status_code}"
    if isinstance(error, OfflineModeIsEnabled):
        return "cannot be fetched: HF_HUB_OFFLINE is set"
    if isinstance(error, OSError):
        return f"cannot be fetched: {str(error) if folder is None else disk_fault(error, folder)}"
    return f"cannot be reached: {str(error) or type(error).__name__}"
