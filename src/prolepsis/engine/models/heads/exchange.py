"""Import and export of draft heads, copied whole or not at all: EAGLE-3 in the speculators format, or as `foreign`."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile, ZipInfo

import torch

from prolepsis.core.errors import InvalidParameter, ModelLoadError
from prolepsis.core.files import exclusive
from prolepsis.engine.models.files.config import llama_shaped
from prolepsis.engine.models.files.store import open_store
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.aliases import HeadAliases, head_folder
from prolepsis.engine.models.heads.foreign import convert_head
from prolepsis.engine.models.heads.format import (
    CONFIG,
    WEIGHTS,
    HeadStorage,
    OutputRows,
    WeightFormat,
    load_head,
    save_with_checksum,
    weights_checksum,
)
from prolepsis.engine.models.heads.levels import LEVELS, load_levels, read_report, save_levels
from prolepsis.engine.models.heads.registry import HeadEntry, check_checksum, check_whole, find_head, list_heads, misfit
from prolepsis.engine.models.load import identity_of
from prolepsis.engine.models.provenance import KEY
from prolepsis.engine.models.targets.lean_shape import LeanShape, rope_parameters
from prolepsis.engine.models.targets.lean_weights import output_rows, read_ends

_FILES = (CONFIG, WEIGHTS, LEVELS)
NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(@(?P<version>[1-9]\d*))?")


def import_head(folder: Path, name: str, root: Path | None = None) -> HeadEntry:
    """Check the head in `folder`, copy it to the user's heads as the next version of `name`, or as NAME@VERSION.

    A head of another public layout is converted. The copy records its checksum. Raises `ModelLoadError` if the folder
    holds no whole head, and `InvalidParameter` for a name that is invalid or taken.
    """
    match = NAME.fullmatch(name)
    if match is None or match["name"] in ("auto", "none"):
        raise InvalidParameter(
            f"name is {name!r}; allowed: letters, digits, '.', '_' and '-', or NAME@VERSION; not 'auto' or 'none'",
            param="name",
        )
    taken = [entry.version for entry in list_heads(root) if entry.name == match["name"]]
    version = int(match["version"] or max(taken, default=0) + 1)
    if version in taken:
        raise InvalidParameter(f"{match['name']}@{version} is taken; allowed: another version", param="name")
    label = f"{match['name']}@{version}"
    if not (folder / CONFIG).is_file():
        raise ModelLoadError(f"{folder} has no {CONFIG}; allowed: the folder of a draft head")
    home = head_folder(root) / label
    with TemporaryDirectory() as converted:
        source = find_head(str(convert_head(folder.resolve(), Path(converted))), root)
        check_checksum(source)
        check_whole(source)
        own = {"version": version, "sha256": weights_checksum(source.folder)}
        copy_head(source, home, {KEY: {"source": str(folder.resolve()), **source.config.provenance, **own}})
    return find_head(str(home), root)


def archive_of(entry: HeadEntry) -> bytes:
    """Return a head's files as a zip file, the same for the same files, so that a server elsewhere can import it."""
    content = BytesIO()
    with ZipFile(content, "w") as archive:
        for name in (name for name in _FILES if (entry.folder / name).is_file()):
            archive.writestr(ZipInfo(name), (entry.folder / name).read_bytes())
    return content.getvalue()


def import_archive(content: bytes, name: str, root: Path | None = None) -> HeadEntry:
    """Import what `archive_of` returned as NAME@VERSION; a head of these weights that is there already stays.

    Several processes may do so at once. Raises the errors of `import_head`, and `ModelLoadError` for other archives.
    """
    home = head_folder(root)
    with exclusive(home / ".import.lock"), TemporaryDirectory() as folder:
        try:
            with ZipFile(BytesIO(content)) as archive:
                for member in {*_FILES}.intersection(archive.namelist()):
                    file = Path(folder, member)
                    file.parent.mkdir(exist_ok=True)
                    file.write_bytes(archive.read(member))
        except (BadZipFile, OSError) as error:
            raise ModelLoadError(f"the archive of {name} cannot be unpacked: {error}") from error
        if (home / name / CONFIG).is_file():
            here = find_head(str(home / name), root)
            if here.provenance.sha256 == weights_checksum(Path(folder)):
                return here
        return import_head(Path(folder), name, root)


