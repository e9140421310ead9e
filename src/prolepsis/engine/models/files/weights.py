"""Opens a model's files: a folder of safetensors, or a GGUF file."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.families import FAMILIES
from prolepsis.engine.models.files.checkpoint import EMBEDDING, TIED_HEAD, Checkpoint, Config
from prolepsis.engine.models.files.config import READ_HERE, llama_shaped
from prolepsis.engine.models.files.config_keys import declared, refuse_sizes, refuse_unread
from prolepsis.engine.models.files.generation_config import json_object
from prolepsis.engine.models.files.safetensors_files import homes
from prolepsis.engine.models.files.source import ModelSource, open_model
from prolepsis.engine.models.files.stored import LazyMapping


def open_checkpoint(source: ModelSource, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
    """Open a folder (config.json and safetensors) or a GGUF file; tensors are read in `dtype`.

    Raises `ModelLoadError` with file and reason.
    """
    opened = open_model(source) if isinstance(source, Path) else source
    if not isinstance(opened, Path):
        from prolepsis.engine.models.files.gguf import open_gguf

        return open_gguf(opened, dtype)
    checkpoint = Checkpoint(folder_config(opened), folder_tensors(opened, dtype), opened)
    both = {TIED_HEAD, EMBEDDING} <= checkpoint.tensors.keys()
    is_tied = getattr(checkpoint.config, "tie_word_embeddings", False) and both
    if is_tied and not torch.equal(checkpoint.tensor(TIED_HEAD), checkpoint.tensor(EMBEDDING)):
        raise ModelLoadError(
            f"{opened}: {TIED_HEAD} differs from {EMBEDDING}, although tie_word_embeddings says that they are one"
        )
    return checkpoint


def folder_tensors(folder: Path, dtype: torch.dtype | None) -> Mapping[str, Tensor]:
    """Return the tensors of a folder of safetensors files, sharded or not, in `dtype` (None: as they are stored)."""
    from safetensors import SafetensorError, safe_open

    files = homes(folder)
    for file in dict.fromkeys(files.values()):
        try:
            with safe_open(str(file), framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{file} is not a whole safetensors file: {error}") from error

    def read(name: str) -> Tensor:
        try:
            with safe_open(str(files[name]), framework="pt") as tensors:
                tensor: Tensor = tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{files[name]} is corrupt at tensor {name!r}: {error}") from error
        return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor

    return LazyMapping(files, read)


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
        if kind in READ_HERE:
            config: Config = llama_shaped(stated)
        else:
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{file} is not a usable model configuration: {error}") from error
    except Exception as error:  # transformers' classes raise validation errors without a common base class
        raise ModelLoadError(f"{file} is refused by transformers: {error}") from error
    if family is None:
        refuse_unread(file, stated, declared(config))
    return config
