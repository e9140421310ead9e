"""`prolepsis models`: models, draft heads and draft models of the user's cache directory, in and out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prolepsis.cli.config import Settings
from prolepsis.cli.drafters import COLUMNS, MEGABYTE, TITLE, described, drafters, facts, find_drafter, row
from prolepsis.cli.flags import settings_here
from prolepsis.cli.output import (
    EPILOG,
    AsJson,
    command_group,
    note,
    print_facts,
    print_json,
    print_table,
    quiet_logs,
    stderr,
    stdout,
)
from prolepsis.core.errors import InvalidParameter, ModelNotFound

if TYPE_CHECKING:
    from prolepsis.models.files.hub import Progress
    from prolepsis.models.files.store import Manifest, Store

app = command_group("Fetch, list and show models, draft heads and draft models.")

Name = Annotated[str | None, typer.Argument(help="known name or hub id (OWNER/NAME); default: the configured model")]
Directory = Annotated[
    Path | None, typer.Option("--model-dir", help="where models are kept; default: the user's cache directory")
]


@app.command(epilog=EPILOG)
def pull(name: Name = None, model_dir: Directory = None, as_json: AsJson = False) -> None:
    """Fetch a model unless it is here: resumable, checksummed, whole or not at all."""
    settings = settings_here(model_dir=model_dir)
    store = _store(settings)
    with download_bar() as progress:
        manifest = store.pull(name or settings.engine.model, progress)
    if as_json:
        print_json(_described(store, manifest))
    else:
        stdout().print(f"{manifest.name} is in {store.folder(manifest.name)}", soft_wrap=True)


@app.command(epilog=EPILOG)
def export(
    name: Annotated[str, typer.Argument(help="model as for serve (known name, folder, GGUF file, hub id), or a head")],
    directory: Annotated[Path, typer.Argument(help="folder to write; it appears whole or not at all")],
    verifier: Annotated[
        str | None,
        typer.Option(help="of a head: folder or hub id of its target, for who loads it; default: its hub id"),
    ] = None,
    model_dir: Directory = None,
) -> None:
    """Write a model as a folder of bf16 safetensors, or a draft head in the speculators format: others load both.

    A name that a known model shares with its head is the model's; the head is NAME@VERSION.
    """
    from prolepsis.models.files.export import export_model
    from prolepsis.models.files.store import KNOWN, resolve
    from prolepsis.models.heads.exchange import export_head
    from prolepsis.models.heads.registry import HeadEntry

    quiet_logs()
    root = settings_here(model_dir=model_dir).engine.model_dir
    head = None if name in KNOWN else find_drafter(name, root)
    if isinstance(head, HeadEntry):
        known = KNOWN.get(head.target)
        written = export_head(head, directory, verifier or (known.hub.repository if known else None))
    elif verifier is not None:
        raise InvalidParameter(f"{name} is no draft head; allowed: --verifier with a head", param="verifier")
    else:
        written = export_model(resolve(name, root), directory)
    stdout().print(f"{name} is in {written}", soft_wrap=True)


@app.command("import", epilog=EPILOG)
def import_(
    folder: Annotated[Path, typer.Argument(help="an EAGLE-3 head in the speculators format")],
    name: Annotated[str, typer.Option("--as", help="NAME, which takes its next version, or NAME@VERSION")],
    model_dir: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Check a draft head from elsewhere and copy it in: whole or not at all."""
    from prolepsis.models.heads.exchange import fitting_models, import_head

    quiet_logs()
    root = settings_here(model_dir=model_dir).engine.model_dir
    entry = import_head(folder, name, root)
    fits = fitting_models(entry, root)
    if as_json:
        print_json({**described(entry), "fits": fits})
        return
    stdout().print(f"{entry.label} is in {entry.folder}", soft_wrap=True)
    proof = "by fingerprint" if entry.target_fingerprint else "by its sizes; which weights it is for, it does not say"
    note(f"fits {', '.join(fits)} ({proof})" if fits else "fits no model that is here")
    note(f"serve with it: prolepsis serve --draft-head {entry.label}")


