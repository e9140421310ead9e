"""Model files as one value: a configuration and tensors under their transformers names, read on demand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.files.config import KNOWN, LlamaShapedConfig, for_transformers, llama_shaped
from prolepsis.models.files.config_keys import READ, declared, refuse_sizes, refuse_unread
from prolepsis.models.files.generation_config import generation_eos, json_object, token_ids
from prolepsis.models.files.safetensors_files import homes
from prolepsis.models.files.source import ModelSource, open_model
from prolepsis.models.files.stored import OnDemand, StoredMatrix

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Config: TypeAlias = "LlamaShapedConfig | PreTrainedConfig"
TIED_HEAD = "lm_head.weight"
"""Output head that some files hold although it is the embedding."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's configuration and its tensors by transformers parameter name."""

    config: Config
    tensors: Mapping[str, Tensor]
    """Read from the file at each access, in the checkpoint's dtype (default: bfloat16)."""
    source: Path
    stored: Mapping[str, StoredMatrix] = field(default_factory=dict)
    """Matrices that a forward may read as they are stored, at each access."""
    ends: tuple[int, ...] = ()
    """Tokens that end a text by the tokenizer of the same files."""

    def matrix(self, name: str) -> StoredMatrix:
        """Return matrix `name` as it is stored, else in bf16; raises `ModelLoadError` if the files lack it."""
        return self.stored[name] if name in self.stored else StoredMatrix(self.tensor(name).bfloat16().contiguous())

    def tensor(self, name: str) -> Tensor:
        """Return tensor `name`; raises `ModelLoadError` if the files lack it."""
        if name not in self.tensors:
            raise ModelLoadError(f"{self.source} has no tensor {name!r}")
        return self.tensors[name]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text, from the configuration, from generation_config.json and from the tokenizer."""
        stated = [*token_ids(self.config.eos_token_id), *generation_eos(self.source)]
        return tuple(dict.fromkeys([*stated, *self.ends]))


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model of transformers' class around the tensors of a checkpoint."""

    model: "PreTrainedModel"
    missing: list[str]
    """Parameters that the checkpoint lacks and that are not tied to others."""
    unexpected: list[str]
    """Tensors that the class has no place for."""


def fit(checkpoint: Checkpoint, dtype: torch.dtype, **options: str) -> Fitted:
    """Return transformers' class, made with `options`, around the tensors: it draws no weights of its own first."""
    from transformers import AutoModelForCausalLM, PreTrainedModel
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model = AutoModelForCausalLM.from_config(for_transformers(checkpoint.config), dtype=dtype, **options)
    assert isinstance(model, PreTrainedModel)
    tensors = {name: tensor.to(dtype) for name, tensor in checkpoint.tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return Fitted(model, sorted(set(missing) - set(model.all_tied_weights_keys)), unexpected)


def open_checkpoint(source: ModelSource, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
    """Open a folder (config.json and safetensors) or a GGUF file; tensors are read in `dtype`.

    Raises `ModelLoadError` with file and reason.
    """
    opened = open_model(source) if isinstance(source, Path) else source
    if isinstance(opened, Path):
        checkpoint = Checkpoint(folder_config(opened), _folder_tensors(opened, dtype), opened)
        _check_tied(checkpoint)
        return checkpoint
    from prolepsis.models.files.gguf import open_gguf

    return open_gguf(opened, dtype)


def unread_tensors(names: Sequence[str], family: str) -> str:
    """Return what to say of tensors that would be left out."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"tensor {names[0]}{more} is not read here for architecture {family!r}"


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
    if isinstance(kind, str) and kind in READ:
        refuse_unread(file, stated, READ[kind])
    try:
        config = llama_shaped(stated) if kind in KNOWN else _by_transformers(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{file} is not a usable model configuration: {error}") from error
    except Exception as error:  # transformers' classes raise validation errors without a common base class
        raise ModelLoadError(f"{file} is refused by transformers: {error}") from error
    if kind not in READ:
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
