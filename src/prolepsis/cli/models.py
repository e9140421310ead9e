"""`prolepsis models`: fetch, list and show models of the user's cache directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prolepsis.cli.config import Settings
from prolepsis.cli.flags import settings_here
from prolepsis.cli.groups import AsJson, command_group
from prolepsis.cli.output import EPILOG, note, print_facts, print_json, print_table, quiet_logs, stderr, stdout
from prolepsis.core.errors import ModelNotFound

if TYPE_CHECKING:
    from prolepsis.models.fetch import Progress
    from prolepsis.models.store import Manifest, Store

app = command_group("Fetch, list and show models.")

Name = Annotated[str | None, typer.Argument(help="known name or hub id (OWNER/NAME); default: the configured model")]
Directory = Annotated[
    Path | None, typer.Option("--model-dir", help="where models are kept; default: the user's cache directory")
]
MEGABYTE = 1e6


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
    name: Annotated[str, typer.Argument(help="model as for serve: known name, folder, GGUF file or hub id")],
    directory: Annotated[Path, typer.Argument(help="folder to write; it appears whole or not at all")],
    model_dir: Directory = None,
) -> None:
    """Write a model as a folder of bf16 safetensors, which other engines load."""
    from prolepsis.cli.bench.export import export_model
    from prolepsis.models.store import resolve

    quiet_logs()
    source = resolve(name, settings_here(model_dir=model_dir).engine.model_dir)
    stdout().print(f"{name} is in {export_model(source, directory)}", soft_wrap=True)


@app.command("list", epilog=EPILOG)
def list_models(model_dir: Directory = None, as_json: AsJson = False) -> None:
    """List the models that are here and the names that can be pulled."""
    from prolepsis.models.store import KNOWN

    store = _store(settings_here(model_dir=model_dir))
    here = {manifest.name: manifest for manifest in store.installed()}
    if as_json:
        known = [{"name": k.name, "description": k.description, "licence": k.licence} for k in KNOWN.values()]
        print_json({"directory": store.root, "models": [_described(store, m) for m in here.values()], "known": known})
        return
    rows = [[m.name, f"{m.size / MEGABYTE:.0f}", m.licence or "not stated", m.source] for m in here.values()]
    rows += [[k.name, "", k.licence, "not here; models pull fetches it"] for k in KNOWN.values() if k.name not in here]
    print_table(str(store.root), ["model", "MB", "licence", "source"], rows)


@app.command(epilog=EPILOG)
def show(name: Name = None, model_dir: Directory = None, as_json: AsJson = False) -> None:
    """Show where a model lies, where it came from and the checksums of its files."""
    settings = settings_here(model_dir=model_dir)
    store = _store(settings)
    wanted = name or settings.engine.model
    manifest = store.show(wanted)
    if manifest is None:
        here = ", ".join(m.name for m in store.installed()) or "none"
        raise ModelNotFound(f"model {wanted!r} is not in {store.root}; models here: {here}", param="name")
    if as_json:
        print_json(_described(store, manifest))
        return
    facts = [(name, value) for name, value in _described(store, manifest).items() if name != "sha256"]
    print_facts([*facts, *((f"sha256 {file}", digest) for file, digest in manifest.sha256.items())])


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
    from prolepsis.models.store import KNOWN

    model, store = settings.engine.model, _store(settings)
    if model in KNOWN and not Path(model).exists() and store.show(model) is None:
        note(f"fetching {model} to {store.root}")
        with download_bar() as progress:
            store.pull(model, progress)


def _store(settings: Settings) -> "Store":
    from prolepsis.models.store import open_store

    return open_store(settings.engine.model_dir)


def _described(store: "Store", manifest: "Manifest") -> dict[str, object]:
    return {**asdict(manifest), "path": str((store.folder(manifest.name) / manifest.path).resolve())}
