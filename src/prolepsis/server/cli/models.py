"""`prolepsis models`: models, draft heads and draft models in the cache directory."""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import InvalidParameter, ModelLoadError, ModelNotFound
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import (
    AsJson,
    command_group,
    note,
    print_facts,
    print_json,
    quiet_logs,
    stdout,
)
from prolepsis.core.terminal.phases import shown_phases
from prolepsis.core.units import size
from prolepsis.engine.commands.downloads import download, downloading, model_store

if TYPE_CHECKING:
    from prolepsis.engine.models.draft_models import DraftModelEntry
    from prolepsis.engine.models.files.store import Manifest, ModelStore
    from prolepsis.engine.models.heads.registry import HeadEntry

_COLUMNS = {
    "models": ("name", "size=size:bytes", "licence", "source"),
    "known": ("name", "licence", "description"),
    "drafters": ("kind", "name", "version", "trained for=target", "chain_of_3", "size=size:bytes", "aliases"),
}

app = command_group("Download, list, export and import models, draft heads and draft models.")

Name = Annotated[str | None, typer.Argument(help="known name, or hub id (OWNER/NAME); default: the configured model")]
Directory = Annotated[
    Path | None, typer.Option("--model-dir", help="directory of the models; default: the user's cache directory")
]


@app.command()
def pull(name: Name = None, model_dir: Directory = None, as_json: AsJson = False) -> None:
    """Download a model if it is not here yet, and verify its checksums. An interrupted download continues.

    A draft head that drafts for it by default is named, of an installed package too.
    """
    from prolepsis.engine.models.files.store import KNOWN

    settings = settings_here(model_dir=model_dir)
    store, wanted = model_store(settings), name or settings.engine.model
    if store.show(wanted) is None and wanted in KNOWN:
        note(downloading(store, KNOWN[wanted]))
    with shown_phases(), download() as progress:
        manifest = store.pull(wanted, progress)
    head = _default_head(store, manifest)
    if as_json:
        print_json({**_described(store, manifest), "draft_head": head})
        return
    here = f"{manifest.name} is in {store.folder(manifest.name)}"
    stdout().print(f"{here}: {size(manifest.size)}, licence {manifest.licence or 'not stated'}", soft_wrap=True)
    if head is not None:
        note(f"draft head {head} drafts for it")


def _default_head(store: "ModelStore", manifest: "Manifest") -> str | None:
    """Return the label of the head that drafts for a model unless another is configured; None where none can run."""
    path = store.path(manifest.name)
    assert path is not None, "a pulled model has a path"
    try:
        from prolepsis.engine.models.heads.registry import fitting_entry
        from prolepsis.engine.models.load import identity_of

        entry = fitting_entry(identity_of(path), store.root)
    except (ImportError, ModelLoadError):  # without the engine, and for files that it cannot read
        return None
    return entry.label if entry is not None else None


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="model (known name, folder, GGUF file or hub id) or draft head")],
    directory: Annotated[Path, typer.Argument(help="folder to write")],
    *,
    verifier: Annotated[
        str | None,
        typer.Option(help="for a head: folder or hub id of its target model; default: the hub id"),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="for a head: its target here, whose output rows it may need; default: as it says")
    ] = None,
    weights: Annotated[
        Literal["bf16", "q8_0"],
        typer.Option(help="for a head: bf16 for other software, q8_0 without the target's output rows for Prolepsis"),
    ] = "bf16",
    model_dir: Directory = None,
) -> None:
    """Write a model as bf16 safetensors, or a draft head in the speculators format, for other software.

    If a known model and its head share a name, NAME is the model and NAME@VERSION the head.
    """
    from prolepsis.engine.models.files.export import export_model
    from prolepsis.engine.models.files.store import KNOWN, resolve
    from prolepsis.engine.models.heads.exchange import export_head, rows_of
    from prolepsis.engine.models.heads.registry import HeadEntry

    quiet_logs()
    root = settings_here(model_dir=model_dir).engine.model_dir
    head = None if name in KNOWN else find_drafter(name, root)
    if isinstance(head, HeadEntry):
        known = KNOWN.get(head.target)
        storage = head.config.storage
        needs_target = storage.weights != weights and (weights == "q8_0" or storage.output_head == "target")
        rows = rows_of(resolve(target or head.target, root)) if needs_target else None
        repository = known.hub.repository if known and known.hub else None
        written = export_head(head, directory, verifier or repository, weights=weights, rows=rows)
    elif verifier is not None:
        raise InvalidParameter(f"{name} is not a draft head; allowed: --verifier with a head", param="verifier")
    else:
        written = export_model(resolve(name, root), directory)
    stdout().print(f"{name} is in {written}", soft_wrap=True)


