"""The facts of a model that `prolepsis models show` prints: of the file or folder, and of this machine with it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.output import note
from prolepsis.core.units import size

if TYPE_CHECKING:
    from prolepsis.engine.models.files.source import ModelSource
    from prolepsis.engine.models.files.store import Manifest, ModelStore


def facts_of_installed(store: "ModelStore", manifest: "Manifest", settings: Settings) -> dict[str, object]:
    """Return what is known of a model in the store, as JSON values; its checksums come last."""
    path = (store.folder(manifest.name) / manifest.path).resolve()
    stated = {**asdict(manifest), "path": str(path)}
    checksums = {"sha256": stated.pop("sha256")}
    return {**stated, **_facts_of_files(manifest.name, path, settings), **checksums}


def facts_of_path(path: Path, settings: Settings) -> dict[str, object]:
    """Return what is known of a model at a path, as JSON values; raises `ModelLoadError` if it cannot be read."""
    from prolepsis.engine.models.files.naming import catalogue_model, model_name
    from prolepsis.engine.models.files.source import open_model

    source = open_model(path)
    stated = None if isinstance(source, Path) else source.metadata.get("general.license")
    known = catalogue_model(str(path), source)
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return {
        "name": model_name(str(path), source, settings.engine.model_dir),
        "path": str(path.resolve()),
        "size": sum(file.stat().st_size for file in files),
        "licence": stated or (known.licence if known else None),
        **_facts_of_files(str(path), path, settings),
    }


def _facts_of_files(given: str, path: Path, settings: Settings) -> dict[str, object]:
    """Return what the files say; of files that cannot be read nothing: they are shown without."""
    from prolepsis.engine.models.files.described import weights_by_format
    from prolepsis.engine.models.files.recommended_sampling import default_sampling
    from prolepsis.engine.models.files.source import open_model
    from prolepsis.engine.models.files.weights import open_checkpoint

    try:
        source = open_model(path)
        config, weights = open_checkpoint(source).config, weights_by_format(source)
        formats = [(name, count / max(1, weights.total())) for name, count in weights.most_common()]
        return {
            "architecture": config.model_type,
            "context": getattr(config, "max_position_embeddings", None),
            "vocabulary": getattr(config, "vocab_size", None),
            "weights": ", ".join(f"{name} {share:.0%}" for name, share in formats if share >= 0.005),
            "default_sampling": default_sampling(settings.engine, given, source).describe(),
            **_forms_of_answers(source, settings),
            **_limit(path, settings),
        }
    except ModelLoadError as error:
        note(f"no more is known of its files: {error}")
        return {}


def _forms_of_answers(source: "ModelSource", settings: Settings) -> dict[str, object]:
    """Return how the model writes tool calls and reasoning; nothing of files that cannot be read."""
    from prolepsis.engine.models.files.tokenizer_files import load_tokenizer

    try:
        formats = load_tokenizer(source, settings.engine).formats
    except ModelLoadError as error:
        note(f"no form of tool calls is known: {error}")
        return {}
    return {
        "tool_format": formats.tools.name if formats.tools is not None else "not known",
        "reasoning_format": formats.reasoning.name if formats.reasoning is not None else "none",
        "template_shows_tools": formats.shows_tools,
    }


def _limit(path: Path, settings: Settings) -> dict[str, object]:
    """Return the bytes of a pass, what this machine's cores read in a second, and the tokens that follow from both."""
    from prolepsis.engine.models.files.described import bytes_per_pass
    from prolepsis.engine.native.bandwidth import read_bandwidth
    from prolepsis.engine.native.processor import default_threads

    num_bytes = bytes_per_pass(path)
    bandwidth = read_bandwidth(num_bytes, settings.engine.threads or default_threads())
    return {
        "bytes_per_pass": num_bytes,
        "read_gb_per_s": round(bandwidth / 1e9, 1),
        "memory_limit_tokens_per_s": round(bandwidth / num_bytes, 1),
    }


def shown(facts: dict[str, object]) -> list[tuple[str, object]]:
    """Return the facts as people read them."""
    sized: dict[str, object] = {
        name: size(float(str(facts[name]))) for name in ("size", "bytes_per_pass") if name in facts
    }
    return [(name, value) for name, value in {**facts, **sized}.items() if name not in ("sha256", "quality")]
