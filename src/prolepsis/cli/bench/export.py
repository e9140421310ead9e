"""A model as a folder of safetensors that transformers, vLLM and optimum-intel load, whatever form it is kept in."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.errors import ModelLoadError

if TYPE_CHECKING:
    from prolepsis.models.tokenizer import TokenizerParts


def export_model(source: Path, directory: Path) -> Path:
    """Write the model of `source` (GGUF file or folder) to `directory`, dequantised to bf16, and return `directory`.

    The folder appears whole or not at all; one that is there already is left as it is. Raises `ModelLoadError` where
    the model cannot be read, or its tensors do not fit its architecture, or the folder cannot be written.
    """
    if directory.exists():
        if not (directory / "config.json").is_file():
            raise ModelLoadError(f"{directory} is there already and holds no model")
        return directory
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write_weights(source, partial)
        _write_tokenizer(source, partial)
        partial.rename(directory)
    except OSError as error:
        raise ModelLoadError(f"{directory} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory


def _write_weights(source: Path, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from prolepsis.models.weights import open_checkpoint

    checkpoint = open_checkpoint(source, torch.bfloat16)
    model = AutoModelForCausalLM.from_config(checkpoint.config, dtype=torch.bfloat16)
    fit = model.load_state_dict(dict(checkpoint.tensors), strict=False)
    model.tie_weights()
    tied = set(model.all_tied_weights_keys)
    missing = [name for name in fit.missing_keys if name not in tied]
    if missing or fit.unexpected_keys:
        raise ModelLoadError(f"{source} does not fit: missing {missing}, unexpected {list(fit.unexpected_keys)}")
    model.generation_config.eos_token_id = list(checkpoint.eos_token_ids)
    model.save_pretrained(directory)


def _write_tokenizer(source: Path, directory: Path) -> None:
    parts = _parts(source)
    parts.backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, **parts.special_tokens}, indent=2))
    if parts.template:
        (directory / "chat_template.jinja").write_text(parts.template)


def _parts(source: Path) -> "TokenizerParts":
    if source.is_dir():
        from prolepsis.models.tokenizer import folder_parts

        return folder_parts(source)
    from prolepsis.models.gguf_tokenizer import gguf_parts

    return gguf_parts(source)