@app.command("import")
def import_(
    folder: Annotated[
        Path, typer.Argument(help="folder of an EAGLE-3, EAGLE-1 or Medusa head, or of a model with an MTP layer")
    ],
    name: Annotated[str, typer.Option("--as", help="NAME for its next version, or NAME@VERSION")],
    model_dir: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Check a draft head from other software and copy it into the model directory.

    A server tries it as soon as it is swapped in; it drafts by default once it has the alias champion.
    """
    from prolepsis.engine.models.heads.exchange import fitting_models, import_head

    quiet_logs()
    root = settings_here(model_dir=model_dir).engine.model_dir
    entry = import_head(folder, name, root)
    fits = fitting_models(entry, root)
    if as_json:
        print_json({**describe_drafter(entry, root), "layout": entry.config.layout, "fits": fits})
        return
    stdout().print(f"{entry.label} is in {entry.folder}", soft_wrap=True)
    note(f"layout {entry.config.layout}")
    proof = "by fingerprint" if entry.target_fingerprint else "by its sizes; it does not name its target's weights"
    note(f"fits {', '.join(fits)} ({proof})" if fits else "fits no model that is here")
    note(f"serve with it: prolepsis serve --draft-head {entry.label}")
    note(f"let it draft by default: prolepsis models alias {entry.label} champion")


@app.command()
def alias(
    head: Annotated[str, typer.Argument(help="NAME, NAME@VERSION or NAME@ALIAS; with --remove: NAME")],
    alias: Annotated[str, typer.Argument(help="such as champion or candidate")],
    drop: Annotated[bool, typer.Option("--remove", help="the alias stands for no version any more")] = False,
    model_dir: Directory = None,
) -> None:
    """Let an alias stand for a version of a draft head; NAME@ALIAS then works wherever NAME@VERSION does.

    A running server keeps the head that it has; `prolepsis heads swap NAME@ALIAS` loads the one of the alias.
    """
    from prolepsis.engine.models.heads.aliases import HeadAliases
    from prolepsis.engine.models.heads.registry import find_head

    quiet_logs()
    root = settings_here(model_dir=model_dir).engine.model_dir
    name, version = head.partition("@")[0], None
    if not drop:
        entry = find_head(head, root)
        name, version = entry.name, entry.version
    before = HeadAliases(root).set(name, alias, version)
    was, now = (None if number is None else f"{name}@{number}" for number in (before, version))
    action, subject = "head.alias_removed" if drop else "head.alias_set", f"{name}@{alias}"
    record_act(AuditEvent(actor=actor(), action=action, subject=subject, before={"head": was}, after={"head": now}))
    stdout().print(f"{subject} is {now or 'gone'}" + (f"; it was {was}" if was else ""), soft_wrap=True)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="an imported draft head: NAME (the newest version) or NAME@VERSION")],
    model_dir: Directory = None,
) -> None:
    """Delete an imported draft head."""
    from prolepsis.engine.models.heads.exchange import remove_head

    quiet_logs()
    entry = remove_head(name, settings_here(model_dir=model_dir).engine.model_dir)
    stdout().print(f"{entry.label} was deleted from {entry.folder.parent}", soft_wrap=True)


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(help="installed model, path, draft head or draft model; default: a list of all"),
    ] = None,
    model_dir: Directory = None,
    as_json: AsJson = False,
) -> None:
    """List models and what drafts for them, or show what a model is, or the acceptance of a draft head or model.

    Of a model: origin, licence, checksums, context, sampling parameters of requests that leave them out, speed limit.

    Decoding without speculation reads all weights for each token: the limit is what the cores read in a second, which
    is measured in a third of a second, over the bytes of a pass.
    """
    from prolepsis.engine.models.files.quality import measured_quality
    from prolepsis.server.cli.model_facts import facts_of_installed, facts_of_path, shown

    settings = settings_here(model_dir=model_dir)
    store = model_store(settings)
    if name is None:
        return _list(store, settings.engine.model_dir, as_json=as_json)
    manifest = store.show(name)
    if manifest is None and not Path(name).exists():
        quiet_logs()
        root = settings.engine.model_dir
        entry = find_drafter(name, root)
        if entry is None:
            here = ", ".join(dict.fromkeys(model.name for model in (*store.installed(), *drafters(root)))) or "none"
            raise ModelNotFound(f"model {name!r} is not in {store.root}; models here: {here}", param="name")
        return print_reply(describe_drafter(entry, root), as_json=as_json)
    about = facts_of_path(Path(name), settings) if manifest is None else facts_of_installed(store, manifest, settings)
    measured = measured_quality(Path(str(about["path"])))
    if as_json:
        print_json({**about, "quality": [asdict(quality) for quality in measured]})
        return
    facts = shown(about) + [(f"quality with {quality.computation}", quality.describe()) for quality in measured]
    checksums = {} if manifest is None else manifest.sha256
    print_facts([*facts, *((f"sha256 {file}", digest) for file, digest in checksums.items())])


def _list(store: "ModelStore", root: Path | None, *, as_json: bool) -> None:
    from prolepsis.engine.models.files.store import KNOWN

    quiet_logs()
    document = {
        "directory": str(store.root),
        "models": [_described(store, manifest) for manifest in store.installed()],
        "known": [{"name": k.name, "description": k.description, "licence": k.licence} for k in KNOWN.values()],
        "drafters": [describe_drafter(entry, root) for entry in drafters(root)],
    }
    print_reply(document, _COLUMNS, as_json=as_json)
    if not as_json:
        note("known models are downloaded by `models pull`; chain of 3: tokens a pass on held-out text")


def _described(store: "ModelStore", manifest: "Manifest") -> dict[str, object]:
    return {**asdict(manifest), "path": str((store.folder(manifest.name) / manifest.path).resolve())}


def drafters(root: Path | None) -> "list[HeadEntry | DraftModelEntry]":
    from prolepsis.engine.models.draft_models import list_draft_models
    from prolepsis.engine.models.heads.registry import list_heads

    return [*list_heads(root), *list_draft_models(root)]


def find_drafter(name: str, root: Path | None) -> "HeadEntry | DraftModelEntry | None":
    """Return the newest head or draft model called `name`, or exactly NAME@VERSION or NAME@ALIAS; None without one."""
    from prolepsis.engine.models.heads.aliases import HeadAliases

    name = HeadAliases(root).resolved(name)
    matching = [entry for entry in drafters(root) if name in (entry.name, f"{entry.name}@{entry.version}")]
    return matching[-1] if matching else None


def describe_drafter(entry: "HeadEntry | DraftModelEntry", root: Path | None) -> dict[str, object]:
    """Return everything known about a head or draft model, as JSON values."""
    from prolepsis.engine.models.heads.aliases import HeadAliases
    from prolepsis.engine.models.heads.format import weights_checksum

    provenance, checksum = entry.provenance, "not recorded"
    if provenance.sha256:
        checksum = "differs: the file is damaged"
        with suppress(ModelLoadError):
            checksum = "matches" if weights_checksum(entry.folder) == provenance.sha256 else checksum
    is_shipped = getattr(entry, "shipped", False)
    return {
        "kind": entry.kind,
        "name": entry.name,
        "version": entry.version,
        "aliases": list(HeadAliases(root).of(entry.name, entry.version)) if entry.kind == "head" else [],
        "path": str(entry.folder),
        "from": "shipped" if is_shipped else provenance.source or "here",
        "size": entry.size,
        "target": entry.target or None,
        "target_fingerprint": provenance.target_fingerprint or None,
        "tokenizer_fingerprint": provenance.tokenizer_fingerprint or None,
        "sha256": provenance.sha256 or None,
        "checksum": checksum,
        "chain_of_3": None if provenance.chain_of_3 is None else round(provenance.chain_of_3, 4),
        "acceptance": {
            kind: {"hits": counts.hits, "trials": counts.trials, "chain_of_3": round(counts.length(), 4)}
            for kind, counts in provenance.acceptance.items()
        },
        **provenance.model_dump(include={"parent", "manifests", "serves"}, exclude_defaults=True),
        "training": dict(provenance.training),
    }
