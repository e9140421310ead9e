"""A model as a folder of safetensors that transformers, vLLM and optimum-intel load."""

import shutil
from pathlib import Path

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.tokenizer_files import save_tokenizer


def export_model(source: Path, directory: Path) -> Path:
    """Write the model of `source` (GGUF file or folder) to `directory`, dequantised to bf16, and return `directory`.

    The folder appears whole or not at all; an existing folder with a model stays unchanged. Raises `ModelLoadError` if
    the model cannot be read, its tensors do not fit its architecture, or the folder cannot be written.
    """
    import torch

    from prolepsis.engine.models.files.checkpoint import fit
    from prolepsis.engine.models.files.weights import open_checkpoint

    if directory.exists():
        if not (directory / "config.json").is_file():
            raise ModelLoadError(f"{directory} already exists and is not a model")
        return directory
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        checkpoint = open_checkpoint(source, torch.bfloat16)
        fitted = fit(checkpoint, torch.bfloat16)
        if fitted.missing or fitted.unexpected:
            raise ModelLoadError(f"{source} does not fit: missing {fitted.missing}, unexpected {fitted.unexpected}")
        assert fitted.model.generation_config is not None, "a causal model generates"
        fitted.model.generation_config.eos_token_id = list(checkpoint.eos_token_ids)
        fitted.model.save_pretrained(partial)
        save_tokenizer(source, partial)
        partial.rename(directory)
    except OSError as error:
        raise ModelLoadError(f"{directory} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory
