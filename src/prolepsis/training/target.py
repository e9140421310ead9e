"""The target as training needs it: tokenizer, geometry, the weights at both ends, and a draft vocabulary."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.engine.models.files.checkpoint import Config
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.format import HeadConfig, target_fault
from prolepsis.engine.models.load import identity_of
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.lean_weights import EndParts, output_rows, read_ends
from prolepsis.engine.native.processor import instruction_sets, processor_flags
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.training.batches import TargetEnds
from prolepsis.training.prompts import turn_prefix
from prolepsis.training.settings import Dtype, HeadSize

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # malloc.h


@dataclass(frozen=True, slots=True)
class Target:
    """A target model, without its forward."""

    name: str
    path: Path
    identity: str  # `LoadedModel.identity`
    tokenizer: ModelTokenizer
    shape: LeanShape
    ends: EndParts[Tensor]
    config: Config
    eos_token_ids: tuple[int, ...]

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Layers whose input a head reads, as EAGLE-3 chooses them."""
        layers = len(self.shape.layers)
        return (min(2, layers), layers // 2, max(0, layers - 3))

    @property
    def recorded_layers(self) -> tuple[int, ...]:
        """`aux_layers`, and the output of the last layer, from which the target's own prediction is computed."""
        return (*self.aux_layers, len(self.shape.layers))

    @property
    def preamble(self) -> int:
        """Tokens of the chat template before a user's first word; without one, the first token."""
        return max(1, len(turn_prefix(self.tokenizer, None, "")))

    @property
    def needed_tokens(self) -> list[int]:
        """Tokens of every draft vocabulary: ends, control tokens, single characters and single bytes."""
        short = {
            i
            for token, i in self.tokenizer.vocab.items()
            if len(token) == 1 or (token.startswith("<0x") and len(token) == 6)
        }
        return sorted({*self.eos_token_ids, *self.tokenizer.special_token_ids, *short})

    def head_config(self, draft_vocab: int, size: HeadSize | None = None) -> HeadConfig:
        """Return the configuration of a head over `draft_vocab` tokens.

        Raises `ConfigError` for query heads that do not share key/value heads evenly.
        """
        size, shape = size or HeadSize(), self.shape.llama_layer()
        heads, kv_heads = size.heads or shape.heads, size.kv_heads or shape.kv_heads
        if heads % kv_heads:
            raise ConfigError(f"heads is {heads}; allowed: multiples of the {kv_heads} key/value heads", param="heads")
        wide = size.intermediate or shape.intermediate
        return HeadConfig(
            shape=replace(shape, heads=heads, kv_heads=kv_heads, intermediate=wide),
            aux_layers=self.aux_layers[-size.taps :],
            draft_vocab=draft_vocab,
            verifier=self.name,
        )

    def ends_for(self, target_ids: Tensor) -> TargetEnds:
        """Return the frozen weights in float32, with the rows `target_ids` of the output head."""
        head = output_rows(self.ends, target_ids).float()
        return TargetEnds(self.ends.embedding.float(), self.ends.final_norm.float(), head, self.shape.eps)


def open_target(name: str, model_dir: Path | None = None) -> Target:
    """Open a model's files; raises `ModelNotFound`, or `ModelLoadError` for a model that cannot have a head."""
    path = resolve(name, model_dir)
    checkpoint = open_checkpoint(path)
    shape = LeanShape.from_config(checkpoint.config)
    if fault := target_fault(shape):
        raise ModelLoadError(f"{name} cannot have a draft head: {fault}")
    return Target(
        name=name,
        path=path,
        identity=identity_of(path),
        tokenizer=load_tokenizer(path),
        shape=shape,
        ends=read_ends(checkpoint, shape),
        config=checkpoint.config,
        eos_token_ids=checkpoint.eos_token_ids,
    )


def count_tokens(texts: Iterable[Tensor], vocab: int) -> Tensor:  # [vocab] int64
    """Count the tokens of `texts` ([n] integers each)."""
    counts = torch.zeros(vocab, dtype=torch.int64)
    for tokens in texts:
        counts += torch.bincount(tokens.long(), minlength=vocab)
    return counts


def choose_vocabulary(counts: Tensor, size: int, always: Sequence[int]) -> Tensor:
    """Return the rising ids ([size] int64) of `always` and the most frequent others, the lowest id among equals.

    Large vocabularies have more single characters than room: at most a quarter of `size` is kept for `always`.
    """
    ranked, frequencies = counts.clone(), counts.tolist()
    kept = sorted(always, key=lambda token: -frequencies[token])[: size // 4]
    ranked[kept] = counts.max() + 1
    order = torch.sort(ranked, descending=True, stable=True).indices
    return order[: min(size, len(counts))].sort().values


def coverage(counts: Tensor, sizes: Sequence[int], always: Sequence[int]) -> dict[int, float]:
    """Return the share of counted tokens that a vocabulary of each size holds."""
    return {size: covered(counts, choose_vocabulary(counts, size, always)) for size in sizes}


def covered(counts: Tensor, ids: Tensor) -> float:
    """Return the share of counted tokens that a vocabulary ([D] int64) holds."""
    return float(counts[ids].sum()) / max(1, int(counts.sum()))


def target_of(config: EngineConfig) -> Target:
    """Open the target and prepare torch: one thread, since the workers of a training share a batch by documents."""
    torch.set_num_threads(1)
    keep_memory()
    return open_target(config.model, config.model_dir)


def keep_memory() -> None:
    """Let the GNU C library keep memory that is freed, so that the matrices of a step cost no page faults.

    They have tens of MB each: the faults took a third of the time of a training.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for parameter, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1)):
            mallopt(parameter, value)


def training_dtype() -> Dtype:
    """Return bfloat16 if the processor multiplies matrices in it fast (AVX-512 BF16, AMX), else float32."""
    return "bfloat16" if "avx512_bf16" in instruction_sets(processor_flags()) else "float32"
