"""Opens a model's files: a folder of safetensors, or a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.families import FAMILIES
from prolepsis.engine.models.files.checkpoint import TIED_HEAD, Checkpoint, Config
from prolepsis.engine.models.files.config import READ_HERE, llama_shaped
from prolepsis.engine.models.files.config_keys import declared, refuse_sizes, refuse_unread
from prolepsis.engine.models.files.generation_config import json_object
from prolepsis.engine.models.files.safetensors_files import homes
from prolepsis.engine.models.files.source import ModelSource, open_model
from prolepsis.engine.models.files.stored import OnDemand

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def open_checkpoint(source: ModelSource, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
    """Open a folder (config.json and safetensors) or a GGUF file; tensors are read in `dtype`.

    Raises `ModelLoadError` with file and reason.
    """
    opened = open_model(source) if isinstance(source, Path) else source
    if isinstance(opened, Path):
        checkpoint = Checkpoint(folder_config(opened), _folder_tensors(opened, dtype), opened)
        _check_tied(checkpoint)
        return checkpoint
    from prolepsis.engine.models.files.gguf import open_gguf

    return open_gguf(opened, dtype)


def _check_tied(checkpoint: Checkpoint) -> None:
    """Raise `ModelLoadError` for an output head that the configuration calls the embedding and that is another."""
    embedding = "model.embed_tokens.weight"
    if not getattr(checkpoint.config, "tie_word_embeddings", False) or not (
        TIED_HEAD in checkpoint.tensors and embedding in checkpoint.tensors
    ):
        return
    if not torch.equal(checkpoint.tensor(TIED_HEAD), checkpoint.tensor(embedding)):
        raise ModelLoadError(
            f"{checkpoint.source}: {TIED_HEAD} differs from {embedding}, although tie_word_embeddings says that they "
            "are one"
        )


def folder_config(folder: Path) -> Config:
    """Read config.json of `folder`; raises `ModelLoadError` if it is missing, invalid or of an unknown type."""
    file = folder / "config.json"
    if not file.exists():
        raise ModelLoadError(f"{folder} has no config.json")
    stated = json_object(file)
    refuse_sizes(file, stated)
    kind = stated.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is not None:
        refuse_unread(file, stated, family.keys.split())
    try:
        config = llama_shaped(stated) if kind in READ_HERE else _by_transformers(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{file} is not a usable model configuration: {error}") from error
    except Exception as error:  # transformers' classes raise validation errors without a common base class
        raise ModelLoadError(f"{file} is refused by transformers: {error}") from error
    if family is None:
        refuse_unread(file, stated, declared(config))
    return config


def _by_transformers(folder: Path) -> "PreTrainedConfig":
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(folder), local_files_only=True)


def _folder_tensors(folder: Path, dtype: torch.dtype) -> Mapping[str, Tensor]:
    """Return the tensors of a folder of safetensors files, sharded or not."""
    files = homes(folder)
    for file in dict.fromkeys(files.values()):
        _check_whole(file)
    return OnDemand(files, lambda name: _folder_tensor(files[name], name, dtype))


def _folder_tensor(file: Path, name: str, dtype: torch.dtype) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{file} is corrupt at tensor {name!r}: {error}") from error
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _check_whole(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt"):
            return
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{file} is not a whole safetensors file: {error}") from error
