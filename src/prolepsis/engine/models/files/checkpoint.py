"""A model's files as one value: a configuration and tensors under their transformers names, read on demand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.phases import advance
from prolepsis.engine.models.files.config import LlamaShapedConfig, for_transformers
from prolepsis.engine.models.files.generation_config import generation_eos, token_ids
from prolepsis.engine.models.files.stored import StoredMatrix

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Config: TypeAlias = "LlamaShapedConfig | PreTrainedConfig"
EMBEDDING = "model.embed_tokens.weight"
TIED_HEAD = "lm_head.weight"  # output head that some files hold although it is the embedding


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's configuration and its tensors by transformers parameter name."""

    config: Config
    tensors: Mapping[str, Tensor]
    """Read from the file at each access, in the checkpoint's dtype (default: bfloat16)."""
    source: Path
    stored: Mapping[str, StoredMatrix] = field(default_factory=dict)
    """Matrices that a forward may read as they are stored, at each access."""
    ends: tuple[int, ...] = ()  # tokens that end a text by the tokenizer of the same files

    def matrix(self, name: str) -> StoredMatrix:
        """Return matrix `name` as it is stored, else in bf16; raises `ModelLoadError` if the files lack it."""
        if name not in self.stored:
            return StoredMatrix(self.tensor(name).bfloat16().contiguous())
        matrix = self.stored[name]
        advance(matrix.data.nbytes)
        return matrix

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ModelLoadError(f"{self.source} has no tensor {name!r}")
        tensor = self.tensors[name]
        advance(tensor.nbytes)
        return tensor

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text, from the configuration, from generation_config.json and from the tokenizer."""
        stated = [*token_ids(self.config.eos_token_id), *generation_eos(self.source)]
        return tuple(dict.fromkeys([*stated, *self.ends]))


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A model of transformers' class around the tensors of a checkpoint."""

    model: "PreTrainedModel"
    missing: list[str]  # parameters that the checkpoint lacks and that are not tied to others
    unexpected: list[str]  # tensors that the class has no place for


def fit(checkpoint: Checkpoint, dtype: torch.dtype, **options: str) -> FittedModel:
    """Return transformers' class, made with `options`, around the tensors: it draws no weights of its own first."""
    from transformers import AutoModelForCausalLM, PreTrainedModel
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model = AutoModelForCausalLM.from_config(for_transformers(checkpoint.config), dtype=dtype, **options)
    assert isinstance(model, PreTrainedModel)
    tensors = {name: tensor.to(dtype) for name, tensor in checkpoint.tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return FittedModel(model, sorted(set(missing) - set(model.all_tied_weights_keys)), unexpected)


def unread_tensors(names: Sequence[str], family: str) -> str:
    """Return what to say of tensors that would be left out."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"tensor {names[0]}{more} is not read here for architecture {family!r}"