@app.command(epilog=EPILOG)
def remove(
    name: Annotated[str, typer.Argument(help="a draft head that was imported: NAME (the newest) or NAME@VERSION")],
    model_dir: Directory = None,
) -> None:
    """Delete a draft head that was brought in."""
    from prolepsis.models.heads.exchange import remove_head

    quiet_logs()
    entry = remove_head(name, settings_here(model_dir=model_dir).engine.model_dir)
    stdout().print(f"{entry.label} is gone from {entry.folder.parent}", soft_wrap=True)


@app.command("list", epilog=EPILOG)
def list_models(model_dir: Directory = None, as_json: AsJson = False) -> None:
    """List the models that are here, the names that can be pulled, and what drafts for them."""
    from prolepsis.models.files.store import KNOWN

    quiet_logs()
    settings = settings_here(model_dir=model_dir)
    store, entries = _store(settings), drafters(settings.engine.model_dir)
    here = {manifest.name: manifest for manifest in store.installed()}
    if as_json:
        known = [{"name": k.name, "description": k.description, "licence": k.licence} for k in KNOWN.values()]
        models = [_described(store, manifest) for manifest in here.values()]
        drafting = [described(entry) for entry in entries]
        print_json({"directory": store.root, "models": models, "known": known, "drafters": drafting})
        return
    rows = [[m.name, f"{m.size / MEGABYTE:.0f}", m.licence or "not stated", m.source] for m in here.values()]
    rows += [[k.name, "", k.licence, "not here; models pull fetches it"] for k in KNOWN.values() if k.name not in here]
    print_table(str(store.root), ["model", "MB", "licence", "source"], rows)
    if entries:
        print_table(TITLE, COLUMNS, [row(entry) for entry in entries])


@app.command(epilog=EPILOG)
def show(name: Name = None, model_dir: Directory = None, as_json: AsJson = False) -> None:
    """Show where a model or draft head lies, where it came from, its checksums and how well it drafts."""
    settings = settings_here(model_dir=model_dir)
    store = _store(settings)
    wanted = name or settings.engine.model
    manifest = store.show(wanted)
    if manifest is None:
        quiet_logs()
        return _show_drafter(wanted, store, settings, as_json=as_json)
    if as_json:
        print_json(_described(store, manifest))
        return
    facts = [(name, value) for name, value in _described(store, manifest).items() if name != "sha256"]
    print_facts([*facts, *((f"sha256 {file}", digest) for file, digest in manifest.sha256.items())])


def _show_drafter(wanted: str, store: "Store", settings: Settings, *, as_json: bool) -> None:
    entry = find_drafter(wanted, settings.engine.model_dir)
    if entry is None:
        names = [m.name for m in store.installed()] + [entry.name for entry in drafters(settings.engine.model_dir)]
        here = ", ".join(dict.fromkeys(names)) or "none"
        raise ModelNotFound(f"model {wanted!r} is not in {store.root}; models here: {here}", param="name")
    if as_json:
        print_json(described(entry))
    else:
        print_facts(facts(entry))


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
    """Fetch the configured model where it is a known name that is not here yet."""
    from prolepsis.models.files.store import KNOWN

    model, store = settings.engine.model, _store(settings)
    if model in KNOWN and not Path(model).exists() and store.show(model) is None:
        note(f"fetching {model} to {store.root}")
        with download_bar() as progress:
            store.pull(model, progress)


def _store(settings: Settings) -> "Store":
    from prolepsis.models.files.store import open_store

    return open_store(settings.engine.model_dir)


def _described(store: "Store", manifest: "Manifest") -> dict[str, object]:
    return {**asdict(manifest), "path": str((store.folder(manifest.name) / manifest.path).resolve())}