def fitting_models(entry: HeadEntry, root: Path | None = None) -> list[str]:
    """Return the names of the installed models that a head can draft for."""
    store = open_store(root)
    names: list[str] = []
    for manifest in store.installed():
        path = store.path(manifest.name)
        assert path is not None, "an installed model has a path"
        try:
            shape = LeanShape.from_config(open_checkpoint(path).config)
        except ModelLoadError:  # a head needs a model that the lean forward can run
            continue
        identity = identity_of(path) if entry.target_fingerprint else ""
        if misfit(entry, shape, identity) is None:
            names.append(manifest.name)
    return names


def export_head(
    entry: HeadEntry,
    directory: Path,
    verifier: str | None = None,
    *,
    weights: WeightFormat = "bf16",
    rows: OutputRows | None = None,
) -> Path:
    """Write a head to the new `directory`, whole or not at all, and return it; `verifier` names its target there.

    In q8_0 an output head that is that of the target, whose `rows` are given, is left out. Raises `ModelLoadError` if
    the head is damaged, `directory` exists or cannot be written, or rows are needed and not given.
    """
    check_checksum(entry)
    document = json.loads((entry.folder / CONFIG).read_text())
    speculators, name = document.get("speculators_config", {}), verifier or entry.config.verifier
    if entry.config.layout != "eagle3":
        raise ModelLoadError(f"{entry.label} has the layout {entry.config.layout}; allowed to export: eagle3")
    if entry.config.storage.weights == weights:
        check_whole(entry)
        named = {**speculators.get("verifier", {}), "name_or_path": name}
        copy_head(entry, directory, {"speculators_config": {**speculators, "verifier": named}})
        return directory
    config, loaded = load_head(entry.folder, rows)
    levels = load_levels(entry.folder, config.shape.hidden)
    is_target = weights == "q8_0" and rows is not None and torch.equal(loaded.lm_head, rows(loaded.target_ids))
    storage = HeadStorage(weights, "target" if is_target else "own")
    changed = replace(config, storage=storage, verifier=name)
    rope = rope_parameters(llama_shaped({"model_type": "llama", **document["transformer_layer_config"]}))
    with _staged(directory) as staging:
        save_with_checksum(staging, changed, loaded, rope)
        if levels is not None:
            save_levels(staging, levels, read_report(entry.folder))
    return directory


def rows_of(path: Path) -> OutputRows:
    """Return what reads rows of the output head of the model at `path`."""
    checkpoint = open_checkpoint(path)
    return partial(output_rows, read_ends(checkpoint, LeanShape.from_config(checkpoint.config)))


def remove_head(name: str, root: Path | None = None) -> HeadEntry:
    """Delete one of the user's heads and return its entry; raises `InvalidParameter` for a head of the package."""
    entry = find_head(name, root)
    if entry.folder.parent.resolve() != head_folder(root).resolve():
        raise InvalidParameter(
            f"{entry.label} is in {entry.folder}; allowed: heads in {head_folder(root)}", param="name"
        )
    aliases = HeadAliases(root).of(entry.name, entry.version)
    if aliases:
        message = f"{entry.label} is {', '.join(aliases)}; allowed: heads without an alias"
        raise InvalidParameter(message, param="name")
    shutil.rmtree(entry.folder)
    return entry


def copy_head(source: HeadEntry, home: Path, changes: Mapping[str, Any]) -> None:
    """Copy configuration, with top-level `changes`, and weights to the new folder `home`, whole or not at all."""
    with _staged(home) as staging:
        document = {**json.loads((source.folder / CONFIG).read_text()), **changes}
        (staging / CONFIG).write_text(json.dumps(document, indent=2) + "\n")
        shutil.copyfile(source.folder / WEIGHTS, staging / WEIGHTS)
        if (source.folder / LEVELS).is_file():
            (staging / LEVELS).parent.mkdir()
            shutil.copyfile(source.folder / LEVELS, staging / LEVELS)


@contextmanager
def _staged(home: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes the new folder `home` when the block ends; raises `ModelLoadError`."""
    if home.exists():
        raise ModelLoadError(f"{home} already exists; allowed: a new folder")
    staging = home.with_name(f".{home.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        yield staging
        staging.rename(home)
    except OSError as error:
        raise ModelLoadError(f"{home} cannot be written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
